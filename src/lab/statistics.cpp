#include "lab/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "core/error.h"

namespace flashcore {
namespace {

double quantile_of_sorted(std::span<const double> sorted, double q) {
  FC_CHECK(!sorted.empty() && q >= 0 && q <= 1);
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  if (below + 1 >= sorted.size()) return sorted.back();
  const double fraction = position - static_cast<double>(below);
  return sorted[below] + fraction * (sorted[below + 1] - sorted[below]);
}

// Partially sorts its argument.
double median_in_place(std::vector<double>& values) {
  const std::size_t middle = values.size() / 2;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(middle);
  std::nth_element(values.begin(), at, values.end());
  if (values.size() % 2 == 1) return *at;
  return 0.5 * (*std::max_element(values.begin(), at) + *at);
}

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::numbers::sqrt2); }

// Bisection on erfc: 60 steps reach the last bit, and this runs a handful of times per interval.
double normal_quantile(double p) {
  double low = -40, high = 40;
  for (int step = 0; step < 80; ++step) {
    const double middle = 0.5 * (low + high);
    (normal_cdf(middle) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

// Student's t from the normal quantile z (Abramowitz & Stegun 26.7.5): within 0.2% from 5 degrees of freedom on.
double student_quantile(double z, double degrees) {
  const double z2 = z * z;
  return z + z * (z2 + 1) / (4 * degrees) + z * ((5 * z2 + 16) * z2 + 3) / (96 * degrees * degrees) +
         z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / (384 * degrees * degrees * degrees);
}

// Skewness of the median's influence, by leaving one value out at a time.
double jackknife_acceleration(std::span<const double> values) {
  std::vector<double> without, medians;
  for (std::size_t skip = 0; skip < values.size(); ++skip) {
    without.clear();
    for (std::size_t i = 0; i < values.size(); ++i)
      if (i != skip) without.push_back(values[i]);
    medians.push_back(median_in_place(without));
  }
  const double mean = std::accumulate(medians.begin(), medians.end(), 0.0) / static_cast<double>(medians.size());
  double squares = 0, cubes = 0;
  for (const double m : medians) {
    squares += (mean - m) * (mean - m);
    cubes += (mean - m) * (mean - m) * (mean - m);
  }
  return squares > 0 ? cubes / (6 * std::pow(squares, 1.5)) : 0;
}

struct RankedDifferences {
  std::vector<int> doubled_ranks;  // midranks times two: ties give halves, doubling keeps them whole
  int doubled_positive_sum = 0;
};

RankedDifferences rank_differences(std::span<const double> values) {
  std::vector<double> nonzero;
  for (const double v : values)
    if (v != 0) nonzero.push_back(v);
  std::sort(nonzero.begin(), nonzero.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
  RankedDifferences ranked;
  for (std::size_t first = 0; first < nonzero.size();) {
    std::size_t last = first;
    while (last + 1 < nonzero.size() && std::abs(nonzero[last + 1]) == std::abs(nonzero[first])) ++last;
    for (std::size_t i = first; i <= last; ++i) {
      const int doubled = static_cast<int>(first + last) + 2;
      ranked.doubled_ranks.push_back(doubled);
      if (nonzero[i] > 0) ranked.doubled_positive_sum += doubled;
    }
    first = last + 1;
  }
  return ranked;
}

// Each of the 2^n sign patterns is equally likely under the null: counts them by their positive rank sum.
double exact_signed_rank_p(const RankedDifferences& ranked) {
  const int total = std::accumulate(ranked.doubled_ranks.begin(), ranked.doubled_ranks.end(), 0);
  std::vector<double> ways(static_cast<std::size_t>(total) + 1, 0.0);
  ways[0] = 1;
  for (const int rank : ranked.doubled_ranks)
    for (int sum = total; sum >= rank; --sum)
      ways[static_cast<std::size_t>(sum)] += ways[static_cast<std::size_t>(sum - rank)];
  const int extreme = std::min(ranked.doubled_positive_sum, total - ranked.doubled_positive_sum);
  double tail = 0;
  for (int sum = 0; sum <= extreme; ++sum) tail += ways[static_cast<std::size_t>(sum)];
  return std::min(1.0, 2 * tail / std::exp2(static_cast<double>(ranked.doubled_ranks.size())));
}

}  // namespace

double quantile(std::span<const double> values, double q) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return quantile_of_sorted(sorted, q);
}

double median(std::span<const double> values) {
  FC_CHECK(!values.empty());
  std::vector<double> copy(values.begin(), values.end());
  return median_in_place(copy);
}

double geometric_mean(std::span<const double> values) {
  FC_CHECK(!values.empty());
  double sum = 0;
  for (const double v : values) {
    FC_CHECK(v > 0);
    sum += std::log(v);
  }
  return std::exp(sum / static_cast<double>(values.size()));
}

std::uint64_t SplitMix::next() {
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

double SplitMix::uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

double SplitMix::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

Interval bootstrap_median(std::span<const double> values, std::uint64_t seed, int resamples, double confidence) {
  FC_CHECK(!values.empty() && resamples > 0 && confidence > 0 && confidence < 1);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double estimate = median(values);
  if (values.size() < kMinBlocks) return {estimate, -kInfinity, kInfinity};

  SplitMix random(seed);
  std::vector<double> medians(static_cast<std::size_t>(resamples)), resample(values.size());
  for (double& m : medians) {
    for (double& v : resample) v = values[random.below(values.size())];
    m = median_in_place(resample);
  }
  std::sort(medians.begin(), medians.end());

  // The median of a resample often equals the estimate itself; half of those count as below.
  const auto [first_equal, first_above] = std::equal_range(medians.begin(), medians.end(), estimate);
  const double below =
      static_cast<double>(first_equal - medians.begin()) + 0.5 * static_cast<double>(first_above - first_equal);
  const double share = std::clamp(below / resamples, 1.0 / resamples, 1 - 1.0 / resamples);
  const double z0 = normal_quantile(share);
  const double a = jackknife_acceleration(values);
  // A resample of n values varies by n - 1 over n of what it should, and the normal tails ignore that the spread is
  // itself an estimate. Without this expansion the interval covers 87% at n = 7 instead of 95%
  // (tests/lab/statistics_test.cpp).
  const double n = static_cast<double>(values.size());
  const auto corrected = [&](double p) {
    const double z = z0 + std::sqrt(n / (n - 1)) * student_quantile(normal_quantile(p), n - 1);
    const double denominator = 1 - a * z;
    return denominator > 0 ? normal_cdf(z0 + z / denominator) : (z > 0 ? 1.0 : 0.0);
  };
  const double tail = (1 - confidence) / 2;
  return {estimate, quantile_of_sorted(medians, corrected(tail)), quantile_of_sorted(medians, corrected(1 - tail))};
}

std::string verdict_of(const Interval& speedup, double margin) {
  const double above = 1 + margin, below = 1 / (1 + margin);
  if (!std::isfinite(speedup.estimate) || !std::isfinite(speedup.low) || !std::isfinite(speedup.high))
    return "INCONCLUSIVE";
  if (speedup.low > 1 && speedup.estimate > above) return "FASTER";
  if (speedup.high < 1 && speedup.estimate < below) return "SLOWER";
  if (speedup.low > below && speedup.high < above) return "SAME";
  return "INCONCLUSIVE";
}

double wilcoxon_signed_rank(std::span<const double> values) {
  const RankedDifferences ranked = rank_differences(values);
  const std::size_t n = ranked.doubled_ranks.size();
  if (n == 0) return 1;
  if (n <= 30) return exact_signed_rank_p(ranked);
  double mean = 0, variance = 0;
  for (const int doubled : ranked.doubled_ranks) {
    mean += 0.25 * doubled;
    variance += 0.0625 * static_cast<double>(doubled) * doubled;  // midranks carry the tie correction
  }
  // 0.5: continuity correction.
  const double distance = std::max(0.0, std::abs(0.5 * ranked.doubled_positive_sum - mean) - 0.5);
  return std::min(1.0, 2 * normal_cdf(-distance / std::sqrt(variance)));
}

std::vector<double> holm(std::span<const double> p_values) {
  std::vector<std::size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p_values[a] < p_values[b]; });
  std::vector<double> adjusted(p_values.size());
  double running = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    running = std::max(running, static_cast<double>(order.size() - i) * p_values[order[i]]);
    adjusted[order[i]] = std::min(1.0, running);
  }
  return adjusted;
}

}  // namespace flashcore
