#pragma once
// Counting numbers that saturate, in words of 64 bits: a count of training steps is past 2^32 soon.

#include "kernels/ptx/atomic.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/tile/saturation.h"

namespace flashcore::tile {

template <Element E, int kCount>
FC_DEVICE unsigned count_saturating(const float (&values)[kCount], float factor) {
  unsigned count = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) count += saturates(E, ptx::bits_of_float(values[i] / factor)) ? 1u : 0u;
  return count;
}

// Adds what the warp's lanes counted, of which each is below 2^19; every lane takes part. `words`: the lower one first.
// Where nothing saturates there is no atomic.
FC_DEVICE void add_count_of_warp(unsigned* words, unsigned count) {
  if (!ptx::vote_any(count != 0)) return;
  float sum = static_cast<float>(count);  // whole numbers below 2^24
  for (int mask = 1; mask < 32; mask *= 2) sum += ptx::shfl_bfly(sum, mask);
  if (ptx::tid_x() % 32 != 0) return;
  const unsigned all = static_cast<unsigned>(sum), before = ptx::atomic_add_global(words, all);
  if (before + all < before) ptx::atomic_add_global(words + 1, 1);
}

}  // namespace flashcore::tile
