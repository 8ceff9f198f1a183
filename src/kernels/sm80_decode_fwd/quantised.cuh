#pragma once
// Multiplications with a quantised cache. K and V lie in shared memory as they are stored, a byte an element (int4:
// nibbles.cuh), and become 16-bit operands in registers. ldmatrix moves pairs of bytes, so the columns of what a lane
// holds are others than those of 16-bit tiles:
//   Q·K  a lane has bytes 4t .. 4t+3 of 16 columns, t = lane % 4. A sum over columns has any order, so Q's fragments
//        take the same one.
//   P·V  a lane has columns 2g and 2g+1 of two keys, g = lane / 4: even columns make one multiplication and odd ones
//        the next. sort_columns puts O in order at the end.

#include "kernels/sm80_decode_fwd/config.h"
#include "kernels/sm80_decode_fwd/nibbles.cuh"
#include "kernels/tile/cache_element.cuh"
#include "kernels/tile/key_factors.cuh"
#include "kernels/tile/shared_tile.cuh"
#include "kernels/tile/softmax.cuh"

namespace flashcore::sm80_decode_fwd {

// kColumns elements of K or V a row; of a quantised cache two make one 16-bit column, of int4 four.
template <Traits T, int kColumns>
using CacheTile = tile::SharedTile<kColumns * cache_bits(T) / 16, tile::SharedLayout::kXor>;
template <Traits T, int kColumns>
using QueryTile = tile::SharedTile<kColumns * q_bits(T) / 16, tile::SharedLayout::kXor>;

// Columns 16·d .. 16·d + 15 of Q, in the order of the codes: four words of 16 rows, two of eight.
template <class Tile, int kWords>
FC_DEVICE void load_q_of_bytes(unsigned (&q)[kWords], ptx::SharedAddress rows, int lane, int d) {
  constexpr int kRows = kWords / 2;  // of a lane
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int row = lane / 4 + i % kRows * 8, chunk = 2 * d + lane % 4 / 2;
    q[i] = ptx::ld_shared_u32(rows + Tile::offset(row, chunk) + lane % 2 * 8 + i / kRows * 4);
  }
}

// The same of Q of 8 bits, which becomes fp16 as K does: of a row a lane's four codes of 16 columns.
template <Traits T, class Tile, int kWords>
FC_DEVICE void widen_q_of_bytes(unsigned (&q)[kWords], ptx::SharedAddress rows, int lane, int d) {
  constexpr int kRows = kWords / 2;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    unsigned pairs[2];
    tile::widen<operand_element(T), T.element>(
        ptx::ld_shared_u32(rows + Tile::offset(lane / 4 + r * 8, d) + lane % 4 * 4), pairs);
    q[r] = pairs[0], q[kRows + r] = pairs[1];
  }
}

template <Traits T, class Tile, int kWords>
FC_DEVICE void load_q_of_codes(unsigned (&q)[kWords], ptx::SharedAddress rows, int lane, int d) {
  if constexpr (has_8bit_q(T)) widen_q_of_bytes<T, Tile>(q, rows, lane, d);
  else if constexpr (has_nibbles(T)) load_q_of_nibbles<Tile>(q, rows, lane, d);
  else load_q_of_bytes<Tile>(q, rows, lane, d);
}

// Rows of bf16 as fp16, each times a power of two that brings its largest finite magnitude to 2^14 and more; `undone`:
// times the inverse, what `undone` was. Elements below 2^-28 of their row's largest lose bits, far below what a sum in
// fp32 keeps.
template <int kSteps, int kWords>
FC_DEVICE void scale_rows_to_f16(unsigned (&q)[kSteps][kWords], float (&undone)[kWords / 2]) {
  constexpr int kRows = kWords / 2;
  constexpr unsigned kBias = 127, kTop = 14, kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    unsigned largest = 0;
#pragma unroll
    for (int d = 0; d < kSteps; ++d)
#pragma unroll
      for (int i = r; i < kWords; i += kRows)
#pragma unroll
        for (int shift = 0; shift < 32; shift += 16) {
          const unsigned bits = q[d][i] << (16 - shift) & kMagnitude;
          if (bits < kInfinity && bits > largest) largest = bits;
        }
    // Of magnitudes that are finite, so that their order is that of their bits.
    const unsigned exponent = ptx::bits_of_float(tile::quad_max(ptx::float_of_bits(largest))) >> 23 & 0xffu;
    const unsigned scale = exponent < kTop + 1 ? 2 * kBias - 1 : 2 * kBias + kTop - exponent;
    const float factor = ptx::float_of_bits(scale << 23);
    undone[r] *= ptx::float_of_bits((2 * kBias - scale) << 23);
#pragma unroll
    for (int d = 0; d < kSteps; ++d)
#pragma unroll
      for (int i = r; i < kWords; i += kRows)
        q[d][i] = tile::pack<Element::kF16>(ptx::float_of_bits(q[d][i] << 16) * factor,
                                            ptx::float_of_bits(q[d][i] & 0xffff0000u) * factor);
  }
}

