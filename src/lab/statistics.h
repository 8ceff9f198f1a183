#pragma once
// Pure functions on samples. Quantiles are of type 7 (linear interpolation), as NumPy's default. Every function that
// takes values needs at least one (Error kInternal otherwise); none may be NaN.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace flashcore {

double quantile(std::span<const double> values, double q);
double median(std::span<const double> values);
double geometric_mean(std::span<const double> values);

// xoshiro-class generators differ between standard libraries in their distributions; this one gives the same numbers
// everywhere (SplitMix64, Steele et al. 2014).
class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  // Uniform in [0, bound). The modulo bias is below bound / 2^64.
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }
  double uniform();  // [0, 1)
  double normal();   // N(0, 1), Box-Muller

 private:
  std::uint64_t state_;
};

struct Interval {
  double estimate = 0, low = 0, high = 0;
};
// Median of `values` with a 95% interval by BCa bootstrap over the values (each one ABBA block's log-ratio):
// percentiles of the resampled medians, corrected for bias (z0) and skew (a, by jackknife), Efron 1987, with tails
// expanded for few values, Hesterberg 2015. Simulated coverage 94-98% from 6 values on. With fewer than kMinBlocks
// values no interval covers 95%: it is (-inf, inf).
Interval bootstrap_median(std::span<const double> values, std::uint64_t seed, int resamples = 2000,
                          double confidence = 0.95);
// The range of all of n values covers the true median with probability 1 - 2^(1-n): 6 is the first n where that is over
// 95%.
inline constexpr int kMinBlocks = 6;

// FASTER | SLOWER | SAME | INCONCLUSIVE from a speed-up interval (a ratio: 1 is equal) and a margin m (0.03). In the
// logarithm, so that exchanging the candidates exchanges FASTER and SLOWER exactly:
//   FASTER        the whole interval is above 1 and the estimate above 1 + m
//   SLOWER        the whole interval is below 1 and the estimate below 1 / (1 + m)
//   SAME          the whole interval is inside (1 / (1 + m), 1 + m): two one-sided tests (TOST)
//   INCONCLUSIVE  anything else, NaN and infinite bounds included
std::string verdict_of(const Interval& speedup, double margin);

// Two-sided p of "the median of `values` is 0" by Wilcoxon's signed-rank test: exact for up to 30 non-zero values
// (midranks for ties), beyond that the normal approximation with tie correction. 1 if all values are 0.
double wilcoxon_signed_rank(std::span<const double> values);
// Holm's step-down adjustment: adjusted p-values in the order given.
std::vector<double> holm(std::span<const double> p_values);

}  // namespace flashcore
