#pragma once
// How large ALiBi's slopes may be.

#include <algorithm>

#include "core/problem.h"

namespace flashcore {

// Up to this size of a slope every family's fp32 holds slope * distance, as it is and in units of the score (the
// softcap, or the scale). Beyond it terms become infinite, and infinity less infinity is a NaN in a row of finite
// numbers.
inline double max_slope(const Problem& problem) {
  constexpr double kLargest = 1e37;  // FLT_MAX / 34: sums of a few terms, times log2(e)
  constexpr double kTile = 1024;     // tiles reach beyond the last row and key
  const double reach = static_cast<double>(problem.seqlen_q) + static_cast<double>(problem.seqlen_kv) + kTile;
  return kLargest * std::min(1.0, problem.softcap.value_or(problem.softmax_scale())) / reach;
}

}  // namespace flashcore
