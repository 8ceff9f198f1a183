#pragma once
// Which keys a row sees, which blocks of keys a tile of rows needs, and the mask of the blocks that are cut.

#include "kernels/ptx/math.cuh"
#include "kernels/tile/accumulator.cuh"
#include "kernels/tile/shared_layout.h"
#include "kernels/tile/traits.h"

namespace flashcore::tile {

// Params: the kernel's parameters, with seqlen_kv and causal_offset.
template <Traits T, class Params>
struct Mask {
  const Params& params;

  // The row sees the keys before this one. Less than 1: none.
  FC_DEVICE int key_end(int row) const {
    int end = params.seqlen_kv;
    if constexpr (T.causal) end = min_int(end, row + params.causal_offset + 1);
    return end;
  }
  // Blocks of kBlockN keys that the rows up to `last_row` see.
  template <int kBlockN>
  FC_DEVICE int blocks(int last_row) const {
    const int end = key_end(last_row);
    return end <= 0 ? 0 : (end + kBlockN - 1) / kBlockN;
  }
  // Whether a row from `first_row` on does not see all keys of the block.
  template <int kBlockN>
  FC_DEVICE bool cuts(int block, int first_row) const {
    return (block + 1) * kBlockN > key_end(first_row);
  }
  // Scores of the lane's two rows against a block whose first key of this lane is `first_key`.
  template <class Accumulator>
  FC_DEVICE void apply(Accumulator& scores, int first_key, const int (&rows)[2]) const {
    const int seen[2] = {key_end(rows[0]) - first_key, key_end(rows[1]) - first_key};
#pragma unroll
    for (int i = 0; i < kElements<Accumulator>; ++i) {
      if (column_of_element(i) >= seen[row_of_element(i)]) element(scores, i) = ptx::negative_infinity();
    }
  }
};

}  // namespace flashcore::tile
