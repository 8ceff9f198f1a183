#pragma once
// Every group of a warpgroup's multiplies is waited for where it is committed: nothing runs under it.

#include "kernels/ptx/wgmma.cuh"

namespace flashcore::planted {

FC_DEVICE void wgmma_commit() {
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
}

}  // namespace flashcore::planted
