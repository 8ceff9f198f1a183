#pragma once
// What becomes of scores between Q·Kᵀ and the mask: softcap, then ALiBi; and the sink, which joins the row at its end.
// What the traits do not have costs nothing. Their definitions are expressions (core/expression_builtin.h), by which
// the fp64 reference computes; here the softmax scale, a softcap's factor and base 2 are in one multiplication, that of
// the exponent.

#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/vote.cuh"
#include "kernels/tile/accumulator.cuh"
#include "kernels/tile/expression.cuh"
#include "kernels/tile/traits.h"

namespace flashcore::tile {

// Where a block's keys lie by the own keys of some rows.
enum class Side { kLeft, kRight, kBoth };

// A base that keeps ALiBi's slope of a tile's head. One more member, even an empty one, changes what ptxas makes of
// kernels that do not use it.
template <bool kHas>
struct SlopeOfTile {};
template <>
struct SlopeOfTile<true> {
  float slope;
};
// The same of kernels whose tiles pack several heads: the slopes of the lane's kRows rows, and where they come from.
template <bool kHas, int kRows>
struct SlopesOfRows {};
template <int kRows>
struct SlopesOfRows<true, kRows> {
  const ScoreParams* score_params;
  float slopes[kRows];
};
FC_DEVICE float slope_of_row(float slope, int) { return slope; }
FC_DEVICE float slope_of_row(const float* slopes, int r) { return slopes[r]; }

// Params: the kernel's parameters, with heads_q, seqlen_q and seqlen_kv. kForeignTail: behind a sequence's rows and
// keys lies somebody else's, or what a page held before, where other kernels have zeros.
template <Traits T, class Params = ForwardParams, bool kForeignTail = false>
struct Score {
  const Params& problem;
  const ScoreParams* params;  // null where the traits have nothing of it

  // Of a tile's rows, for `apply`.
  FC_DEVICE float slope(int batch, int head) const {
    if constexpr (T.alibi == 0) return 0.0f;
    else
      return ptx::ld_global_f32(params->alibi + (T.alibi == 2 ? batch * problem.heads_q : 0) + head) *
             params->slope_scale;
  }
  FC_DEVICE float sink_log2(int head) const {
    constexpr float kLog2E = 1.44269504088896340736f;
    return ptx::ld_global_f32(params->sink + head) * kLog2E;
  }

  // The own key of row i is i + own_key(), however the mask is aligned.
  FC_DEVICE int own_key() const { return problem.seqlen_kv - problem.seqlen_q; }
  template <int kBlockN>
  FC_DEVICE Side side(int block, int first_row, int last_row) const {
    const int own = own_key() - block * kBlockN;
    return first_row + own >= kBlockN - 1 ? Side::kLeft : last_row + own <= 0 ? Side::kRight : Side::kBoth;
  }

  // Of s and not of its square, which ptxas would keep for the polynomial of cap(), and spill. NaN is dropped. What is
  // not the sequence's must not decide which way its own scores go, for the two ways differ in their last bits.
  template <class Accumulator>
  FC_DEVICE float largest_magnitude(const Accumulator& scores, int first_key, const int (&rows)[2]) const {
    float largest = 0.0f;
    if constexpr (kForeignTail) {
      const int keys = problem.seqlen_kv - first_key;
      const bool whole = column_of_element(kElements<Accumulator> - 1) < keys && rows[1] < problem.seqlen_q;
      if (!ptx::vote_all(whole)) {
#pragma unroll
        for (int i = 0; i < kElements<Accumulator>; ++i)
          if (column_of_element(i) < keys && rows[row_of_element(i)] < problem.seqlen_q)
            largest = ptx::max(largest, expression::abs(element(scores, i)));
        return largest;
      }
    }
#pragma unroll
    for (int i = 0; i < kElements<Accumulator>; ++i) largest = ptx::max(largest, expression::abs(element(scores, i)));
    return largest;
  }

  // tanh of all scores, in units of the cap. Far inside the cap, where those of models are, by a polynomial in s * s,
  // which has the softmax scale in it: half of the instructions and no special function. One score beyond it sends the
  // warp the long way.
  template <class Accumulator>
  FC_DEVICE void cap(Accumulator& scores, int first_key, const int (&rows)[2]) const {
    if (!ptx::vote_all(largest_magnitude(scores, first_key, rows) <= params->tanh_series_until)) {
#pragma unroll
      for (int i = 0; i < kElements<Accumulator>; ++i)
        element(scores, i) = expression::tanh(element(scores, i) * params->tanh_scale);
    } else {
#pragma unroll
      for (int i = 0; i < kElements<Accumulator>; ++i) {
        const float s = element(scores, i), square = s * s;
        float p = ptx::fma(params->tanh_series[3], square, params->tanh_series[2]);
        p = ptx::fma(p, square, params->tanh_series[1]);
        p = ptx::fma(p, square, params->tanh_series[0]);
        element(scores, i) = s * p;
      }
    }
  }

  // Scores of the lane's two rows against a block of which the lane's first key is `first_key`. `slope`: of both rows,
  // or of each.
  template <class Accumulator, class Slope>
  FC_DEVICE void apply(Accumulator& scores, const Slope& slope, Side side, int first_key, const int (&rows)[2]) const {
    if constexpr (T.softcap) cap(scores, first_key, rows);
    if constexpr (T.alibi != 0) {
      // Exact below 2^24 keys.
      const float own[2] = {static_cast<float>(rows[0] + own_key() - first_key),
                            static_cast<float>(rows[1] + own_key() - first_key)};
      if (side == Side::kBoth) {
#pragma unroll
        for (int i = 0; i < kElements<Accumulator>; ++i) {
          const float distance = own[row_of_element(i)] - static_cast<float>(column_of_element(i));
          element(scores, i) =
              ptx::fma(-slope_of_row(slope, row_of_element(i)), expression::abs(distance), element(scores, i));
        }
      } else {
        // Away from the diagonal the distance has one sign: an instruction less.
        float by[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) by[r] = side == Side::kLeft ? -slope_of_row(slope, r) : slope_of_row(slope, r);
#pragma unroll
        for (int i = 0; i < kElements<Accumulator>; ++i) {
          const float distance = own[row_of_element(i)] - static_cast<float>(column_of_element(i));
          element(scores, i) = ptx::fma(by[row_of_element(i)], distance, element(scores, i));
        }
      }
    }
  }
};

}  // namespace flashcore::tile
