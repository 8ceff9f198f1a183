#pragma once
// A row of a tile, of which several CTAs have left parts in global memory, merged by one warp. What it waits for is
// latency: with one long sequence a tile has some fifty parts, and everybody has ended but the warps that merge. So
// many loads are on their way at once, and what a part counts for is found once by one lane, for all columns.

#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/tile/softmax.cuh"

namespace flashcore::sm80_decode_fwd {

// The maximum · scale_log2, the sum of 2^(score - maximum), and four columns of O.
struct MergedRow {
  float maximum, total, o[4];
};

FC_DEVICE float shfl_idx(float value, int source) {
  return ptx::float_of_bits(static_cast<unsigned>(ptx::shfl_idx(static_cast<int>(ptx::bits_of_float(value)), source)));
}

// Part i lies at first + i · stride words, and part 0 `shift` words behind that. It has maximum and sum of its rows,
// two words a row, and from word kFirstO on their O, kColumns words a row.
template <int kFirstO, int kColumns>
struct PlacedParts {
  const float* first;
  int stride, shift;
  int count;

  FC_DEVICE const float* state(int part, int row) const {
    return first + part * stride + (part == 0 ? shift : 0) + 2 * row;
  }
  FC_DEVICE float maximum(int part, int row) const { return ptx::ld_global_f32(state(part, row)); }
  FC_DEVICE float total(int part, int row) const { return ptx::ld_global_f32(state(part, row) + 1); }

  // By the whole warp; the lane gets four columns from `column` on. Parts are weighed by the maximum of all of them and
  // added in their order, so that the bits do not depend on kAtOnce. Maxima and sums are read once, beside the first
  // columns: each time that they were read anew the warp waited for memory, four times before it had ended.
  template <int kAtOnce>
  FC_DEVICE MergedRow merge(int row, int column, int lane) const {
    static_assert(kAtOnce <= 32);
    constexpr int kHeld = 2;  // a lane's parts, from its own number on every 32nd, of which the first are in registers
    float maxima[kHeld], sums[kHeld];
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      maxima[h] = ptx::negative_infinity(), sums[h] = 0.0f;
      if (lane + 32 * h < count) maxima[h] = maximum(lane + 32 * h, row), sums[h] = total(lane + 32 * h, row);
    }
    ptx::Vector4 words[kAtOnce];
    const auto load = [&](int begin) {
      const float* from = first + begin * stride + kFirstO + row * kColumns + column;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        words[i] = {0, 0, 0, 0};
        if (begin + i < count) words[i] = ptx::ld_global_v4(i == 0 && begin == 0 ? from + shift : from + i * stride);
      }
    };
    load(0);
    MergedRow merged = {ptx::max(maxima[0], maxima[1]), 0.0f, {}};
#pragma unroll 1
    for (int part = lane + 32 * kHeld; part < count; part += 32)
      merged.maximum = ptx::max(merged.maximum, maximum(part, row));
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2)
      merged.maximum = ptx::max(merged.maximum, ptx::shfl_bfly(merged.maximum, mask));
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      maxima[h] = tile::weight(maxima[h], merged.maximum);  // what the part counts for, from here on
      merged.total = ptx::fma(maxima[h], sums[h], merged.total);
    }
#pragma unroll 1
    for (int part = lane + 32 * kHeld; part < count; part += 32)
      merged.total = ptx::fma(tile::weight(maximum(part, row), merged.maximum), total(part, row), merged.total);
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) merged.total += ptx::shfl_bfly(merged.total, mask);
#pragma unroll 1
    for (int begin = 0;;) {
      const int at = begin + lane;  // the part among those at hand whose weight the lane has
      const float low = shfl_idx(maxima[0], at % 32), high = shfl_idx(maxima[1], at % 32);
      float own = at < 32 ? low : high;
      if (at >= 32 * kHeld) own = at < count ? tile::weight(maximum(at, row), merged.maximum) : 0.0f;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float part = shfl_idx(own, i);
        merged.o[0] = ptx::fma(part, ptx::float_of_bits(words[i].x), merged.o[0]);
        merged.o[1] = ptx::fma(part, ptx::float_of_bits(words[i].y), merged.o[1]);
        merged.o[2] = ptx::fma(part, ptx::float_of_bits(words[i].z), merged.o[2]);
        merged.o[3] = ptx::fma(part, ptx::float_of_bits(words[i].w), merged.o[3]);
      }
      begin += kAtOnce;
      if (begin >= count) return merged;
      load(begin);
    }
  }
};

}  // namespace flashcore::sm80_decode_fwd
