#pragma once
// PTX ISA, "vote.sync", "shfl.sync", "elect.sync". Full warp, every lane takes part. More of them in shuffle.cuh.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// True in every lane if `condition` holds in all.
FC_DEVICE bool vote_all(bool condition) {
  unsigned result;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nvote.sync.all.pred q, p, 0xffffffff;\nselp.u32 %0, 1, 0, q;\n}"
      : "=r"(result)
      : "r"(static_cast<unsigned>(condition)));
  return result;
}

// Bit l: whether `condition` holds in lane l. The same in every lane.
FC_DEVICE unsigned vote_ballot(bool condition) {
  unsigned result;
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\nvote.sync.ballot.b32 %0, p, 0xffffffff;\n}"
               : "=r"(result)
               : "r"(static_cast<unsigned>(condition)));
  return result;
}

// The value of the lane `delta` below or above; the lane's own where there is none.
FC_DEVICE float shfl_up(float value, int delta) {
  float result;
  asm volatile("shfl.sync.up.b32 %0, %1, %2, 0x0, 0xffffffff;" : "=f"(result) : "f"(value), "r"(delta));
  return result;
}
FC_DEVICE float shfl_down(float value, int delta) {
  float result;
  asm volatile("shfl.sync.down.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(result) : "f"(value), "r"(delta));
  return result;
}

// sm_90. True in one lane of the warp, the same one every time; which one is not said.
FC_DEVICE bool elect() {
  unsigned result;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(result)::"memory");
  return result;
}

}  // namespace flashcore::ptx
