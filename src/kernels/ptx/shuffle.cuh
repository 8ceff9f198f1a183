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

// True in every lane if `condition` holds in any. PTX ISA, "vote.sync".
FC_DEVICE bool vote_any(bool condition) {
  unsigned result;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nvote.sync.any.pred q, p, 0xffffffff;\nselp.u32 %0, 1, 0, q;\n}"
      : "=r"(result)
      : "r"(static_cast<unsigned>(condition)));
  return result;
}

// The value of lane `source`, the same in every lane: tells the compiler that what follows is uniform in the warp.
FC_DEVICE int shfl_idx(int value, int source) {
  int result;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(result) : "r"(value), "r"(source));
  return result;
}

}  // namespace flashcore::ptx
