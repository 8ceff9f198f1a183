#pragma once
// A plan's kernel from the disk without opening NVRTC, whose opening alone takes 20 to 60 ms of a process that will not
// compile anything.

#include "kernels/family.h"

namespace flashcore::api {

// Why plans' kernels are not kept on the disk, and the fix (CompileCache::why_unused); empty if they are.
std::string why_not_kept();

// As compile_candidate. Where FLASHCORE_NVRTC names the compiler's file (the Python package sets it), what was compiled
// by that very file, from this very source, is found before the file is opened.
Artifact find_or_compile(const Candidate& candidate, const Problem& problem, const DeviceLimits& limits);
// The same of a kernel that is no candidate's, for the device's own architecture.
Artifact find_or_compile(const KernelSource& source, const DeviceLimits& limits);

}  // namespace flashcore::api
