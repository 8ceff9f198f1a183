#include "lab/statistics/verdict.h"

#include <cmath>

namespace flashcore {

std::string verdict_of(const Interval& speedup, double margin) {
  if (!std::isfinite(speedup.estimate) || !std::isfinite(speedup.low) || !std::isfinite(speedup.high))
    return "INCONCLUSIVE";
  const double above = 1 + margin, below = 1 / above, half = std::sqrt(above);
  if (speedup.low > half) return "FASTER";
  if (speedup.high < 1 / half) return "SLOWER";
  if (speedup.low > below && speedup.high < above) return "SAME";
  return "INCONCLUSIVE";
}

}  // namespace flashcore