// Weights of keys in fp16 are times 2^14, so that those of a long row's keys keep their bits; O is so much larger until
// a run ends.
constexpr float weight_scale(const Traits& t) {
  return has_quantised_cache(t) && operand_element(t) == Element::kF16 ? 16384.0f : 1.0f;
}

// Eight keys and the steps of 16 columns that two chunks of a row have, from step `at` of Q on.
template <Traits T, int kSteps>
FC_DEVICE void multiply_keys(float (&acc_s)[4], const unsigned (&q)[kSteps][4], int at, unsigned low, unsigned high) {
  if constexpr (has_nibbles(T)) {
    multiply_nibble_keys<T>(acc_s, q, at, low, high);
  } else {
    unsigned k[2];
    tile::widen<operand_element(T), element_of_cache(T)>(low, k);
    tile::mma<operand_element(T)>(acc_s, q[at], k[0], k[1]);
    tile::widen<operand_element(T), element_of_cache(T)>(high, k);
    tile::mma<operand_element(T)>(acc_s, q[at + 1], k[0], k[1]);
  }
}

// Sixteen keys, those of tiles 2n and 2n + 1, against the columns of one ldmatrix_x4: `codes` as of lane_columns_first.
template <Traits T, int kTiles, int kSteps>
FC_DEVICE void multiply_sixteen_keys(float (&acc_s)[kTiles][4], int n, const unsigned (&q)[kSteps][4], int at,
                                     const unsigned (&codes)[4]) {
  if constexpr (has_quantised_cache(T)) {
    multiply_keys<T>(acc_s[2 * n], q, at, codes[0], codes[1]);
    multiply_keys<T>(acc_s[2 * n + 1], q, at, codes[2], codes[3]);
  } else {
    tile::mma<T.element>(acc_s[2 * n], q[at], codes[0], codes[1]);
    tile::mma<T.element>(acc_s[2 * n + 1], q[at], codes[2], codes[3]);
  }
}

// Of a word of two keys' columns 2g and 2g + 1, for prmt.
constexpr unsigned kEvenThenOdd = 0x3120;

// 16 columns and two steps of eight keys.
template <Traits T>
FC_DEVICE void multiply_byte_values(float (&acc_even)[4], float (&acc_odd)[4], const unsigned (&p)[4], unsigned low,
                                    unsigned high) {
  unsigned of_low[2], of_high[2];
  tile::widen<operand_element(T), element_of_cache(T)>(ptx::prmt(low, 0u, kEvenThenOdd), of_low);
  tile::widen<operand_element(T), element_of_cache(T)>(ptx::prmt(high, 0u, kEvenThenOdd), of_high);
  tile::mma<operand_element(T)>(acc_even, p, of_low[0], of_high[0]);
  tile::mma<operand_element(T)>(acc_odd, p, of_low[1], of_high[1]);
}

// Two steps of eight keys, and the columns of O that one chunk of V's rows has, from chunk `chunk` of O on.
template <Traits T, int kChunks>
FC_DEVICE void multiply_values(float (&acc_o)[kChunks][4], int chunk, const unsigned (&p)[4], unsigned low,
                               unsigned high) {
  if constexpr (has_nibbles(T)) return multiply_nibble_values<T>(acc_o, chunk, p, low, high);
  else return multiply_byte_values<T>(acc_o[chunk], acc_o[chunk + 1], p, low, high);
}

// The weights of keys 16·step .. 16·step + 15 as operand a.
template <Traits T, int kTiles>
FC_DEVICE void pack_weights(unsigned (&p)[4], const float (&weights)[kTiles][4], int step) {
  if constexpr (has_quantised_cache(T)) {
    constexpr float kScale = T.token_factors ? 1.0f : weight_scale(T);  // else weights are scaled already
    const float scale[2] = {kScale, kScale};
    tile::pack_operand<operand_element(T)>(p, weights, step, scale);
  } else {
    tile::pack_operand<T.element>(p, weights, step);
  }
}

// Sixteen keys' values in the columns of one ldmatrix_x4_trans, from chunk `chunk` of O on: `codes` as of
// lane_rows_first.
template <Traits T, int kChunks>
FC_DEVICE void multiply_sixteen_values(float (&acc_o)[kChunks][4], int chunk, const unsigned (&p)[4],
                                       const unsigned (&codes)[4]) {
  if constexpr (has_quantised_cache(T)) {
    multiply_values<T>(acc_o, chunk, p, codes[0], codes[1]);
    multiply_values<T>(acc_o, chunk + code_steps(T), p, codes[2], codes[3]);
  } else {
    tile::mma<T.element>(acc_o[chunk], p, codes[0], codes[1]);
    tile::mma<T.element>(acc_o[chunk + 1], p, codes[2], codes[3]);
  }
}

