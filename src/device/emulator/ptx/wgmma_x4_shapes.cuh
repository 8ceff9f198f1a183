#pragma once
// Four multiplies along k, as the hardware is given them: one after the other.

#include "kernels/ptx/wgmma.cuh"

namespace flashcore::ptx {

template <bool kBf16, int kCount>
FC_DEVICE void wgmma_ss_x4(float (&d)[kCount], unsigned a, unsigned b, int accumulate) {
  for (unsigned i = 0; i < 4; ++i)
    wgmma_ss<kBf16>(d, WgmmaDescriptor{a + 2 * i}.word(), WgmmaDescriptor{b + 2 * i}.word(), i > 0 || accumulate != 0);
}
template <bool kBf16, int kCount>
FC_DEVICE void wgmma_rs_x4(float (&d)[kCount], const unsigned (*a)[4], unsigned b) {
  for (unsigned i = 0; i < 4; ++i) wgmma_rs<kBf16, true>(d, a[i], WgmmaDescriptor{b + 128 * i}.word(), 1);
}

}  // namespace flashcore::ptx
