#include "lab/statistics/equivalence.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "lab/statistics/distributions.h"
#include "lab/statistics/rank_tests.h"

namespace flashcore {

double tost_signed_rank(std::span<const double> values, double margin) {
  FC_CHECK(!values.empty() && margin > 0);
  std::vector<double> above(values.begin(), values.end()), below(above);
  for (double& v : above) v += margin;
  for (double& v : below) v -= margin;
  return std::max(wilcoxon_signed_rank(above, Alternative::kGreater), wilcoxon_signed_rank(below, Alternative::kLess));
}

double student_test_power(double effect, double deviation, double n, double alpha) {
  FC_CHECK(deviation > 0 && n >= 2 && alpha > 0 && alpha < 1);
  const double shift = std::abs(effect) / deviation * std::sqrt(n);
  const double critical = student_quantile(1 - alpha / 2, n - 1);
  // Finding it with the wrong sign counts, as in every two-sided test; it matters only near the effect 0.
  return noncentral_student_survival(critical, n - 1, shift) + 1 - noncentral_student_survival(-critical, n - 1, shift);
}

double minimum_detectable_effect(double deviation, double n, double alpha, double power) {
  FC_CHECK(power > alpha && power < 1);
  if (!(deviation > 0)) return 0;
  // In units of the mean's standard error the answer is between 0 and the critical value plus a dozen.
  double low = 0, high = student_quantile(1 - alpha / 2, n - 1) + student_quantile(power, n - 1) + 12;
  const double unit = deviation / std::sqrt(n);
  for (int step = 0; step < 60; ++step) {
    const double middle = 0.5 * (low + high);
    (student_test_power(middle * unit, deviation, n, alpha) < power ? low : high) = middle;
  }
  return 0.5 * (low + high) * unit;
}

}  // namespace flashcore
