#pragma once
// Online softmax over the score fragments of mma.m16n8: fp32, base 2, scale folded into one fused multiply-add.
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).

#include "kernels/ptx/math.cuh"
#include "kernels/ptx/shuffle.cuh"

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

// What O and the sum of a part of a row's keys count for, relative to maximum `own` before and `common` after. A row of
// nothing but -inf: subtracting it would make NaN of the zero that is due.
FC_DEVICE float weight(float own, float common) {
  return ptx::ex2(own - (common == ptx::negative_infinity() ? 0.0f : common));
}

// State of the two rows that a lane holds of one 16-row fragment: [0] row lane/4, [1] row lane/4 + 8.
struct OnlineSoftmax {
  float max_scaled[2];  // row maximum · scale_log2; -inf before the first visible key
  float sum[2];         // this lane's share of the row sum; the quad is added up once, at the end

  FC_DEVICE void reset() {
#pragma unroll
    for (int r = 0; r < 2; ++r) max_scaled[r] = ptx::negative_infinity(), sum[r] = 0.0f;
  }

  // The first scores, as `update` after `reset`, where nothing is there to rescale.
  template <int kTiles>
  FC_DEVICE void start(float (&scores)[kTiles][4], float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      max_scaled[r] = tile_max(scores, r) * scale_log2;
      sum[r] = exponentiate(scores, scale_log2, r);
    }
  }

  // Scores become probabilities relative to the new maximum; `rescale[r]` is what earlier results must be multiplied
  // with. A NaN score is skipped by the maximum and comes back as NaN through exp2.
  template <int kTiles>
  FC_DEVICE void update(float (&scores)[kTiles][4], float scale_log2, float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = max_scaled[r];
      max_scaled[r] = ptx::max(before, tile_max(scores, r) * scale_log2);
      // Both operands rounded as in the exponents, so that the factor is exact relative to them.
      rescale[r] = ptx::ex2(before - shift(r));
      sum[r] = ptx::fma(sum[r], rescale[r], exponentiate(scores, scale_log2, r));
    }
  }

  // Ends the row: returns 1/sum (0 for a row without keys) and its natural log-sum-exp. All four lanes take part.
  FC_DEVICE float finish(int r, float& lse) {
    const float total = quad_sum(sum[r]);
    lse = log_sum_exp(max_scaled[r], total);
    return inverse_sum(total);
  }

 private:
  // Of the row in these fragments.
  template <int kTiles>
  FC_DEVICE static float tile_max(const float (&scores)[kTiles][4], int r) {
    float maximum = ptx::max(scores[0][2 * r], scores[0][2 * r + 1]);
#pragma unroll
    for (int n = 1; n < kTiles; ++n) maximum = ptx::max(maximum, ptx::max(scores[n][2 * r], scores[n][2 * r + 1]));
    return quad_max(maximum);
  }

  // A row of nothing but -inf: subtracting it would make NaN of the zeros that exp2 owes us.
  FC_DEVICE float shift(int r) const { return max_scaled[r] == ptx::negative_infinity() ? 0.0f : max_scaled[r]; }

  // Scores become probabilities; returns the lane's sum.
  template <int kTiles>
  FC_DEVICE float exponentiate(float (&scores)[kTiles][4], float scale_log2, int r) const {
    const float subtracted = shift(r);
    float total = 0.0f;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int c = 2 * r; c < 2 * r + 2; ++c) {
        scores[n][c] = ptx::ex2(ptx::fma(scores[n][c], scale_log2, -subtracted));
        total += scores[n][c];
      }
    }
    return total;
  }
};

}  // namespace flashcore::tile
