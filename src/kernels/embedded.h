#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "device/compiler.h"

namespace flashcore {

// Device source as built in, "sm80_fwd/kernel.cuh" -> text. Made by cmake/embed.cmake.
const std::map<std::string_view, std::string_view>& embedded_device_sources();
// The same of src/: "core/band.h".
const std::map<std::string_view, std::string_view>& embedded_core_sources();
// What runs every CPU family, of src/: "device/cpu/thread_pool.cpp", "kernels/cpu_ragged.cpp", "core/dtype.cpp". Not
// device/cpu/ceilings.cpp and cpu_device.cpp, which measure.
const std::map<std::string_view, std::string_view>& embedded_cpu_sources();

// What compilation uses: the embedded text, or the tree under $FLASHCORE_SOURCE (a checkout's root) for edit-and-run.
const SourceMap& device_sources();
bool sources_are_built_in();
// With $FLASHCORE_SOURCE: the files of that tree which differ from those compiled into this program, and which the host
// uses in its own copy (config.h says which configs are valid and how much shared memory they take; CPU kernels are
// host code altogether). What runs is then neither the tree nor the program. Empty without the variable.
std::vector<std::string> host_sources_that_differ();
// The micro-tests of ptx/ (conformance/) and the ptx/ they test. No kernel includes them, so no result depends on them.
const SourceMap& conformance_sources();
// Every source that kernels, their launches and their choice are made of, micro-tests included.
const SourceMap& all_sources();
// Whether such a path is of embedded_cpu_sources(): threads, memory, tiles and sequences of every CPU family.
bool is_cpu_source(std::string_view path);
// `path` and every file of these that it includes, at any depth, in the order of their paths.
std::vector<std::string> include_closure(const std::string& path, const SourceMap& sources);

}  // namespace flashcore
