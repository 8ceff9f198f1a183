#pragma once
// The host's side of appending (kernel.cuh): what is compiled, how it is launched, and the same work on a CPU.

#include <array>
#include <cstddef>

#include "device/device.h"
#include "kernels/append/params.h"
#include "kernels/family.h"

namespace flashcore::append {

// Kernels of the module, as LaunchSpec::kernel.
enum class Entry : unsigned { kVector, kScalar, kUpdateLengths };

KernelSource source_of(const Kind& kind);

// Whether 16 bytes can be moved at once: addresses, strides and columns are multiples of 16 bytes,
// and so are the parts of a row that a rotary embedding turns.
bool fits_vectors(const Kind& kind, const AppendParams& params);

// In stream order, without their parameters, which are the AppendParams for all; none where there is nothing to do. No
// memory is allocated.
struct Launches {
  std::array<LaunchSpec, 2> all;
  std::size_t count = 0;
};
Launches launches_of(const Kind& kind, const AppendParams& params);

// Waits until it is done. Addresses of the process.
void run_on_cpu(const Kind& kind, const AppendParams& params);

}  // namespace flashcore::append
