#pragma once
// Online softmax of the two rows that a lane holds of an m64nN accumulator: element i of it is row i / 2 % 2.

#include "kernels/ptx/math.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/tile/softmax.cuh"

namespace flashcore::tile {

template <bool kLazy>
struct RowSoftmax {
  // Row maximum · scale_log2, rounded once, so that every use subtracts the same number: what probabilities are
  // relative to. With kLazy up to 8 below the true one.
  float max_scaled[2];
  float sum[2];     // this lane's share
  float factor[2];  // what the last update owes to O
  bool owes;        // the same in all lanes of a warp

  // log2 of how far probabilities may exceed 1 before O is rescaled: fp16 holds 65504, and fp32 sums lose nothing.
  static constexpr float kLazyThreshold = 8.0f;

  template <int kCount>
  FC_DEVICE static void block_max(const float (&scores)[kCount], float scale_log2, float (&maximum)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m = ptx::max(scores[2 * r], scores[2 * r + 1]);
#pragma unroll
      for (int i = 4; i < kCount; i += 4) m = ptx::max(m, ptx::max(scores[i + 2 * r], scores[i + 2 * r + 1]));
      maximum[r] = quad_max(m) * scale_log2;
    }
  }

  // A row of nothing but -inf: subtracting it would make NaN of the zeros that exp2 owes us.
  FC_DEVICE float shift(int r) const { return max_scaled[r] == ptx::negative_infinity() ? 0.0f : max_scaled[r]; }

  // Scores [kBegin, kEnd) of the lane become probabilities.
  template <int kBegin, int kEnd, int kCount>
  FC_DEVICE void exponentiate(float (&scores)[kCount], float scale_log2) {
    const float shifts[2] = {shift(0), shift(1)};
#pragma unroll
    for (int i = kBegin; i < kEnd; ++i) {
      scores[i] = ptx::ex2(ptx::fma(scores[i], scale_log2, -shifts[i / 2 % 2]));
    }
    // In pairs: one chain of additions per row is half as long.
#pragma unroll
    for (int i = kBegin; i < kEnd; i += 2) sum[i / 2 % 2] += scores[i] + scores[i + 1];
  }

  // The first block: only its maxima, so that the caller may take the exponentials in parts.
  template <int kCount>
  FC_DEVICE void start(const float (&scores)[kCount], float scale_log2) {
    block_max(scores, scale_log2, max_scaled);
    sum[0] = sum[1] = 0.0f;
  }
  template <int kCount>
  FC_DEVICE void first(float (&scores)[kCount], float scale_log2) {
    start(scores, scale_log2);
    exponentiate<0, kCount>(scores, scale_log2);
  }

  template <int kCount>
  FC_DEVICE void update(float (&scores)[kCount], float scale_log2) {
    float maximum[2];
    block_max(scores, scale_log2, maximum);
    owes = true;
    if constexpr (kLazy) {
      owes = ptx::vote_any(maximum[0] - max_scaled[0] > kLazyThreshold || maximum[1] - max_scaled[1] > kLazyThreshold);
    }
    if (owes) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float before = max_scaled[r];
        max_scaled[r] = ptx::max(before, maximum[r]);
        factor[r] = ptx::ex2(before - shift(r));
        sum[r] *= factor[r];
      }
    }
    exponentiate<0, kCount>(scores, scale_log2);
  }

  template <int kCount>
  FC_DEVICE void rescale(float (&acc_o)[kCount]) const {
    if (!owes) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) acc_o[i] *= factor[i / 2 % 2];
  }

  // No key at all.
  FC_DEVICE void none() {
    max_scaled[0] = max_scaled[1] = ptx::negative_infinity();
    sum[0] = sum[1] = 0.0f;
  }

  // 1/sum (0 for a row without keys) and the natural log-sum-exp. The four lanes of a row take part.
  FC_DEVICE float finish(int r, float& lse) const {
    const float total = quad_sum(sum[r]);
    lse = log_sum_exp(max_scaled[r], total);
    return inverse_sum(total);
  }
};

}  // namespace flashcore::tile
