#pragma once
// The lengths of one sequence of a ragged batch, as masks and functions of scores ask for them.

#include "kernels/ptx/common.cuh"
#include "kernels/tile/traits.h"

namespace flashcore::tile {

struct Extent {
  int heads_q, seqlen_q, seqlen_kv;
  int right_offset, left_offset;

  // Of dense problems the lengths are the bounds.
  template <Traits T>
  FC_DEVICE static Extent of(const ForwardParams& bounds, const RaggedParams* ragged, int len_q, int len_kv) {
    int diagonal = 0;
    if constexpr (T.ragged) diagonal = ragged->is_bottom_right ? len_kv - len_q : 0;
    return {bounds.heads_q, len_q, len_kv, bounds.right_offset + diagonal, bounds.left_offset + diagonal};
  }
};

// What masks and scores of a kernel go by: the bounds themselves where all sequences are as long.
template <bool kRagged>
struct LengthsOfBatch {
  using Type = ForwardParams;
};
template <>
struct LengthsOfBatch<true> {
  using Type = Extent;
};
template <bool kRagged>
using LengthsOf = typename LengthsOfBatch<kRagged>::Type;

}  // namespace flashcore::tile
