#include "core/indexed_random.h"

#include <bit>
#include <cmath>

namespace flashcore {
namespace {

// Acklam's rational approximation of the inverse normal distribution, relative error below 1.2e-9.
double inverse_normal(double p) {
  constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                          1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01,
                          -1.328068155288572e+01};
  constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                          -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00};
  constexpr double kTail = 0.02425;
  if (p > 1 - kTail) return -inverse_normal(1 - p);
  if (p < kTail) {
    const double q = std::sqrt(-2 * portable_log(p));
    return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
           ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
  }
  const double q = p - 0.5, r = q * q;
  return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
         (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

}  // namespace

double portable_log(double x) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  const int exponent = static_cast<int>(bits >> 52) - 1023;
  const double mantissa = std::bit_cast<double>((bits & 0xfffffffffffffu) | (std::uint64_t{1023} << 52));
  const double t = (mantissa - 1) / (mantissa + 1), t2 = t * t;  // |t| <= 1/3
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * t2 + 1.0 / k;
  return 2 * t * sum + exponent * 0.6931471805599453;
}

double IndexedRandom::normal(std::int64_t index) const {
  // 53 bits, centred between the steps: never 0 or 1.
  return inverse_normal((static_cast<double>(bits(index) >> 12) + 0.5) * 0x1p-52);
}

}  // namespace flashcore
