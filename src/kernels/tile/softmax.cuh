#pragma once
// Online softmax of the two rows that a lane holds of a 16-row fragment: fp32, base 2, scale folded into one fused
// multiply-add. Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).

#include "kernels/ptx/math.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/tile/accumulator.cuh"

namespace flashcore::tile {

// Over the four lanes that share a row of a fragment.
FC_DEVICE float quad_max(float value) {
  value = ptx::max(value, ptx::shfl_bfly(value, 1));
  return ptx::max(value, ptx::shfl_bfly(value, 2));
}
FC_DEVICE float quad_sum(float value) {
  value += ptx::shfl_bfly(value, 1);
  return value + ptx::shfl_bfly(value, 2);
}

// The natural log-sum-exp of a row and what its O is multiplied with, from the maximum · scale_log2 and the sum of
// 2^(score - maximum). A row without keys has -inf and 0.
FC_DEVICE float log_sum_exp(float max_scaled, float total) {
  constexpr float kLn2 = 0.69314718055994530942f;
  return total == 0.0f ? ptx::negative_infinity() : (max_scaled + ptx::lg2(total)) * kLn2;
}
FC_DEVICE float inverse_sum(float total) { return total == 0.0f ? 0.0f : ptx::rcp(total); }

// What the exponents are relative to. A row of nothing but -inf: subtracting that would make NaN of the zeros that exp2
// owes us.
FC_DEVICE float finite_max(float max_scaled) { return max_scaled == ptx::negative_infinity() ? 0.0f : max_scaled; }

// What O and the sum of a part of a row's keys count for, relative to maximum `own` before and `common` after.
FC_DEVICE float weight(float own, float common) { return ptx::ex2(own - finite_max(common)); }

// Both of a row whose keys have this maximum and sum, with a sink.
FC_DEVICE float add_sink(float max_scaled, float total, float sink_log2, float& lse) {
  const float common = ptx::max(max_scaled, sink_log2), of_keys = weight(max_scaled, common);
  const float all = ptx::fma(total, of_keys, weight(sink_log2, common));
  lse = log_sum_exp(common, all);
  return of_keys * inverse_sum(all);
}

// The largest of row r (0, 1) of the lane.
template <class Accumulator>
FC_DEVICE float row_max(const Accumulator& scores, int r) {
  float maximum = ptx::max(element(scores, 2 * r), element(scores, 2 * r + 1));
#pragma unroll
  for (int i = 4; i < kElements<Accumulator>; i += 4)
    maximum = ptx::max(maximum, ptx::max(element(scores, i + 2 * r), element(scores, i + 2 * r + 1)));
  return quad_max(maximum);
}

// The lane's rows: [0] row lane/4 of the fragment, [1] row lane/4 + 8.
struct SoftmaxState {
  // Row maximum · scale_log2, rounded once, so that every use subtracts the same number: what probabilities are
  // relative to. -inf before the first visible key.
  float max_scaled[2];
  float sum[2];  // this lane's share of the row sum; the quad is added up once, at the end

  // No key so far.
  FC_DEVICE void reset() {
    max_scaled[0] = max_scaled[1] = ptx::negative_infinity();
    sum[0] = sum[1] = 0.0f;
  }
  // Ends the row: returns 1/sum (0 for a row without keys) and its natural log-sum-exp. All four lanes take part.
  FC_DEVICE float finish(int r, float& lse) const {
    const float total = quad_sum(sum[r]);
    lse = log_sum_exp(max_scaled[r], total);
    return inverse_sum(total);
  }
  // The same with a sink, in base 2: a logit more in the sum, without a value. Alone it is the log-sum-exp, with O = 0.
  FC_DEVICE float finish_with_sink(int r, float& lse, float sink_log2) const {
    return add_sink(max_scaled[r], quad_sum(sum[r]), sink_log2, lse);
  }
};

struct OnlineSoftmax : SoftmaxState {
  // The first scores, as `update` after `reset`, where nothing is there to rescale.
  template <class Accumulator>
  FC_DEVICE void start(Accumulator& scores, float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      max_scaled[r] = row_max(scores, r) * scale_log2;
      sum[r] = exponentiate(scores, scale_log2, r);
    }
  }

  // Scores become probabilities relative to the new maximum; `rescale[r]` is what earlier results must be multiplied
  // with. A NaN score is skipped by the maximum and comes back as NaN through exp2.
  template <class Accumulator>
  FC_DEVICE void update(Accumulator& scores, float scale_log2, float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = max_scaled[r];
      max_scaled[r] = ptx::max(before, row_max(scores, r) * scale_log2);
      // Both operands rounded as in the exponents, so that the factor is exact relative to them.
      rescale[r] = weight(before, max_scaled[r]);
      sum[r] = ptx::fma(sum[r], rescale[r], exponentiate(scores, scale_log2, r));
    }
  }

 private:
  // Scores become probabilities; returns the lane's sum.
  template <class Accumulator>
  FC_DEVICE float exponentiate(Accumulator& scores, float scale_log2, int r) const {
    const float subtracted = finite_max(max_scaled[r]);
    float total = 0.0f;
#pragma unroll
    for (int i = 2 * r; i < kElements<Accumulator>; i += 4) {
#pragma unroll
      for (int c = i; c < i + 2; ++c) {
        element(scores, c) = ptx::ex2(ptx::fma(element(scores, c), scale_log2, -subtracted));
        total += element(scores, c);
      }
    }
    return total;
  }
};

}  // namespace flashcore::tile
