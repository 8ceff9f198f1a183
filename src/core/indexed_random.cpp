#include "core/indexed_random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>

namespace flashcore {
namespace {

constexpr double kTail = 0.02425;

// Acklam's rational approximation of the inverse normal distribution, relative error below 1.2e-9: between the tails,
// of one number or of a vector, which is no argument or result: how those are passed differs between instruction sets.
template <class Number>
[[gnu::always_inline]] inline void between_tails(const Number& p, Number& value) {
  constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                          1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01,
                          -1.328068155288572e+01};
  const Number q = p - 0.5, r = q * q;
  value = (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
          (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

bool is_in_tail(double p) { return p > 1 - kTail || p < kTail; }

double inverse_normal(double p) {
  constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                          -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00};
  if (p > 1 - kTail) return -inverse_normal(1 - p);
  if (p < kTail) {
    const double q = std::sqrt(-2 * portable_log(p));
    return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
           ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
  }
  double value = 0;
  between_tails(p, value);
  return value;
}

// GCC's and Clang's vectors. A machine without such registers takes several of its own.
constexpr std::size_t kLanes = 4;
using Words = std::uint64_t __attribute__((vector_size(kLanes * sizeof(std::uint64_t))));
using Numbers = double __attribute__((vector_size(kLanes * sizeof(double))));

// Probabilities of IndexedRandom::bits() of `key`, of which `counter` is the first number's, and what they are between
// the tails: `count` of them, a multiple of kLanes.
[[gnu::always_inline]] inline void draw_vectors(std::uint64_t key, std::uint64_t counter, std::size_t count,
                                                double* probabilities, double* values) {
  Words z0 = Words{counter, counter + 1, counter + 2, counter + 3} * kSplitMixStep + key;
  for (std::size_t i = 0; i < count; i += kLanes, z0 += kLanes * kSplitMixStep) {
    Words z = z0;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z = z ^ (z >> 31);
    // A number below 2^52 as the mantissa of 2^52 and that: exact, where not every machine converts vectors.
    const Words with_exponent = (z >> 12) | 0x4330'0000'0000'0000u;
    Numbers whole;
    std::memcpy(&whole, &with_exponent, sizeof whole);
    const Numbers p = (whole - 0x1p52 + 0.5) * 0x1p-52;
    Numbers value;
    between_tails(p, value);
    std::memcpy(probabilities + i, &p, sizeof p);
    std::memcpy(values + i, &value, sizeof value);
  }
}

#if defined(__x86_64__)
// Without fused multiply-adds, whose results would be others.
[[gnu::target("avx2")]] void draw_by_avx2(std::uint64_t key, std::uint64_t counter, std::size_t count,
                                          double* probabilities, double* values) {
  draw_vectors(key, counter, count, probabilities, values);
}
#endif

void draw_numbers(std::uint64_t key, std::uint64_t counter, std::size_t count, double* probabilities, double* values) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return draw_by_avx2(key, counter, count, probabilities, values);
#endif
  draw_vectors(key, counter, count, probabilities, values);
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

void IndexedRandom::normals(std::int64_t first, std::span<double> out) const {
  constexpr std::size_t kAtOnce = 16 * kLanes;
  std::size_t done = 0;
  while (out.size() - done >= kLanes) {
    const std::size_t count = std::min(kAtOnce, (out.size() - done) / kLanes * kLanes);
    double probabilities[kAtOnce];
    draw_numbers(key_, static_cast<std::uint64_t>(first) + done + 1, count, probabilities, out.data() + done);
    for (std::size_t i = 0; i < count; ++i)
      if (is_in_tail(probabilities[i])) out[done + i] = inverse_normal(probabilities[i]);
    done += count;
  }
  for (; done < out.size(); ++done) out[done] = normal(first + static_cast<std::int64_t>(done));
}

}  // namespace flashcore
