#pragma once
// Multiplications with a cache of int4, two codes a byte. ldmatrix moves four of them, so a lane holds other columns
// than of bytes (quantised.cuh), t = lane % 4 and g = lane / 4:
//   Q·K  columns 8t .. 8t+7 of 32. Widening makes pairs of columns c and c + 4; Q's fragments take the same.
//   P·V  columns 4g .. 4g+3 of two keys, which the halves of a word are: a pair is one column of both keys, and each of
//        the four columns makes one multiplication. sort_nibble_columns puts O in order at the end.

#include "kernels/sm80_decode_fwd/config.h"
#include "kernels/tile/cache_nibbles.cuh"
#include "kernels/tile/softmax.cuh"

namespace flashcore::sm80_decode_fwd {

// Step d of 16 columns: half of the pairs of 32 columns in the rows of Q, four words of 16 and two of eight.
template <class Tile, int kWords>
FC_DEVICE void load_q_of_nibbles(unsigned (&q)[kWords], ptx::SharedAddress rows, int lane, int d) {
  constexpr int kRows = kWords / 2;  // of a lane
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int row = lane / 4 + i % kRows * 8, chunk = d / 2 * 4 + lane % 4, pair = d % 2 * 2 + i / kRows;
    const ptx::SharedAddress columns = rows + Tile::offset(row, chunk) + pair / 2 * 4;
    q[i] = ptx::prmt(ptx::ld_shared_u32(columns), ptx::ld_shared_u32(columns + 8), pair % 2 == 0 ? 0x5410u : 0x7632u);
  }
}

// Eight keys and four steps of 16 columns from step `at` on.
template <Traits T, int kSteps>
FC_DEVICE void multiply_nibble_keys(float (&acc_s)[4], const unsigned (&q)[kSteps][4], int at, unsigned low,
                                    unsigned high) {
  unsigned k[4];
  tile::widen_nibbles<operand_element(T)>(low, k);
  tile::mma<operand_element(T)>(acc_s, q[at], k[0], k[1]);
  tile::mma<operand_element(T)>(acc_s, q[at + 1], k[2], k[3]);
  tile::widen_nibbles<operand_element(T)>(high, k);
  tile::mma<operand_element(T)>(acc_s, q[at + 2], k[0], k[1]);
  tile::mma<operand_element(T)>(acc_s, q[at + 3], k[2], k[3]);
}

// 32 columns, of which each of the four chunks of O has every fourth, and two steps of eight keys.
template <Traits T, int kChunks>
FC_DEVICE void multiply_nibble_values(float (&acc_o)[kChunks][4], int chunk, const unsigned (&p)[4], unsigned low,
                                      unsigned high) {
  constexpr Element kE = operand_element(T);
  unsigned of_low[4], of_high[4];
  tile::widen_nibbles<operand_element(T)>(low, of_low);
  tile::widen_nibbles<operand_element(T)>(high, of_high);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    tile::mma<kE>(acc_o[chunk + i], p, of_low[i], of_high[i]);
  }
}

// From columns 8t + i and 8t + 4 + i of chunk i to pairs: 8t + 2i and the next.
template <int kChunks>
FC_DEVICE void sort_nibble_columns(float (&acc_o)[kChunks][4]) {
#pragma unroll
  for (int c = 0; c < kChunks; c += 4)
#pragma unroll
    for (int r = 0; r < 4; r += 2) {
      float columns[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) columns[i] = acc_o[c + i][r], columns[4 + i] = acc_o[c + i][r + 1];
#pragma unroll
      for (int i = 0; i < 4; ++i) acc_o[c + i][r] = columns[2 * i], acc_o[c + i][r + 1] = columns[2 * i + 1];
    }
}

}  // namespace flashcore::sm80_decode_fwd
