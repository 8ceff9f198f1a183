#pragma once
// Online softmax for tensor cores on 8-bit floats: RowSoftmax (row_softmax.cuh) with probabilities that leave as e4m3,
// whatever the values are.

#include "kernels/ptx/cvt_fp8.cuh"
#include "kernels/ptx/vote.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/tile/softmax.cuh"
#include "kernels/tile/traits.h"

namespace flashcore::tile {

// A scale of scores for either row of a lane, where they differ (row_factors.cuh); else it is a float.
struct RowScales {
  float of[2];
};
FC_DEVICE float scale_of(float scale, int) { return scale; }
FC_DEVICE float scale_of(const RowScales& scale, int r) { return scale.of[r]; }

// Probabilities and their sums are 2^kExponent times too large, which cancels in O: e4m3 holds 448, and nothing below
// 2^-10 but zero. Relative to a maximum that is up to 2^(8.75 - kExponent) below the true one, none exceeds 448.
// The operand a of m64nNk32, and of m16n8k32, wants four keys side by side where the accumulator has two and two, 8
// apart: keys are taken in the order key_of_position(), and whoever lays out V takes them in the same one.
template <int kExponent>
struct ByteSoftmax : SoftmaxState {
  static_assert(kExponent >= 0 && kExponent <= 8);

  // The first block: its maxima.
  template <class Accumulator, class Scale, int kSteps>
  FC_DEVICE void start(const Accumulator& scores, Scale scale_log2, unsigned (&p)[kSteps][4]) {
    max_scaled[0] = row_max(scores, 0) * scale_of(scale_log2, 0);
    max_scaled[1] = row_max(scores, 1) * scale_of(scale_log2, 1);
    exponentiate(scores, scale_log2, p, sum);
  }
  // The first block where `update` follows, of one loop body: its maxima alone.
  template <class Accumulator, class Scale>
  FC_DEVICE void begin(const Accumulator& scores, Scale scale_log2) {
    max_scaled[0] = row_max(scores, 0) * scale_of(scale_log2, 0);
    max_scaled[1] = row_max(scores, 1) * scale_of(scale_log2, 1);
  }

  // A later block. Exponentials come first, relative to the maximum so far; only where one is too large for e4m3 the
  // maximum is found and the block done again.
  template <class Accumulator, class Scale, int kSteps, class Rescale>
  FC_DEVICE void update(const Accumulator& scores, Scale scale_log2, unsigned (&p)[kSteps][4], Rescale rescale) {
    float total[2];
    const unsigned top = exponentiate(scores, scale_log2, p, total);
    if (ptx::vote_any(exceeds(top))) {
      take_new_max(scores, scale_log2, rescale);
      exponentiate(scores, scale_log2, p, total);
    }
    sum[0] += total[0], sum[1] += total[1];
  }

  // Ends the row: returns 1/sum (0 for a row without keys) and its natural log-sum-exp. All four lanes take part.
  FC_DEVICE float finish(int r, float& lse) const {
    const float total = quad_sum(sum[r]);
    lse = log_sum_exp(max_scaled[r] - static_cast<float>(kExponent), total);
    return inverse_sum(total);
  }
  // The same with a sink, in base 2 (SoftmaxState).
  FC_DEVICE float finish_with_sink(int r, float& lse, float sink_log2) const {
    return add_sink(max_scaled[r] - static_cast<float>(kExponent), quad_sum(sum[r]), sink_log2, lse);
  }

 private:
  // A byte of the result has its highest bit set if one of the probabilities there is 448 or NaN: 0x7e and 0x7f are the
  // largest of e4m3, none is negative, and so no byte carries into the next.
  template <class Accumulator, class Scale, int kSteps>
  FC_DEVICE unsigned exponentiate(const Accumulator& scores, Scale scales_log2, unsigned (&p)[kSteps][4],
                                  float (&total)[2]) const {
    static_assert(kElements<Accumulator> == 16 * kSteps);
    const float shifts[2] = {finite_max(max_scaled[0]) - kExponent, finite_max(max_scaled[1]) - kExponent};
    unsigned top = 0;
    total[0] = total[1] = 0.0f;
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Row i % 2 of the lane, two keys and the two 8 further on.
        const int r = i % 2, at = 16 * n + 8 * (i / 2) + 2 * r;
        const float scale_log2 = scale_of(scales_log2, r);
        const float a = ptx::ex2(ptx::fma(element(scores, at), scale_log2, -shifts[r]));
        const float b = ptx::ex2(ptx::fma(element(scores, at + 1), scale_log2, -shifts[r]));
        const float c = ptx::ex2(ptx::fma(element(scores, at + 4), scale_log2, -shifts[r]));
        const float d = ptx::ex2(ptx::fma(element(scores, at + 5), scale_log2, -shifts[r]));
        total[r] += (a + b) + (c + d);
        p[n][i] = ptx::cvt_e4m3x4(a, b, c, d);
        top |= p[n][i] + 0x02020202u;
      }
      ptx::warpgroup_fence_operand(p[n]);
    }
    return top;
  }

  // Of the result of exponentiate, or of a row that had no key so far.
  FC_DEVICE bool exceeds(unsigned top) const {
    return (top & 0x80808080u) != 0 || max_scaled[0] == ptx::negative_infinity() ||
           max_scaled[1] == ptx::negative_infinity();
  }

  // Takes the block's maxima into account. `rescale` multiplies what has been summed up by a factor for each row; no
  // multiplication may be adding to it.
  template <class Accumulator, class Scale, class Rescale>
  FC_DEVICE void take_new_max(const Accumulator& scores, Scale scale_log2, Rescale rescale) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = max_scaled[r];
      max_scaled[r] = ptx::max(before, row_max(scores, r) * scale_of(scale_log2, r));
      factor[r] = weight(before, max_scaled[r]);
      sum[r] *= factor[r];
    }
    rescale(factor);
  }
};

// Where V's keys go within each 16 of a transposed tile, and the operand a of P: position 4t + b of the operand is the
// key that lane t of a quad holds as its number b.
constexpr int key_of_position(int position) { return position / 4 * 2 + position % 2 + position % 4 / 2 * 8; }

}  // namespace flashcore::tile
