#pragma once
// Parts of a tile that several CTAs have left in global memory, merged by one of them.

#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/tile/softmax.cuh"

namespace flashcore::tile {

// Of one row: the maximum · scale_log2, the sum of 2^(score - maximum), and four columns of O.
struct MergedFour {
  float maximum, total, o[4];
};

// Of `count` parts in their order. Each has maximum and sum of its rows, two words a row, and from word kFirstO on
// their O, kColumns words a row. What the thread waits for is latency, so kAtOnce parts are on their way at once.
template <int kFirstO, int kColumns, int kAtOnce = 4, class PartAddress>
FC_DEVICE MergedFour merge_parts(const PartAddress& address_of, int count, int row, int column) {
  MergedFour merged = {ptx::negative_infinity(), 0.0f, {}};
#pragma unroll 1
  for (int first = 0; first < count; first += kAtOnce) {
    float maxima[kAtOnce], totals[kAtOnce];
    ptx::Vector4 words[kAtOnce];
    float common = merged.maximum;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      maxima[i] = ptx::negative_infinity(), totals[i] = 0.0f, words[i] = {0, 0, 0, 0};
      if (first + i >= count) continue;
      const float* from = address_of(first + i);
      maxima[i] = ptx::ld_global_f32(from + 2 * row), totals[i] = ptx::ld_global_f32(from + 2 * row + 1);
      words[i] = ptx::ld_global_v4(from + kFirstO + row * kColumns + column);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) common = ptx::max(common, maxima[i]);
    const float before = weight(merged.maximum, common);
    merged.maximum = common, merged.total *= before;
#pragma unroll
    for (int j = 0; j < 4; ++j) merged.o[j] *= before;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float own = weight(maxima[i], common);
      merged.total = ptx::fma(own, totals[i], merged.total);
      merged.o[0] = ptx::fma(own, ptx::float_of_bits(words[i].x), merged.o[0]);
      merged.o[1] = ptx::fma(own, ptx::float_of_bits(words[i].y), merged.o[1]);
      merged.o[2] = ptx::fma(own, ptx::float_of_bits(words[i].z), merged.o[2]);
      merged.o[3] = ptx::fma(own, ptx::float_of_bits(words[i].w), merged.o[3]);
    }
  }
  return merged;
}

}  // namespace flashcore::tile
