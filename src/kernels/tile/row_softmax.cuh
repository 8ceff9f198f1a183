#pragma once
// Online softmax of the two rows that a lane holds of an m64nN accumulator: element i of it is row i / 2 % 2. The
// probabilities leave in the operand layout of m64k16, which is the accumulator's, 16 columns at a time.

#include "kernels/ptx/math.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/tile/element.cuh"
#include "kernels/tile/softmax.cuh"

namespace flashcore::tile {

// kThreshold: log2 of how far probabilities may exceed 1 before O is rescaled. fp16 holds 65504, and fp32 sums lose
// nothing.
template <Element E, int kThreshold>
struct RowSoftmax {
  static_assert(kThreshold >= 0 && kThreshold < 15);
  // Row maximum · scale_log2, rounded once, so that every use subtracts the same number: what probabilities are
  // relative to. Up to kThreshold below the true one.
  float max_scaled[2];
  float sum[2];  // this lane's share

  // No key at all.
  FC_DEVICE void none() {
    max_scaled[0] = max_scaled[1] = ptx::negative_infinity();
    sum[0] = sum[1] = 0.0f;
  }

  // The first block: its maxima.
  template <int kCount>
  FC_DEVICE void start(const float (&scores)[kCount], float scale_log2) {
    block_max(scores, scale_log2, max_scaled);
    sum[0] = sum[1] = 0.0f;
  }

  // Scores [kBegin, kEnd) of the lane as probabilities, added to the sums.
  template <int kBegin, int kEnd, int kCount>
  FC_DEVICE void add(const float (&scores)[kCount], float scale_log2, unsigned (&p)[kCount / 8][4]) {
    float total[2];
    exponentiate<kBegin, kEnd>(scores, scale_log2, p, total);
    sum[0] += total[0], sum[1] += total[1];
  }

  // A later block. Exponentials come first, relative to the maximum so far, and only where one exceeds the threshold
  // the maximum is found and the block done again: the largest of packed pairs costs a quarter of the instructions that
  // a maximum of the scores costs, and nothing waits for it. Measured: 4-9% of the whole kernel at head dim 64.
  template <int kCount, int kCountO>
  FC_DEVICE void update(const float (&scores)[kCount], float scale_log2, unsigned (&p)[kCount / 8][4],
                        float (&acc_o)[kCountO]) {
    float total[2];
    const unsigned top = exponentiate<0, kCount>(scores, scale_log2, p, total);
    if (ptx::vote_any(exceeds(top))) {
      raise(scores, scale_log2, acc_o);
      exponentiate<0, kCount>(scores, scale_log2, p, total);
    }
    sum[0] += total[0], sum[1] += total[1];
  }

  // 1/sum (0 for a row without keys) and the natural log-sum-exp. The four lanes of a row take part.
  FC_DEVICE float finish(int r, float& lse) const {
    const float total = quad_sum(sum[r]);
    lse = log_sum_exp(max_scaled[r], total);
    return inverse_sum(total);
  }

 private:
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

  // Returns the largest probability of even columns in the low half, of odd ones in the high half: as they are not
  // negative, their order is that of their bits.
  template <int kBegin, int kEnd, int kCount>
  FC_DEVICE unsigned exponentiate(const float (&scores)[kCount], float scale_log2, unsigned (&p)[kCount / 8][4],
                                  float (&total)[2]) const {
    const float shifts[2] = {shift(0), shift(1)};
    unsigned top = 0;
    total[0] = total[1] = 0.0f;
#pragma unroll
    for (int n = kBegin / 8; n < kEnd / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i % 2;
        const float low = ptx::ex2(ptx::fma(scores[8 * n + 2 * i], scale_log2, -shifts[r]));
        const float high = ptx::ex2(ptx::fma(scores[8 * n + 2 * i + 1], scale_log2, -shifts[r]));
        total[r] += low + high;  // in pairs: one chain of additions per row is half as long
        p[n][i] = tile::pack<E>(low, high);
        top = ptx::max_u16x2(top, p[n][i]);
      }
      ptx::wgmma_registers(p[n]);
    }
    return top;
  }

  // Of the result of exponentiate, or of a row that had no key so far. True for NaN.
  FC_DEVICE bool exceeds(unsigned top) const {
    constexpr unsigned kLargest = E == Element::kF16 ? (15u + kThreshold) << 10 : (127u + kThreshold) << 7;
    return top > (kLargest << 16 | 0xffffu) || top << 16 > kLargest << 16 ||
           max_scaled[0] == ptx::negative_infinity() || max_scaled[1] == ptx::negative_infinity();
  }

  // Takes the block's maxima into account. No multiplication may be adding to O.
  template <int kCount, int kCountO>
  FC_DEVICE void raise(const float (&scores)[kCount], float scale_log2, float (&acc_o)[kCountO]) {
    float maximum[2], factor[2];
    block_max(scores, scale_log2, maximum);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = max_scaled[r];
      max_scaled[r] = ptx::max(before, maximum[r]);
      factor[r] = ptx::ex2(before - shift(r));
      sum[r] *= factor[r];
    }
#pragma unroll
    for (int i = 0; i < kCountO; ++i) acc_o[i] *= factor[i / 2 % 2];
  }
};

}  // namespace flashcore::tile
