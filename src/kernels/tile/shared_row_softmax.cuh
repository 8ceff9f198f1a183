#pragma once
// Online softmax of rows whose keys several warps share.

#include "kernels/tile/softmax.cuh"

namespace flashcore::tile {

// Softmax of rows of which a warp has some of the keys: the maxima are those of all.
struct SharedRowSoftmax : SoftmaxState {
  // `maxima`: of the block's scores, times scale_log2. Scores become probabilities; `rescale[r]` is what earlier
  // results must be multiplied with.
  template <class Accumulator>
  FC_DEVICE void update(Accumulator& scores, const float (&maxima)[2], float scale_log2, float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = max_scaled[r];
      max_scaled[r] = ptx::max(before, maxima[r]);
      rescale[r] = weight(before, max_scaled[r]);
      const float subtracted = finite_max(max_scaled[r]);
      float total = 0.0f;
#pragma unroll
      for (int i = 0; i < kElements<Accumulator>; ++i) {
        if (row_of_element(i) != r) continue;
        float& score = element(scores, i);
        score = ptx::ex2(ptx::fma(score, scale_log2, -subtracted));
        total += score;
      }
      sum[r] = ptx::fma(sum[r], rescale[r], total);
    }
  }
};

}  // namespace flashcore::tile
