#pragma once
// Factors of each row of q and of each key, of 8-bit operands (Traits::token_factors). Those of keys multiply the
// scores of a block; those of rows join the softmax's scale, so that they cost a multiplication for each row alone.

#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/tile/accumulator.cuh"
#include "kernels/tile/byte_softmax.cuh"
#include "kernels/tile/element_fp8.cuh"
#include "kernels/tile/shared_layout.h"

namespace flashcore::tile {

// What a lane's scores are taken by: one for all rows, or one for either of its two.
template <bool kByRow>
struct ScoreScale {
  using Type = float;
};
template <>
struct ScoreScale<true> {
  using Type = RowScales;
};

// The factors of a head's rows; of those past the last, which nobody stores, that of the last.
struct RowFactors {
  const float* first;
  int last_row;

  FC_DEVICE static RowFactors of(const Descale& by, int batch, int head, int rows) {
    return {by.values + static_cast<long long>(batch) * by.batch_stride + static_cast<long long>(head) * by.head_stride,
            rows - 1};
  }
  FC_DEVICE float at(int row) const { return ptx::ld_global_f32(first + min_int(row, last_row)); }
  FC_DEVICE RowScales scales(float scale, const int (&rows)[2]) const {
    return {{scale * at(rows[0]), scale * at(rows[1])}};
  }
};

// Keys of an accumulator's elements, from the lane's first one.
struct KeysInOrder {
  FC_DEVICE static constexpr int key(int element, int) { return column_of_element(element); }
};

// Scores of a block times the factors of their keys; `lane_key`: the lane's first one, within the block. Lanes load
// neighbouring factors and pass them on: with an address for each of a lane's keys, or a branch for blocks that end
// within the keys, 128 keys spilled up to 1 KB. All lanes of the warp take part.
template <class Keys, int kBlockN, class Accumulator>
FC_DEVICE void multiply_by_keys(Accumulator& scores, const RowFactors& of_keys, int block, int lane_key) {
  constexpr int kCount = kElements<Accumulator>;
  static_assert(kBlockN % 32 == 0);
  int loaded[kBlockN / 32];  // bits
#pragma unroll
  for (int i = 0; i < kBlockN / 32; ++i)
    loaded[i] = ptx::bits_of_float(of_keys.at(block * kBlockN + 32 * i + ptx::tid_x() % 32));
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int key = Keys::key(i + c, kCount);  // lane_key is too small to reach the next 32
      const float factor = ptx::float_of_bits(ptx::shfl_idx(loaded[key / 32], key % 32 + lane_key));
      element(scores, i + c) *= factor;
      element(scores, i + c + 2) *= factor;
    }
  }
}

}  // namespace flashcore::tile
