#pragma once
// Online softmax for wgmma, which rescales O only when it must. The probabilities leave as operands of m64k16.

#include "kernels/ptx/wgmma.cuh"
#include "kernels/tile/softmax.cuh"

namespace flashcore::tile {

// kThreshold: log2 of how far probabilities may exceed 1 before O is rescaled, so max_scaled is up to that much below
// the true maximum. fp16 holds 65504, and fp32 sums lose nothing.
template <Element E, int kThreshold>
struct RowSoftmax : SoftmaxState {
  static_assert(kThreshold >= 0 && kThreshold < 15);

  // The first block: its maxima.
  template <int kCount>
  FC_DEVICE void start(const float (&scores)[kCount], float scale_log2) {
    max_scaled[0] = row_max(scores, 0) * scale_log2, max_scaled[1] = row_max(scores, 1) * scale_log2;
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
      rescale_to_new_max(scores, scale_log2, acc_o);
      exponentiate<0, kCount>(scores, scale_log2, p, total);
    }
    sum[0] += total[0], sum[1] += total[1];
  }

 private:
  // Returns the largest probability of even columns in the low half, of odd ones in the high half: as they are not
  // negative, their order is that of their bits.
  template <int kBegin, int kEnd, int kCount>
  FC_DEVICE unsigned exponentiate(const float (&scores)[kCount], float scale_log2, unsigned (&p)[kCount / 8][4],
                                  float (&total)[2]) const {
    const float shifts[2] = {finite_max(max_scaled[0]), finite_max(max_scaled[1])};
    unsigned top = 0;
    total[0] = total[1] = 0.0f;
#pragma unroll
    for (int n = kBegin / 8; n < kEnd / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 8 * n + 2 * i, r = row_of_element(at);
        const float low = ptx::ex2(ptx::fma(scores[at], scale_log2, -shifts[r]));
        const float high = ptx::ex2(ptx::fma(scores[at + 1], scale_log2, -shifts[r]));
        total[r] += low + high;  // in pairs: one chain of additions per row is half as long
        p[n][i] = pack<E>(low, high);
        top = ptx::max_u16x2(top, p[n][i]);
      }
      ptx::warpgroup_fence_operand(p[n]);
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
  FC_DEVICE void rescale_to_new_max(const float (&scores)[kCount], float scale_log2, float (&acc_o)[kCountO]) {
    float maximum[2], factor[2];
    maximum[0] = row_max(scores, 0) * scale_log2, maximum[1] = row_max(scores, 1) * scale_log2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = max_scaled[r];
      max_scaled[r] = ptx::max(before, maximum[r]);
      factor[r] = weight(before, max_scaled[r]);
      sum[r] *= factor[r];
    }
    scale_rows(acc_o, factor);
  }
};

}  // namespace flashcore::tile
