#pragma once
// Micro-tests of matrix multiplication of 8-bit floats.

#include "kernels/conformance/common.cuh"
#include "kernels/ptx/mma_fp8.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_fp8_shapes.cuh"

namespace flashcore::conformance {

// Four operands. `exact`: ±1, 1.25, 1.5 or 1.75, whose sums need a dozen bits and so are the same in any order and with
// any truncation: what these tests compare is where each element lies. Else any number below 2, subnormals included.
template <bool kE5m2>
FC_DEVICE unsigned four(const Arguments& p, int i, bool exact) {
  const unsigned raw = word(p, kRawWords + i % kRegionWords);
  if (!exact) return raw & 0xbfbfbfbfu;
  return kE5m2 ? (raw & 0x83838383u) | 0x3c3c3c3cu : (raw & 0x86868686u) | 0x38383838u;
}

template <bool kE5m2, bool kExact>
struct MmaFp8 {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    unsigned a[4];
    float d[4];
    for (int i = 0; i < 4; ++i) {
      a[i] = four<kE5m2>(p, 8 * t + i, kExact);
      d[i] = kExact ? static_cast<float>(4 * t + i) * 0.0625f - 8.0f : number(p, 1024 + 4 * t + i);
    }
    const unsigned b0 = four<kE5m2>(p, 8 * t + 4, kExact), b1 = four<kE5m2>(p, 8 * t + 5, kExact);
    if constexpr (kE5m2) ptx::mma_m16n8k32_e5m2(d, a, b0, b1);
    else ptx::mma_m16n8k32_e4m3(d, a, b0, b1);
    for (int i = 0; i < 4; ++i) give(p, 4 * t + i, d[i]);
  }
};

// Two steps of k, added to what d holds; a from shared memory or registers.
template <bool kE5m2, bool kFromRegisters, int kN, bool kExact>
FC_DEVICE void multiply(const Arguments& p, float (&d)[kN / 2]) {
  const int t = thread();
  const ptx::SharedAddress smem_a = ptx::dynamic_shared(), smem_b = smem_a + kMatrixABytes;
  for (int i = t; i < kSharedBytes / 4; i += kThreads) ptx::st_shared_u32(smem_a + 4 * i, four<kE5m2>(p, i, kExact));
  ptx::fence_proxy_async();
  ptx::bar_sync();
  const float first = static_cast<float>(t) * 0.125f - 12.0f;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) d[i] = first + 0.0625f * static_cast<float>(i % 64);
  unsigned a[2][4];
  for (int k = 0; k < 2; ++k)
    for (int i = 0; i < 4; ++i) a[k][i] = four<kE5m2>(p, 8 * t + 4 * k + i, kExact);
  const ptx::WgmmaDescriptor first_a = ptx::WgmmaDescriptor::of(smem_a, 16);
  const ptx::WgmmaDescriptor first_b = ptx::WgmmaDescriptor::of(smem_b, 16);
  ptx::warpgroup_fence_operand(d);
  ptx::warpgroup_fence_operand(a[0]);
  ptx::warpgroup_fence_operand(a[1]);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const unsigned long long b = first_b.advanced(32 * k).word();
    if constexpr (kFromRegisters) ptx::wgmma_fp8_rs<kE5m2>(d, a[k], b, 1);
    else ptx::wgmma_fp8_ss<kE5m2>(d, first_a.advanced(32 * k).word(), b, k);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::warpgroup_fence_operand(d);
}

// Every element.
template <bool kE5m2, bool kFromRegisters, bool kExact>
struct WgmmaFp8 {
  FC_DEVICE static void run(const Arguments& p) {
    float d[32];
    multiply<kE5m2, kFromRegisters, 64, kExact>(p, d);
    for (int i = 0; i < 32; ++i) give(p, thread() * 32 + i, d[i]);
  }
};
// One of the other widths: four elements of each thread stand for all of them.
template <bool kE5m2, bool kFromRegisters, int kN>
struct WgmmaFp8Width {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    float d[kN / 2];
    multiply<kE5m2, kFromRegisters, kN, true>(p, d);
    // Constant indices: an accumulator that is indexed at run time would leave the registers.
    float moving = 0.0f;
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) moving = t % (kN / 2) == i ? d[i] : moving;
    give(p, 4 * t, d[0]);
    give(p, 4 * t + 1, d[kN / 4]);
    give(p, 4 * t + 2, d[kN / 2 - 1]);
    give(p, 4 * t + 3, moving);
  }
};

}  // namespace flashcore::conformance
