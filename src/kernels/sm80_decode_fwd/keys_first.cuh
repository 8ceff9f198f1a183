#pragma once
// Multiplications for up to eight query rows, where m16n8k16 has 16 keys and later 16 columns of O as its rows, and the
// query rows as its eight columns: S and O transposed. With the query rows as the 16 rows half of each multiplication
// and of each accumulator would be of rows that do not exist; here a warp has half of the registers and of the
// multiplications, so that more warps wait for memory at once.
//
// A lane, g = lane / 4 and t = lane % 4, has query rows 2t and 2t + 1: of S against key g of every eight, of O in
// column g of every chunk. Q is operand b, with row g and columns 2t.

#include "kernels/ptx/movmatrix.cuh"
#include "kernels/sm80_decode_fwd/quantised.cuh"
#include "kernels/tile/mask.cuh"
#include "kernels/tile/partial.cuh"

namespace flashcore::sm80_decode_fwd {

// Of a lane's two rows: over the eight lanes that share them.
FC_DEVICE float octet_max(float value) {
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) value = ptx::max(value, ptx::shfl_bfly(value, mask));
  return value;
}
FC_DEVICE float octet_sum(float value) {
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) value += ptx::shfl_bfly(value, mask);
  return value;
}
FC_DEVICE float shfl_float(float value, int source) {
  return ptx::float_of_bits(static_cast<unsigned>(ptx::shfl_idx(static_cast<int>(ptx::bits_of_float(value)), source)));
}
// What lane 4·row has of a row, as the lane's own rows have it.
FC_DEVICE void spread_rows(float (&of_rows)[2], float own, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) of_rows[r] = shfl_float(own, lane % 4 * 8 + 4 * r);
}

// load_q_of_codes() of 16 bits.
template <class Tile>
FC_DEVICE void load_q_of_eight(unsigned (&q)[2], ptx::SharedAddress rows, int lane, int d) {
#pragma unroll
  for (int i = 0; i < 2; ++i)
    q[i] = ptx::ld_shared_u32(rows + Tile::offset(lane / 4, 2 * d + i) + 2 * tile::column_of_lane(lane));
}

// 16 keys or columns of O, of which acc[0] is the first eight and acc[1] the others, times 16 more.
template <Element E>
FC_DEVICE void multiply_eight_rows(float (&first)[2], float (&second)[2], const unsigned (&a)[4], unsigned b0,
                                   unsigned b1) {
  float d[4] = {first[0], first[1], second[0], second[1]};
  tile::mma<E>(d, a, b0, b1);
  first[0] = d[0], first[1] = d[1], second[0] = d[2], second[1] = d[3];
}

// Sixteen keys against the columns of one ldmatrix_x4: `codes` as of lane_columns_first.
template <Traits T, int kTiles, int kSteps>
FC_DEVICE void multiply_sixteen_keys(float (&acc_s)[kTiles][2], int n, const unsigned (&q)[kSteps][2], int at,
                                     const unsigned (&codes)[4]) {
  constexpr Element kE = operand_element(T);
  float(&first)[2] = acc_s[2 * n], (&second)[2] = acc_s[2 * n + 1];
  if constexpr (!has_quantised_cache(T)) {
    const unsigned a[4] = {codes[0], codes[2], codes[1], codes[3]};
    multiply_eight_rows<kE>(first, second, a, q[at][0], q[at][1]);
  } else {
    constexpr int kWide = code_steps(T);  // words that a word of codes becomes
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      unsigned low[kWide], high[kWide];
      if constexpr (has_nibbles(T)) {
        tile::widen_nibbles<kE>(codes[word], low);
        tile::widen_nibbles<kE>(codes[2 + word], high);
      } else {
        tile::widen<kE, element_of_cache(T)>(codes[word], low);
        tile::widen<kE, element_of_cache(T)>(codes[2 + word], high);
      }
#pragma unroll
      for (int i = 0; i < kWide; i += 2) {
        const unsigned a[4] = {low[i], high[i], low[i + 1], high[i + 1]};
        const int step = at + (word * kWide + i) / 2;
        multiply_eight_rows<kE>(first, second, a, q[step][0], q[step][1]);
      }
    }
  }
}

// Sixteen keys' values in the columns of one ldmatrix_x4_trans, from chunk `chunk` of O on: `codes` as of
// lane_rows_first.
template <Traits T, int kChunks>
FC_DEVICE void multiply_sixteen_values(float (&acc_o)[kChunks][2], int chunk, const unsigned (&p)[2],
                                       const unsigned (&codes)[4]) {
  constexpr Element kE = operand_element(T);
  if constexpr (!has_quantised_cache(T)) {
    const unsigned a[4] = {codes[0], codes[2], codes[1], codes[3]};
    multiply_eight_rows<kE>(acc_o[chunk], acc_o[chunk + 1], a, p[0], p[1]);
  } else {
    constexpr int kWide = code_steps(T);
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      unsigned low[kWide], high[kWide];
      if constexpr (has_nibbles(T)) {
        tile::widen_nibbles<kE>(codes[2 * word], low);
        tile::widen_nibbles<kE>(codes[2 * word + 1], high);
      } else {
        tile::widen<kE, element_of_cache(T)>(ptx::prmt(codes[2 * word], 0u, kEvenThenOdd), low);
        tile::widen<kE, element_of_cache(T)>(ptx::prmt(codes[2 * word + 1], 0u, kEvenThenOdd), high);
      }
#pragma unroll
      for (int i = 0; i < kWide; i += 2) {
        const unsigned a[4] = {low[i], low[i + 1], high[i], high[i + 1]};
        const int at = chunk + word * kWide + i;
        multiply_eight_rows<kE>(acc_o[at], acc_o[at + 1], a, p[0], p[1]);
      }
    }
  }
}

