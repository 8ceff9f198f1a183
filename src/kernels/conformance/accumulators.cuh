#pragma once
// A thread's accumulators of wgmma in the micro-tests: what they hold before, and the few that stand for all.

#include "kernels/conformance/common.cuh"

namespace flashcore::conformance {

// Exact in fp32. Loads for 128 accumulators, or two widths in one kernel, made ptxas spill.
template <int kCount>
FC_DEVICE void set_accumulators(float (&d)[kCount]) {
  const float first = static_cast<float>(thread()) * 0.125f - 12.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) d[i] = first + 0.0625f * static_cast<float>(i);
}

// Four of them: the first, a middle one, the last, and one that differs from thread to thread.
template <int kCount>
FC_DEVICE void give_sample(const Arguments& p, const float (&d)[kCount]) {
  const int t = thread();
  // Constant indices: an accumulator that is indexed at run time would leave the registers.
  float moving = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) moving = t % kCount == i ? d[i] : moving;
  give(p, 4 * t, d[0]);
  give(p, 4 * t + 1, d[kCount / 2]);
  give(p, 4 * t + 2, d[kCount - 1]);
  give(p, 4 * t + 3, moving);
}

}  // namespace flashcore::conformance
