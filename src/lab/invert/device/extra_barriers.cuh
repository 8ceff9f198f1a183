#pragma once
// A barrier more wherever threads meet: every CTA barrier three times, a barrier of the warpgroup before each group of
// its multiplies is committed, one of the warp before each exchange between lanes. FC_FREE_BARRIER is the first of the
// named barriers that the family does not use, FC_FREE_BARRIERS how many follow each other.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace flashcore::planted {

FC_DEVICE void bar_sync() { ptx::bar_sync(), ptx::bar_sync(), ptx::bar_sync(); }
FC_DEVICE void bar_sync(int id, int threads) { ptx::bar_sync(id, threads); }
FC_DEVICE float shfl_bfly(float value, int mask) {
  ptx::bar_warp_sync();
  return ptx::shfl_bfly(value, mask);
}
FC_DEVICE void wgmma_commit() {
  const int warpgroup = ptx::tid_x() / 128;
  if (warpgroup < FC_FREE_BARRIERS) ptx::bar_sync(FC_FREE_BARRIER + warpgroup, 128);
  ptx::wgmma_commit();
}

}  // namespace flashcore::planted
