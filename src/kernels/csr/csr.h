#pragma once
// The host's side of making a block table (kernel.cuh): what is compiled, how it is launched, and the same on a CPU.

#include "device/device.h"
#include "kernels/csr/params.h"
#include "kernels/family.h"

namespace flashcore::csr {

KernelSource source_of();

// Without its parameters, which are the CsrParams. No memory is allocated.
LaunchSpec launch_of(const CsrParams& params);

// Addresses of the process.
void run_on_cpu(const CsrParams& params);

}  // namespace flashcore::csr
