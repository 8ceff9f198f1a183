#pragma once
// PTX ISA, "atom": max. Relaxed: it orders nothing.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// The larger of what stands there and `value` stands there afterwards; returns what stood there before.
FC_DEVICE unsigned atomic_max_global(unsigned* address, unsigned value) {
  unsigned old;
  asm volatile("atom.relaxed.gpu.global.max.u32 %0, [%1], %2;" : "=r"(old) : "l"(address), "r"(value) : "memory");
  return old;
}

}  // namespace flashcore::ptx
