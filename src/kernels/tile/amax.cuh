#pragma once
// Largest magnitudes (Traits::amax): [2, heads_q], of scores as the softmax takes them, then of o before it is rounded.
// Numbers that are not negative compare as their bits do, so that CTAs raise them in any order.

#include "kernels/ptx/atomic_max.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/tile/accumulator.cuh"
#include "kernels/tile/amax_params.h"

namespace flashcore::tile {

// A kernel's parameters of 8-bit problems.
template <bool kAmax>
struct Fp8ParamsOf {
  using Type = Fp8ForwardParams;
};
template <>
struct Fp8ParamsOf<true> {
  using Type = AmaxFp8ForwardParams;
};
template <Traits T>
using Fp8Params = typename Fp8ParamsOf<T.amax>::Type;
FC_DEVICE const Fp8ForwardParams& plain_of(const Fp8ForwardParams& params) { return params; }
FC_DEVICE const Fp8ForwardParams& plain_of(const AmaxFp8ForwardParams& params) { return params.plain; }
FC_DEVICE float* amax_of(const Fp8ForwardParams&) { return nullptr; }
FC_DEVICE float* amax_of(const AmaxFp8ForwardParams& params) { return params.amax; }

// The larger of `largest` and |value|; NaN does not count.
FC_DEVICE float larger(float largest, float value) { return ptx::max(largest, ptx::max(value, -value)); }

// A base that keeps the largest magnitudes of the scores of a lane's two rows, over a tile. A member would change what
// ptxas makes of kernels without.
template <bool kHas>
struct AmaxOfRows {};
template <>
struct AmaxOfRows<true> {
  float of[2];

  FC_DEVICE void reset_amax() { of[0] = of[1] = 0.0f; }
  // Hidden scores are -inf. Asked of every block's: a branch for those without any made ptxas serialise wgmma beside O
  // of more than 128 columns (C7511).
  template <class Accumulator>
  FC_DEVICE void note(const Accumulator& scores) {
#pragma unroll
    for (int i = 0; i < kElements<Accumulator>; ++i) {
      const float s = element(scores, i);
      const int r = row_of_element(i);
      if (s != ptx::negative_infinity()) of[r] = larger(of[r], s);
    }
  }
};
// The same of a warp with several fragments of 16 rows, and where they go.
template <bool kHas, int kFragments>
struct AmaxOfFragments {};
template <int kFragments>
struct AmaxOfFragments<true, kFragments> {
  AmaxOfRows<true> largest[kFragments];
  float* amax;
};

FC_DEVICE void raise(float* largest, float value) {
  ptx::atomic_max_global(reinterpret_cast<unsigned*>(largest), static_cast<unsigned>(ptx::bits_of_float(value)));
}
// Of a head; all lanes of a warp give theirs, as the softmax takes scores: in base 2.
FC_DEVICE void raise_amax(float* amax, int heads_q, int head, float scores_log2, float o) {
  constexpr float kLn2 = 0.69314718055994530942f;
  // Of a row of NaN its factor is, too: 0 * NaN.
  scores_log2 = ptx::max(scores_log2, 0.0f), o = ptx::max(o, 0.0f);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    scores_log2 = ptx::max(scores_log2, ptx::shfl_bfly(scores_log2, mask));
    o = ptx::max(o, ptx::shfl_bfly(o, mask));
  }
  if (ptx::tid_x() % 32 != 0) return;
  raise(amax + head, scores_log2 * kLn2);
  raise(amax + heads_q + head, o);
}

// Of the lane's row r.
template <class Accumulator>
FC_DEVICE float largest_of_row(const Accumulator& acc, int r) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kElements<Accumulator>; ++i)
    if (row_of_element(i) == r) largest = larger(largest, element(acc, i));
  return largest;
}

// Before the kernel: what it raises is zero.
template <int kThreads>
FC_KERNEL(kThreads, 1)
clear_amax(const __grid_constant__ ClearAmaxParams params) {
  for (int i = ptx::tid_x(); i < params.count; i += kThreads) ptx::st_global_f32(params.amax + i, 0.0f);
}

}  // namespace flashcore::tile
