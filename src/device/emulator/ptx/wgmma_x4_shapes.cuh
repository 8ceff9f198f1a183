#pragma once
// Four multiplies along k, as the hardware is given them: one after the other.

#include "kernels/ptx/common.cuh"
#include "kernels/ptx/wgmma_shapes.cuh"

namespace flashcore::ptx {

constexpr unsigned long long kWgmmaX4High = 0x40000040ull << 32;  // of WgmmaDescriptor::word

template <bool kBf16, int kCount>
FC_DEVICE void wgmma_ss_x4(float (&d)[kCount], unsigned a, unsigned b, int accumulate) {
  for (unsigned i = 0; i < 4; ++i)
    wgmma_ss<kBf16>(d, kWgmmaX4High | (a + 2 * i), kWgmmaX4High | (b + 2 * i), i > 0 || accumulate != 0);
}
template <bool kBf16, int kCount>
FC_DEVICE void wgmma_rs_x4(float (&d)[kCount], const unsigned (*a)[4], unsigned b) {
  for (unsigned i = 0; i < 4; ++i) wgmma_rs<kBf16, true>(d, a[i], kWgmmaX4High | (b + 128 * i), 1);
}

}  // namespace flashcore::ptx
