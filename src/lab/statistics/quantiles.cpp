#include "lab/statistics/quantiles.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace flashcore {

double quantile_of_sorted(std::span<const double> sorted, double q) {
  FC_CHECK(!sorted.empty() && q >= 0 && q <= 1);
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  if (below + 1 >= sorted.size()) return sorted.back();
  const double fraction = position - static_cast<double>(below);
  return sorted[below] + fraction * (sorted[below + 1] - sorted[below]);
}

double median_in_place(std::vector<double>& values) {
  FC_CHECK(!values.empty());
  const std::size_t middle = values.size() / 2;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(middle);
  std::nth_element(values.begin(), at, values.end());
  if (values.size() % 2 == 1) return *at;
  return 0.5 * (*std::max_element(values.begin(), at) + *at);
}

double quantile(std::span<const double> values, double q) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return quantile_of_sorted(sorted, q);
}

double median(std::span<const double> values) {
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

}  // namespace flashcore
