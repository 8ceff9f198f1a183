#pragma once
// Pure functions on samples. Quantiles are of type 7 (linear interpolation), as NumPy's default.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace flashcore {

double quantile(std::span<const double> values, double q);
double median(std::span<const double> values);
double geometric_mean(std::span<const double> values);

struct Interval {
  double estimate = 0, low = 0, high = 0;
};
// Median of `values` with a 95% interval by bootstrap over the values (each one ABBA block's log-ratio).
Interval bootstrap_median(std::span<const double> values, std::uint64_t seed, int resamples = 2000, double confidence = 0.95);

// FASTER | SLOWER | SAME | INCONCLUSIVE from a speed-up interval and a margin (0.03): FASTER if low > 1 and the
// estimate exceeds 1 + margin... the exact rule is documented in docs/measurement.md and tested.
std::string verdict_of(const Interval& speedup, double margin);

}  // namespace flashcore
