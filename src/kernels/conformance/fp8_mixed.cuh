#pragma once
// Micro-tests of matrix multiplication of e4m3 (a) and e5m2 (b). By themselves: recordings of fp8.cuh's tests depend on
// that file's text.

#include "kernels/conformance/common.cuh"
#include "kernels/ptx/mma_fp8.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_fp8_shapes.cuh"

namespace flashcore::conformance {

// Four operands. `exact`: ±1, 1.25, 1.5 or 1.75, whose sums need a dozen bits and so are the same in any order and with
// any truncation. Read as the other type each is another number: what these tests compare is where an element lies, and
// which of the two it is. Else any number below 2, subnormals included.
template <bool kExact>
FC_DEVICE unsigned four_e4m3(const Arguments& p, int i) {
  const unsigned raw = word(p, kRawWords + i % kRegionWords);
  return kExact ? (raw & 0x86868686u) | 0x38383838u : raw & 0xbfbfbfbfu;
}
template <bool kExact>
FC_DEVICE unsigned four_e5m2(const Arguments& p, int i) {
  const unsigned raw = word(p, kRawWords + i % kRegionWords);
  return kExact ? (raw & 0x83838383u) | 0x3c3c3c3cu : raw & 0xbfbfbfbfu;
}

template <bool kExact>
struct MmaFp8Mixed {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    unsigned a[4];
    float d[4];
    for (int i = 0; i < 4; ++i) {
      a[i] = four_e4m3<kExact>(p, 8 * t + i);
      d[i] = kExact ? static_cast<float>(4 * t + i) * 0.0625f - 8.0f : number(p, 1024 + 4 * t + i);
    }
    ptx::mma_m16n8k32_e4m3_e5m2(d, a, four_e5m2<kExact>(p, 8 * t + 4), four_e5m2<kExact>(p, 8 * t + 5));
    for (int i = 0; i < 4; ++i) give(p, 4 * t + i, d[i]);
  }
};

// Two steps of k, added to what d holds; a from registers.
template <int kN, bool kExact>
FC_DEVICE void multiply_mixed(const Arguments& p, float (&d)[kN / 2]) {
  const int t = thread();
  const ptx::SharedAddress smem = ptx::dynamic_shared();
  for (int i = t; i < kSharedBytes / 4; i += kThreads) ptx::st_shared_u32(smem + 4 * i, four_e5m2<kExact>(p, i));
  ptx::fence_proxy_async();
  ptx::bar_sync();
  const float first = static_cast<float>(t) * 0.125f - 12.0f;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) d[i] = first + 0.0625f * static_cast<float>(i % 64);
  unsigned a[2][4];
  for (int k = 0; k < 2; ++k)
    for (int i = 0; i < 4; ++i) a[k][i] = four_e4m3<kExact>(p, 8 * t + 4 * k + i);
  const ptx::WgmmaDescriptor b = ptx::WgmmaDescriptor::of(smem, 16);
  ptx::warpgroup_fence_operand(d);
  ptx::warpgroup_fence_operand(a[0]);
  ptx::warpgroup_fence_operand(a[1]);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 2; ++k) ptx::wgmma_fp8_rs<false, true>(d, a[k], b.advanced(32 * k).word(), 1);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::warpgroup_fence_operand(d);
}

// Every element.
template <bool kExact>
struct WgmmaFp8Mixed {
  FC_DEVICE static void run(const Arguments& p) {
    float d[32];
    multiply_mixed<64, kExact>(p, d);
    for (int i = 0; i < 32; ++i) give(p, thread() * 32 + i, d[i]);
  }
};
// One of the other widths: four elements of each thread stand for all of them.
template <int kN>
struct WgmmaFp8MixedWidth {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    float d[kN / 2];
    multiply_mixed<kN, true>(p, d);
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
