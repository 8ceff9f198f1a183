#pragma once
// Micro-tests of how tiles lie in shared memory: every swizzle of tensor maps and of matrix descriptors.

#include "kernels/conformance/common.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_layouts.cuh"

namespace flashcore::conformance {

// Boxes of 16 rows of kBytes in, seen as they lie in shared memory; and one out again, partly outside the tensor. The
// test's map has the swizzle.
template <int kBytes>
struct TmaSwizzle {
  FC_DEVICE static void run(const Arguments& p) {
    constexpr int kBox = 16 * kBytes;
    const int t = thread();
    const ptx::SharedAddress tile = ptx::dynamic_shared(), barrier = tile + 16384;
    if (t == 0) {
      ptx::mbarrier_init(barrier, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(barrier, 2 * kBox);
      ptx::tma_load_4d(tile, p.map_in, barrier, 8, 3, 1, 0);
      ptx::tma_load_4d(tile + 2048, p.map_in, barrier, kTensorColumns - 8, 16, 0, 0);
    }
    ptx::bar_sync();
    ptx::mbarrier_wait(barrier, 0);
    for (int i = t; i < kBox / 4; i += kThreads) {
      give(p, i, ptx::ld_shared_u32(tile + 4 * i));
      give(p, kBox / 4 + i, ptx::ld_shared_u32(tile + 2048 + 4 * i));
      ptx::st_shared_u32(tile + 8192 + 4 * i, pair<false>(p, i + 77));
    }
    ptx::fence_proxy_async();
    ptx::bar_sync();
    if (t == 0) {
      ptx::tma_store_4d(p.map_out, tile + 8192, 16, 16, 1, 0);
      ptx::bulk_commit();
      ptx::bulk_wait_read<0>();
    }
  }
};

// m64n64k16 of fp16 through a descriptor of that swizzle (bytes; 0: none). kForm 0: both operands K-major in shared
// memory; 1: a in registers, b K-major; 2: a in registers, b MN-major. Leading and stride offsets that differ.
template <int kSwizzle, int kForm>
struct WgmmaLayout {
  FC_DEVICE static void run(const Arguments& p) {
    constexpr auto kMode = kSwizzle == 128  ? ptx::WgmmaSwizzle::k128
                           : kSwizzle == 64 ? ptx::WgmmaSwizzle::k64
                           : kSwizzle == 32 ? ptx::WgmmaSwizzle::k32
                                            : ptx::WgmmaSwizzle::kNone;
    constexpr int kUnit = 8 * (kSwizzle == 0 ? 16 : kSwizzle);  // bytes
    constexpr int kSteps = kSwizzle >= 64 ? 2 : 1;              // of k within the swizzle's width
    // K-major: 16-byte columns of a unit interleaved, or all rows of one column first. The swizzles ignore `leading`.
    constexpr int kLeadingA = 128, kStrideA = kSwizzle == 128 ? kUnit : 2 * kUnit;
    constexpr int kLeadingB = kForm < 2 ? 1024 : kSwizzle == 0 ? 1024 : 2 * kUnit;
    constexpr int kStrideB = kUnit;
    const int t = thread();
    const ptx::SharedAddress smem_a = ptx::dynamic_shared(), smem_b = smem_a + kMatrixABytes;
    fill_shared<false>(p, kSharedBytes / 4);
    ptx::fence_proxy_async();
    ptx::bar_sync();
    float d[32];
    unsigned a[2][4];
    for (int i = 0; i < 32; ++i) d[i] = static_cast<float>(t) * 0.125f + 0.0625f * static_cast<float>(i);
    for (int k = 0; k < 2; ++k)
      for (int i = 0; i < 4; ++i) a[k][i] = pair<false>(p, 8 * t + 4 * k + i);
    ptx::warpgroup_fence_operand(d);
    ptx::warpgroup_fence_operand(a[0]);
    ptx::warpgroup_fence_operand(a[1]);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int advance = kForm < 2 ? 32 * k : 4096 * k;
      const unsigned long long b = ptx::wgmma_descriptor(smem_b + advance, kLeadingB, kStrideB, kMode);
      const unsigned long long from = ptx::wgmma_descriptor(smem_a + advance, kLeadingA, kStrideA, kMode);
      if constexpr (kForm == 0) ptx::wgmma_ss<false>(d, from, b, 1);
      else ptx::wgmma_rs<false, kForm == 2>(d, a[k], b, 1);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::warpgroup_fence_operand(d);
    for (int i = 0; i < 32; ++i) give(p, 32 * t + i, d[i]);
  }
};

}  // namespace flashcore::conformance