// Scores or weights times the factors of their keys; `first`: the word of the lane's first key.
template <int kTiles>
FC_DEVICE void multiply_by_factors(float (&of_keys)[kTiles][4], ptx::SharedAddress first) {
  float own[kTiles][2];
  tile::load_factors(own, first);
  tile::multiply_columns(of_keys, own);
}
// The largest weight of a row, of all lanes that share it.
template <int kTiles>
FC_DEVICE float largest_weight(const float (&weights)[kTiles][4], int r) {
  float own = 0.0f;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) own = ptx::max(own, ptx::max(weights[n][2 * r], weights[n][2 * r + 1]));
  return tile::quad_max(own);
}
template <int kTiles>
FC_DEVICE void scale_row(float (&weights)[kTiles][4], int r, float factor) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) weights[n][2 * r] *= factor, weights[n][2 * r + 1] *= factor;
}

// Weights times the factors of their values, where each value has its own, in units of a power of two that the largest
// of a row is less than twice of: fp16 holds them as it holds weights. The unit follows the largest: a new one raises
// it, and a larger maximum of scores, under which those before weigh less, lowers it; O is rescaled for both. Each row
// has its own: by factors alone, keys that a row does not see, or that weigh nothing, would take the bits of the
// others.
struct ValueUnit {
  // The least exponent is one with which 2^14 / unit and unit / 2^14 are normal numbers. No static members: they would
  // be constants of every kernel, with them or without.
  enum : int { kBias = 127, kTop = 14, kLeast = kTop + 1 };
  float largest[2];  // of the lane's rows, as their weights are now

  FC_DEVICE void reset() { largest[0] = largest[1] = 0.0f; }
  FC_DEVICE int exponent(int r) const {  // biased
    return tile::max_int(static_cast<int>(ptx::bits_of_float(largest[r]) >> 23), +kLeast);
  }
  // What a weight is multiplied with.
  FC_DEVICE float to_weight(int r) const { return ptx::float_of_bits((2 * kBias + kTop - exponent(r)) << 23); }
  // What O is multiplied with at the end.
  FC_DEVICE float undone(int r) const { return ptx::float_of_bits((exponent(r) - kTop) << 23); }
  // By the largest of a row's weights of a block and what those before it weigh now, `rescale`; what O so far is
  // multiplied with beside that.
  FC_DEVICE float follow(float largest_of_block, float rescale, int r) {
    const int before = exponent(r);
    largest[r] = ptx::max(largest_of_block, largest[r] * rescale);
    const int above = exponent(r) - before;
    // Far below is only what follows an O of 0.
    return above < kBias ? ptx::float_of_bits((kBias - tile::max_int(above, -kBias)) << 23) : 0.0f;
  }
};

// From even and odd columns, 4t, 4t+2 and 4t+1, 4t+3 of 16, to pairs: 4t, 4t+1 and 4t+2, 4t+3.
template <int kChunks>
FC_DEVICE void sort_byte_columns(float (&acc_o)[kChunks][4]) {
#pragma unroll
  for (int c = 0; c < kChunks; c += 2)
#pragma unroll
    for (int r = 0; r < 4; r += 2) {
      const float second = acc_o[c][r + 1];
      acc_o[c][r + 1] = acc_o[c + 1][r], acc_o[c + 1][r] = second;
    }
}

// O is what it stands for after that.
template <Traits T, int kChunks>
FC_DEVICE void sort_columns(float (&acc_o)[kChunks][4], float first = 1.0f / weight_scale(T),
                            float second = 1.0f / weight_scale(T)) {
  if constexpr (weight_scale(T) != 1.0f) {
    const float undone[2] = {first, second};
    tile::scale_rows(acc_o, undone);
  }
  if constexpr (has_nibbles(T)) sort_nibble_columns(acc_o);
  else sort_byte_columns(acc_o);
}

// NaN to the scores of keys whose page does not exist; `marks`: a word for each key from the lane's first on.
template <int kTiles>
FC_DEVICE void spoil_missing(float (&acc_s)[kTiles][4], ptx::SharedAddress marks) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (ptx::ld_shared_u32(marks + 4 * (8 * n + i)) != 0)
        acc_s[n][i] = acc_s[n][i + 2] = ptx::float_of_bits(0x7fffffffu);
}

}  // namespace flashcore::sm80_decode_fwd
