#pragma once
// Micro-tests of wgmma_ss_x4 and wgmma_rs_x4: 64 rows by kN columns, over 64 of k.

#include "kernels/conformance/accumulators.cuh"
#include "kernels/conformance/common.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace flashcore::conformance {

template <bool kBf16, bool kFromRegisters, int kN>
struct WgmmaX4 {
  FC_DEVICE static void run(const Arguments& p) {
    fill_shared<kBf16>(p, kSharedBytes / 4);
    ptx::fence_proxy_async();
    ptx::bar_sync();
    const ptx::SharedAddress smem_a = ptx::dynamic_shared(), smem_b = smem_a + kMatrixABytes;
    float d[kN / 2];
    set_accumulators(d);
    unsigned a[4][4];
    for (int k = 0; k < 4; ++k)
      for (int i = 0; i < 4; ++i) a[k][i] = pair<kBf16>(p, 16 * thread() + 4 * k + i);
    for (int k = 0; k < 4; ++k) ptx::warpgroup_fence_operand(a[k]);
    ptx::warpgroup_fence_operand(d);
    ptx::wgmma_fence();
    if constexpr (kFromRegisters) {
      ptx::wgmma_rs_x4<kBf16>(d, a, ptx::WgmmaDescriptor::of(smem_b, kMatrixABytes).low);
    } else {
      // Half of the widths overwrite what d holds.
      ptx::wgmma_ss_x4<kBf16>(d, ptx::WgmmaDescriptor::of(smem_a, 16).low, ptx::WgmmaDescriptor::of(smem_b, 16).low,
                              kN / 16 % 2);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::warpgroup_fence_operand(d);
    give_sample(p, d);
  }
};

}  // namespace flashcore::conformance