// tile::OnlineSoftmax of the lane's two rows.
struct SoftmaxOfEight : tile::SoftmaxState {
  template <int kCount>
  FC_DEVICE void update(float (&scores)[kCount][2], float scale_log2, float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float maximum = scores[0][r];
#pragma unroll
      for (int n = 1; n < kCount; ++n) maximum = ptx::max(maximum, scores[n][r]);
      const float before = max_scaled[r];
      max_scaled[r] = ptx::max(before, octet_max(maximum) * scale_log2);
      rescale[r] = tile::weight(before, max_scaled[r]);
      const float subtracted = tile::finite_max(max_scaled[r]);
      float total = 0.0f;
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        scores[n][r] = ptx::ex2(ptx::fma(scores[n][r], scale_log2, -subtracted));
        total += scores[n][r];
      }
      sum[r] = ptx::fma(sum[r], rescale[r], total);
    }
  }
  FC_DEVICE tile::RowState state() const {
    return {{max_scaled[0], max_scaled[1]}, {octet_sum(sum[0]), octet_sum(sum[1])}};
  }
};

// For tile::exchange.
struct LaneOfEight {
  int lane;
};
FC_DEVICE int number_of(LaneOfEight of) { return of.lane; }
FC_DEVICE int rows_of(LaneOfEight of) { return of.lane % 4; }
FC_DEVICE bool writes_state(LaneOfEight of) { return of.lane < 4; }

// tile::scale_rows.
template <int kCount>
FC_DEVICE void scale_eight_rows(float (&acc)[kCount][2], const float (&factor)[2]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n) acc[n][0] *= factor[0], acc[n][1] *= factor[1];
}

// Scores or weights times the factors of their keys; `first`: the word of the lane's first key.
template <int kTiles>
FC_DEVICE void multiply_by_factors(float (&of_keys)[kTiles][2], ptx::SharedAddress first) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const float factor = ptx::float_of_bits(ptx::ld_shared_u32(first + 32 * n));
    of_keys[n][0] *= factor, of_keys[n][1] *= factor;
  }
}
// The largest weight of a row, of all lanes that share it.
template <int kTiles>
FC_DEVICE float largest_weight(const float (&weights)[kTiles][2], int r) {
  float own = 0.0f;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) own = ptx::max(own, weights[n][r]);
  return octet_max(own);
}
template <int kTiles>
FC_DEVICE void scale_row(float (&weights)[kTiles][2], int r, float factor) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) weights[n][r] *= factor;
}

// The weights of keys 16·step .. 16·step + 15 as operand b.
template <Traits T, int kTiles>
FC_DEVICE void pack_weights(unsigned (&p)[2], const float (&weights)[kTiles][2], int step) {
  constexpr Element kE = operand_element(T);
  constexpr float kScale = T.token_factors ? 1.0f : weight_scale(T);  // else weights are scaled already
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float(&own)[2] = weights[2 * step + i];
    p[i] = ptx::movmatrix_trans(tile::pack<kE>(own[0] * kScale, own[1] * kScale));
  }
}

// tile::Mask::apply; `first_key`: the lane's.
template <class Mask, int kCount>
FC_DEVICE void mask_eight_rows(const Mask& mask, float (&scores)[kCount][2], int first_key, const int (&rows)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int begin = mask.begin_of(rows[r]) - first_key, end = mask.end_of(rows[r]) - first_key;
#pragma unroll
    for (int n = 0; n < kCount; ++n)
      if (8 * n < begin || 8 * n >= end) scores[n][r] = ptx::negative_infinity();
  }
}

// `marks`: of the lane's first key.
template <int kCount>
FC_DEVICE void spoil_missing(float (&scores)[kCount][2], ptx::SharedAddress marks) {
#pragma unroll
  for (int n = 0; n < kCount; ++n)
    if (ptx::ld_shared_u32(marks + 32 * n) != 0) scores[n][0] = scores[n][1] = ptx::float_of_bits(0x7fffffffu);
}

// The state as of 16 rows, of which the last eight have no key.
FC_DEVICE tile::RowState transpose_state(const tile::RowState& from, int lane) {
  tile::RowState to = {{ptx::negative_infinity(), ptx::negative_infinity()}, {0.0f, 0.0f}};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float maximum = shfl_float(from.maximum[r], lane / 8), total = shfl_float(from.total[r], lane / 8);
    if (lane / 4 % 2 == r) to.maximum[0] = maximum, to.total[0] = total;
  }
  return to;
}
// O as of 16 rows of which the last eight are zeros: a lane has row g and columns 2t and 2t + 1 of every chunk.
template <int kChunks>
FC_DEVICE void transpose_eight_rows(float (&to)[kChunks][4], const float (&from)[kChunks][2], int lane) {
  const bool odd = lane / 4 % 2 != 0;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int source = lane % 4 * 8 + 4 * i + lane / 8;
      const float even_row = shfl_float(from[c][0], source), odd_row = shfl_float(from[c][1], source);
      to[c][i] = odd ? odd_row : even_row;
      to[c][2 + i] = 0.0f;
    }
  }
}

}  // namespace flashcore::sm80_decode_fwd
