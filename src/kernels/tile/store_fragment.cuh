#pragma once
// Rows of O straight from accumulators to global memory, where a lane holds four neighbouring columns of every 16.

#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/tile/accumulator.cuh"
#include "kernels/tile/element_fp8.cuh"

namespace flashcore::tile {

// Four columns of 8 bits in a word.
template <Element E>
FC_DEVICE unsigned pack_bytes(float a, float b, float c, float d) {
  if constexpr (E == Element::kE4M3) return ptx::cvt_e4m3x4(a, b, c, d);
  else return fp8_of_float<E>(a) | fp8_of_float<E>(b) << 8 | fp8_of_float<E>(c) << 16 | fp8_of_float<E>(d) << 24;
}

// Row r (0, 1) of the lane, times `scale`, rounded. Tile 2d of `acc` holds the even columns of the 16 from 16 d on,
// tile 2d + 1 the odd ones, so that lane t of a quad has columns 4t to 4t + 3. Lanes t and t ^ 1 exchange what they
// have of two neighbouring d, so that each stores 16 bytes. The whole warp takes part; `exists`: whether the row is to
// be stored. `row`: its first column, a multiple of 16 bytes.
template <Element E, int kTiles>
FC_DEVICE void store_even_odd(unsigned char* row, const float (&acc)[kTiles][4], int r, float scale, int lane,
                              bool exists) {
  const int t = lane % 4;
  const auto column = [&](int d, int i) { return acc[2 * d + i % 2][2 * r + i / 2] * scale; };
  if constexpr (is_8bit(E)) {
#pragma unroll
    for (int d = 0; d < kTiles / 2; ++d) {
      const unsigned word = pack_bytes<E>(column(d, 0), column(d, 1), column(d, 2), column(d, 3));
      if (exists) ptx::st_global_u32(reinterpret_cast<unsigned*>(row + 16 * d + 4 * t), word);
    }
  } else {
    constexpr int kPairs = kTiles / 4;
    const bool is_odd = t % 2 != 0;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      unsigned kept[2], given[2];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const unsigned first = pack<E>(column(2 * pair, 2 * part), column(2 * pair, 2 * part + 1));
        const unsigned second = pack<E>(column(2 * pair + 1, 2 * part), column(2 * pair + 1, 2 * part + 1));
        kept[part] = is_odd ? second : first;
        given[part] = ptx::bits_of_float(ptx::shfl_bfly(ptx::float_of_bits(is_odd ? first : second), 1));
      }
      if (exists) {
        ptx::st_global_v4(row + 64 * pair + 32 * (t % 2) + 16 * (t / 2),
                          is_odd ? ptx::Vector4{given[0], given[1], kept[0], kept[1]}
                                 : ptx::Vector4{kept[0], kept[1], given[0], given[1]});
      }
    }
    if constexpr (kTiles % 4 != 0) {
      constexpr int kLast = kTiles / 2 - 1;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const unsigned word = pack<E>(column(kLast, 2 * part), column(kLast, 2 * part + 1));
        if (exists) ptx::st_global_u32(reinterpret_cast<unsigned*>(row + 32 * kLast + 8 * t + 4 * part), word);
      }
    }
  }
}

}  // namespace flashcore::tile
