#pragma once
// The mask (core/band.h) as kernels ask for it: which blocks of keys a tile of rows needs, which of them are cut, and
// the scores of those. Bounds that the traits do not have cost nothing.

#include "core/band.h"
#include "kernels/ptx/math.cuh"
#include "kernels/tile/accumulator.cuh"
#include "kernels/tile/shared_layout.h"
#include "kernels/tile/traits.h"

namespace flashcore::tile {

// Blocks begin .. end - 1 of keys.
struct BlockRange {
  int begin, end;
  FC_DEVICE int count() const { return end - begin; }
};

// On which sides a block has keys that some rows do not see.
struct Cut {
  bool right, left;
  FC_DEVICE bool any() const { return right || left; }
};

// Params: the kernel's parameters, with seqlen_kv, left_offset and right_offset.
template <Traits T, class Params>
struct Mask {
  static constexpr bool kBounded = T.bounded_left || T.bounded_right;
  // Later rows see more keys, so that tiles differ in length: not in a window, whose tiles all see about as many.
  static constexpr bool kLongestLast = T.bounded_right && !T.bounded_left;

  const Params& params;

  FC_DEVICE Band<int> band() const {
    return {params.seqlen_kv, T.bounded_left, T.bounded_right, params.left_offset, params.right_offset};
  }
  FC_DEVICE KeyRange<int> keys_of_row(int row) const { return band().keys_of_row(row); }
  FC_DEVICE int begin_of(int row) const { return T.bounded_left ? band().begin_of(row) : 0; }
  FC_DEVICE int end_of(int row) const { return T.bounded_right ? band().end_of(row) : params.seqlen_kv; }

  // Blocks of kBlockN keys that some of the rows see.
  template <int kBlockN>
  FC_DEVICE BlockRange blocks(int first_row, int last_row) const {
    const int begin = begin_of(first_row), end = end_of(last_row);
    if (end <= begin) return {0, 0};
    return {begin / kBlockN, (end + kBlockN - 1) / kBlockN};
  }
  // Where some of the rows do not see all keys of the block.
  template <int kBlockN>
  FC_DEVICE Cut cut(int block, int first_row, int last_row) const {
    return {(block + 1) * kBlockN > end_of(first_row), T.bounded_left && block * kBlockN < begin_of(last_row)};
  }
  // Scores of the lane's two rows against a block of which the lane's first key is `first_key`. Side by side: a block
  // of a long window is cut on one, and half of the comparisons are saved.
  template <class Accumulator>
  FC_DEVICE void apply(Accumulator& scores, Cut cut, int first_key, const int (&rows)[2]) const {
    if (cut.right || !T.bounded_left) {
      const int end[2] = {end_of(rows[0]) - first_key, end_of(rows[1]) - first_key};
#pragma unroll
      for (int i = 0; i < kElements<Accumulator>; ++i) {
        if (column_of_element(i) >= end[row_of_element(i)]) element(scores, i) = ptx::negative_infinity();
      }
    }
    if (cut.left) {
      const int begin[2] = {begin_of(rows[0]) - first_key, begin_of(rows[1]) - first_key};
#pragma unroll
      for (int i = 0; i < kElements<Accumulator>; ++i) {
        if (column_of_element(i) < begin[row_of_element(i)]) element(scores, i) = ptx::negative_infinity();
      }
    }
  }
};

}  // namespace flashcore::tile
