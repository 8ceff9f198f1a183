// The register-blocked matrix product that both S = Q·Kᵀ and O += P·V are made of.
// Included once per instruction set (see kernel.cpp), hence the toggling guard.
#if defined(FLASHCORE_CPU_FWD_MICRO_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHCORE_CPU_FWD_MICRO_KERNEL_INL_H_
#undef FLASHCORE_CPU_FWD_MICRO_KERNEL_INL_H_
#else
#define FLASHCORE_CPU_FWD_MICRO_KERNEL_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstdint>

#include "kernels/cpu_fwd/config.h"

HWY_BEFORE_NAMESPACE();
namespace flashcore::cpu_fwd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
inline constexpr int kLanes = HWY_LANES(float);

// A tile of kTileRows × 2 vectors stays in registers over the whole depth. Each step loads 2 vectors of B and one
// broadcast of A per row for 2 · kTileRows multiply-adds: 24 + 3 of 32 registers, or 12 + 3 of 16. Loads per
// multiply-add are then 14/24 (8/12), below the one per cycle and FMA unit that the load ports sustain, and 24 (12)
// independent chains are above the 8 to 10 that two units of latency 4 to 5 need.
inline constexpr bool k32Registers = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON;
inline constexpr int kTileRows = k32Registers ? 12 : 6;
inline constexpr int kPanelVectors = 2;
inline constexpr int kPanel = kPanelVectors * kLanes;  // columns of a packed panel
// B comes from the second-level cache, a panel after the other; asking for it 16 steps (200 cycles) ahead takes the
// tile from 82% to 84% of peak. The last steps ask for what follows the panels in scratch, which does no harm.
inline constexpr int kPrefetchSteps = 16;
static_assert(kTileRows <= ScratchLayout::kMaxTileRows && kPanel <= ScratchLayout::kPad);

// C[kRows][kVectors · kLanes] = start + A[kRows][depth] · B[depth][kPanel], where start is diag(rescale) · C with
// kAccumulate, else 0. A and C are row-major with strides a_stride and c_stride; B and C are vector-aligned.
template <int kRows, int kVectors, bool kAccumulate>
HWY_NOINLINE void multiply_tile(const float* HWY_RESTRICT a, std::int64_t a_stride, const float* HWY_RESTRICT b,
                                int depth, const float* HWY_RESTRICT rescale, float* HWY_RESTRICT c,
                                std::int64_t c_stride) {
  const FloatTag d;
  FloatVec acc[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) {
      if constexpr (kAccumulate) {
        acc[r][j] = hn::Mul(hn::Set(d, rescale[r]), hn::Load(d, c + r * c_stride + j * kLanes));
      } else {
        acc[r][j] = hn::Zero(d);
      }
    }
  }
  for (int k = 0; k < depth; ++k, b += kPanel) {
    FloatVec column[kVectors];
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) {
      column[j] = hn::Load(d, b + j * kLanes);
      hwy::Prefetch(b + kPrefetchSteps * kPanel + j * kLanes);
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const FloatVec x = hn::Set(d, a[r * a_stride + k]);
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) acc[r][j] = hn::MulAdd(x, column[j], acc[r][j]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) hn::Store(acc[r][j], d, c + r * c_stride + j * kLanes);
  }
}

// The same for any number of rows up to kTileRows and for `columns` of one panel: the largest tiles that fit, in turn.
template <bool kAccumulate, int kRows = kTileRows>
void multiply_panel(int rows, int columns, const float* a, std::int64_t a_stride, const float* b, int depth,
                    const float* rescale, float* c, std::int64_t c_stride) {
  if (rows >= kRows) {
    if (columns > kLanes) {
      multiply_tile<kRows, 2, kAccumulate>(a, a_stride, b, depth, rescale, c, c_stride);
    } else {
      multiply_tile<kRows, 1, kAccumulate>(a, a_stride, b, depth, rescale, c, c_stride);
    }
    rows -= kRows;
    a += kRows * a_stride;
    c += kRows * c_stride;
    if constexpr (kAccumulate) rescale += kRows;
  }
  if constexpr (kRows > 1) {
    if (rows == 0) return;
    constexpr int kNext = kRows > 8 ? 8 : kRows > 4 ? 4 : kRows / 2;
    multiply_panel<kAccumulate, kNext>(rows, columns, a, a_stride, b, depth, rescale, c, c_stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace flashcore::cpu_fwd
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
