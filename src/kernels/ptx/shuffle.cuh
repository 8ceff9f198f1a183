#pragma once
// PTX ISA, "shfl.sync". Full warp, every lane takes part.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// The value of lane (own lane ^ mask).
FC_DEVICE float shfl_bfly(float value, int mask) {
  float result;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(result) : "f"(value), "r"(mask));
  return result;
}

}  // namespace flashcore::ptx
