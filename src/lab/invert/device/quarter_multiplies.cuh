#pragma once
// One multiply in four: of the accumulator's tiles where a warp multiplies, of the steps along k where a warpgroup
// does. What the others would have read and written stays unknown to the compiler, so that it removes nothing else.

#include "kernels/ptx/wgmma.cuh"
#include "kernels/tile/element.cuh"

namespace flashcore::planted {

FC_DEVICE void keep(float& value) { value = ptx::float_of_bits(ptx::opaque(ptx::bits_of_float(value))); }

template <Element E, Element OfB = E>
FC_DEVICE void mma(int tile, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if (tile % 4 == 0) return tile::mma<E, OfB>(d, a, b0, b1);
#pragma unroll
  for (int i = 0; i < 4; ++i) ptx::opaque(a[i]), keep(d[i]);
  ptx::opaque(b0), ptx::opaque(b1);
}

template <bool kBf16, int kCount>
FC_DEVICE void wgmma_ss_x4(float (&d)[kCount], unsigned a, unsigned b, int accumulate) {
  ptx::wgmma_ss<kBf16>(d, ptx::WgmmaDescriptor{a}.word(), ptx::WgmmaDescriptor{b}.word(), accumulate);
}
template <bool kBf16, int kCount>
FC_DEVICE void wgmma_rs_x4(float (&d)[kCount], const unsigned (*a)[4], unsigned b) {
  ptx::wgmma_rs<kBf16, true>(d, a[0], ptx::WgmmaDescriptor{b}.word(), 1);
}

}  // namespace flashcore::planted
