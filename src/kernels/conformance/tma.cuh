#pragma once
// Micro-tests of the tensor memory accelerator.

#include "kernels/conformance/common.cuh"
#include "kernels/ptx/mbarrier.cuh"

namespace flashcore::conformance {

// A box of 64 columns × 16 rows in, seen as it lies in shared memory; and out again, partly outside the tensor.
struct Tma {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const ptx::SharedAddress tile = ptx::dynamic_shared(), barrier = tile + 16384;
    if (t == 0) {
      ptx::prefetch_tensormap(p.map_in);
      ptx::mbarrier_init(barrier, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(barrier, 4096);
      // The tensor has 24 rows: half of the second box lies outside. Its third dimension is entered at 1.
      ptx::tma_load_4d(tile, p.map_in, barrier, 0, 3, 1, 0);
      ptx::tma_load_4d(tile + 2048, p.map_in, barrier, 0, 16, 0, 0);
    }
    ptx::bar_sync();
    ptx::mbarrier_wait(barrier, 0);
    for (int i = t; i < 1024; i += kThreads) give(p, i, ptx::ld_shared_u32(tile + 4 * i));
    for (int i = t; i < 512; i += kThreads) ptx::st_shared_u32(tile + 8192 + 4 * i, pair<false>(p, i + 77));
    ptx::fence_proxy_async();
    ptx::bar_sync();
    if (t == 0) {
      ptx::tma_store_4d(p.map_out, tile + 8192, 0, 16, 1, 0);
      ptx::bulk_commit();
      ptx::bulk_wait_read<0>();
    }
  }
};

}  // namespace flashcore::conformance
