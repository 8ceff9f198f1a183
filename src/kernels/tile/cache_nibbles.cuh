#pragma once
// int4 of a quantised cache as 16-bit elements that tensor cores multiply with q: exact. Nibbles stay where they are in
// their half of a word, so that a mask and an offset widen two of them: no byte is moved.

#include "kernels/ptx/prmt.cuh"
#include "kernels/tile/element_fp8.cuh"

namespace flashcore::tile {

// Eight codes, the lowest nibble first, as four pairs: pairs[i] has the codes i and i + 4. A nibble below the mantissa
// of 2^10 in fp16, or shifted by four below that of 2^6, is a number of its own; its sign bit, inverted, makes it x
// + 8.
template <Element E>
FC_DEVICE void widen_nibbles(unsigned codes, unsigned (&pairs)[4]) {
  constexpr unsigned kLow = 0x000f000fu, kHigh = 0x00f000f0u;
  constexpr unsigned kLowOffsets = 0x64086408u;   // 2^10 + 8, twice
  constexpr unsigned kHighOffsets = 0x54805480u;  // 2^6 + 8, twice
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned word = codes >> 8 * i;
    pairs[2 * i] = ptx::sub_f16x2((word & kLow) ^ kLowOffsets, kLowOffsets);
    pairs[2 * i + 1] = ptx::sub_f16x2((word & kHigh) ^ kHighOffsets, kHighOffsets);
  }
  if constexpr (E == Element::kBF16) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pairs[i] = pack<E>(ptx::cvt_f32_f16(static_cast<unsigned short>(pairs[i])),
                         ptx::cvt_f32_f16(static_cast<unsigned short>(pairs[i] >> 16)));
  }
}

}  // namespace flashcore::tile
