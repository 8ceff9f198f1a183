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
  // added in their order, so that the bits do not depend on kAtOnce.
  template <int kAtOnce>
  FC_DEVICE MergedRow merge(int row, int column, int lane) const {
    static_assert(kAtOnce <= 32);
    MergedRow merged = {ptx::negative_infinity(), 0.0f, {}};
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
#pragma unroll 1
    for (int part = lane; part < count; part += 32) merged.maximum = ptx::max(merged.maximum, maximum(part, row));
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2)
      merged.maximum = ptx::max(merged.maximum, ptx::shfl_bfly(merged.maximum, mask));
#pragma unroll 1
    for (int part = lane; part < count; part += 32)
      merged.total = ptx::fma(tile::weight(maximum(part, row), merged.maximum), total(part, row), merged.total);
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) merged.total += ptx::shfl_bfly(merged.total, mask);
#pragma unroll 1
    for (int begin = 0;;) {
      float own = 0.0f;  // what the part counts for whose number among those at hand is the lane's
      if (lane < kAtOnce && begin + lane < count) own = tile::weight(maximum(begin + lane, row), merged.maximum);
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
