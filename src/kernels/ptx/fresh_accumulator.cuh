#pragma once
// Accumulators of a wgmma chain that begins with d = a·b.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// Before the first wgmma of such a chain. The instruction names its accumulators as both read and written; without a
// definition here the compiler takes what they held before as read, keeps it alive until then, and registers that other
// values could have used are lost.
template <int kCount>
FC_DEVICE void fresh_accumulator(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "=f"(values[i])::"memory");
}

}  // namespace flashcore::ptx
