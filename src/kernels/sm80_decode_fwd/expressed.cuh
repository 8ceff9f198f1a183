#pragma once
// Functions of the user's own on rows that pack the query heads of a key head: a lane's two rows may be of two heads.

#include "kernels/sm80_decode_fwd/deal.cuh"
#include "kernels/tile/expressed.cuh"

namespace flashcore::sm80_decode_fwd {

// The score function on scores of what K stands for, or the mask function. `rows`: the lane's, among all of the
// sequence and key head; `first_key`: of the lane's scores.
template <bool kMask, int kTiles>
FC_DEVICE void express(float (&acc_s)[kTiles][4], const Params& params, const ExpressionParams* expression_params,
                       const Extent& extent, const Run& run, const int (&rows)[2], int first_key) {
  const tile::Expressions<Extent> functions{extent, expression_params};
  int positions[2];
  tile::Head heads[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    positions[r] = params.by_group_size.quotient(rows[r]);
    heads[r] = {run.batch, run.head_kv * params.group_size + rows[r] - positions[r] * params.group_size, run.head_kv};
  }
  if constexpr (kMask) functions.mask(acc_s, heads, first_key, positions);
  else functions.score(acc_s, heads, first_key, positions);
}

}  // namespace flashcore::sm80_decode_fwd
