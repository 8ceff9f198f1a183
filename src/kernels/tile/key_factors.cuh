#pragma once
// Factors of a block's keys in shared memory, of a cache where each key has its own (Traits::token_factors): what a
// lane multiplies its columns of scores or of weights with.

#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"

namespace flashcore::tile {

// Of the warp's keys; `first`: the word of the lane's first one.
template <int kTiles>
FC_DEVICE void load_factors(float (&factors)[kTiles][2], ptx::SharedAddress first) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) factors[n][i] = ptx::float_of_bits(ptx::ld_shared_u32(first + 4 * (8 * n + i)));
}
template <int kTiles>
FC_DEVICE void multiply_columns(float (&acc_s)[kTiles][4], const float (&factors)[kTiles][2]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) acc_s[n][i] *= factors[n][i % 2];
}

}  // namespace flashcore::tile
