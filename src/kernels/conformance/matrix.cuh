#pragma once
// Micro-tests of matrix multiplication.

#include "kernels/conformance/accumulators.cuh"
#include "kernels/conformance/common.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace flashcore::conformance {

template <bool kBf16>
struct Mma {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    unsigned a[4];
    float d[4];
    for (int i = 0; i < 4; ++i) a[i] = pair<kBf16>(p, 8 * t + i), d[i] = number(p, 1024 + 4 * t + i);
    const unsigned b0 = pair<kBf16>(p, 8 * t + 4), b1 = pair<kBf16>(p, 8 * t + 5);
    if constexpr (kBf16) ptx::mma_m16n8k16_bf16(d, a, b0, b1);
    else ptx::mma_m16n8k16_f16(d, a, b0, b1);
    for (int i = 0; i < 4; ++i) give(p, 4 * t + i, d[i]);
  }
};
// Two steps of k: a from shared memory or registers, b K-major or MN-major, added to what d holds. `sampled`: not
// every element.
template <bool kBf16, int kN, bool kFromRegisters, bool kTransposeB>
FC_DEVICE void multiply(const Arguments& p, bool sampled) {
  const int t = thread();
  const ptx::SharedAddress smem_a = ptx::dynamic_shared(), smem_b = smem_a + kMatrixABytes;
  float d[kN / 2];
  set_accumulators(d);
  unsigned a[2][4];
  for (int k = 0; k < 2; ++k)
    for (int i = 0; i < 4; ++i) a[k][i] = pair<kBf16>(p, 8 * t + 4 * k + i);
  const ptx::WgmmaDescriptor first_a = ptx::WgmmaDescriptor::of(smem_a, 16);
  const ptx::WgmmaDescriptor first_b = ptx::WgmmaDescriptor::of(smem_b, kTransposeB ? kMatrixABytes : 16);
  ptx::warpgroup_fence_operand(d);
  ptx::warpgroup_fence_operand(a[0]);
  ptx::warpgroup_fence_operand(a[1]);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const unsigned long long b = first_b.advanced(kTransposeB ? 2048 * k : 32 * k).word();
    if constexpr (kFromRegisters) ptx::wgmma_rs<kBf16, kTransposeB>(d, a[k], b, 1);
    else ptx::wgmma_ss<kBf16>(d, first_a.advanced(32 * k).word(), b, k);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::warpgroup_fence_operand(d);
  if (!sampled) {
    for (int i = 0; i < kN / 2; ++i) give(p, t * (kN / 2) + i, d[i]);
    return;
  }
  give_sample(p, d);
}

template <bool kBf16>
FC_DEVICE void fill_matrices(const Arguments& p) {
  fill_shared<kBf16>(p, kSharedBytes / 4);
  ptx::fence_proxy_async();
  ptx::bar_sync();
}

// What wgmma_ss, wgmma_rs and what goes with them do, every element.
template <bool kBf16, bool kFromRegisters, bool kTransposeB>
struct Wgmma {
  FC_DEVICE static void run(const Arguments& p) {
    fill_matrices<kBf16>(p);
    multiply<kBf16, 64, kFromRegisters, kTransposeB>(p, false);
  }
};
// One of the other widths.
template <bool kBf16, bool kFromRegisters, bool kTransposeB, int kN>
struct WgmmaWidth {
  FC_DEVICE static void run(const Arguments& p) {
    fill_matrices<kBf16>(p);
    multiply<kBf16, kN, kFromRegisters, kTransposeB>(p, true);
  }
};

}  // namespace flashcore::conformance
