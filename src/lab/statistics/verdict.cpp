#include "lab/statistics/verdict.h"

#include <cmath>

namespace flashcore {

SpeedVerdict verdict_of(const Interval& speedup, double margin) {
  if (!std::isfinite(speedup.estimate) || !std::isfinite(speedup.low) || !std::isfinite(speedup.high))
    return SpeedVerdict::kInconclusive;
  const double above = 1 + margin, below = 1 / above, half = std::sqrt(above);
  if (speedup.low > half) return SpeedVerdict::kFaster;
  if (speedup.high < 1 / half) return SpeedVerdict::kSlower;
  if (speedup.low > below && speedup.high < above) return SpeedVerdict::kSame;
  return SpeedVerdict::kInconclusive;
}

}  // namespace flashcore
