#include "lab/statistics/rank_tests.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "lab/statistics/distributions.h"

namespace flashcore {
namespace {

constexpr std::size_t kExactSignedRank = 30;
constexpr std::size_t kExactPairs = 400;

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

// P(sum of positive ranks <= sum): each of the 2^n sign patterns is equally likely under the null.
double exact_lower_tail(const RankedDifferences& ranked, int at_most) {
  const int total = std::accumulate(ranked.doubled_ranks.begin(), ranked.doubled_ranks.end(), 0);
  std::vector<double> ways(static_cast<std::size_t>(total) + 1, 0.0);
  ways[0] = 1;
  for (const int rank : ranked.doubled_ranks)
    for (int sum = total; sum >= rank; --sum)
      ways[static_cast<std::size_t>(sum)] += ways[static_cast<std::size_t>(sum - rank)];
  double tail = 0;
  for (int sum = 0; sum <= at_most; ++sum) tail += ways[static_cast<std::size_t>(sum)];
  return tail / std::exp2(static_cast<double>(ranked.doubled_ranks.size()));
}

// The same by the normal approximation; midranks carry the tie correction, 0.5 is the continuity correction.
double normal_lower_tail(const RankedDifferences& ranked, int at_most) {
  double mean = 0, variance = 0;
  for (const int doubled : ranked.doubled_ranks) {
    mean += 0.25 * doubled;
    variance += 0.0625 * static_cast<double>(doubled) * doubled;
  }
  return normal_cdf((0.5 * at_most - mean + 0.5) / std::sqrt(variance));
}

// Ways to choose so that U = u, for every u: Mann & Whitney's recurrence, as a polynomial product.
std::vector<double> u_distribution(std::size_t n, std::size_t m) {
  std::vector<double> ways(n * m + 1, 0.0);
  ways[0] = 1;
  for (std::size_t i = 1; i <= n; ++i) {
    // times (1 - x^(m+i)), then divided by (1 - x^i)
    for (std::size_t u = ways.size(); u-- > m + i;) ways[u] -= ways[u - m - i];
    for (std::size_t u = i; u < ways.size(); ++u) ways[u] += ways[u - i];
  }
  return ways;
}

double tie_term(std::span<const double> a, std::span<const double> b) {
  std::vector<double> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  std::sort(all.begin(), all.end());
  double term = 0;
  for (std::size_t first = 0; first < all.size();) {
    std::size_t last = first;
    while (last < all.size() && all[last] == all[first]) ++last;
    const auto tied = static_cast<double>(last - first);
    term += tied * tied * tied - tied;
    first = last;
  }
  return term;
}

double count_pairs_above(std::span<const double> a, std::span<const double> b) {
  std::vector<double> sorted(b.begin(), b.end());
  std::sort(sorted.begin(), sorted.end());
  double u = 0;
  for (const double x : a) {
    const auto [equal, above] = std::equal_range(sorted.begin(), sorted.end(), x);
    u += static_cast<double>(equal - sorted.begin()) + 0.5 * static_cast<double>(above - equal);
  }
  return u;
}

}  // namespace

double wilcoxon_signed_rank(std::span<const double> values, Alternative alternative) {
  const RankedDifferences ranked = rank_differences(values);
  const std::size_t n = ranked.doubled_ranks.size();
  if (n == 0) return 1;
  const int total = std::accumulate(ranked.doubled_ranks.begin(), ranked.doubled_ranks.end(), 0);
  const int positive = ranked.doubled_positive_sum, negative = total - positive;
  const auto lower_tail = [&](int at_most) {
    return n <= kExactSignedRank ? exact_lower_tail(ranked, at_most) : normal_lower_tail(ranked, at_most);
  };
  // By symmetry the upper tail of the positive sum is the lower tail of the negative one.
  switch (alternative) {
    case Alternative::kLess: return lower_tail(positive);
    case Alternative::kGreater: return lower_tail(negative);
    case Alternative::kTwoSided: break;
  }
  return std::min(1.0, 2 * lower_tail(std::min(positive, negative)));
}

MannWhitney mann_whitney(std::span<const double> a, std::span<const double> b) {
  FC_CHECK(!a.empty() && !b.empty());
  MannWhitney result;
  result.u = count_pairs_above(a, b);
  const double pairs = static_cast<double>(a.size()) * static_cast<double>(b.size());
  const double extreme = std::max(result.u, pairs - result.u), ties = tie_term(a, b);
  if (ties == 0 && a.size() * b.size() <= kExactPairs) {
    const std::vector<double> ways = u_distribution(a.size(), b.size());
    double tail = 0;
    for (auto u = static_cast<std::size_t>(extreme); u < ways.size(); ++u) tail += ways[u];
    result.p_value = std::min(1.0, 2 * tail / std::accumulate(ways.begin(), ways.end(), 0.0));
    return result;
  }
  const auto n = static_cast<double>(a.size() + b.size());
  const double variance = pairs / 12 * (n + 1 - ties / (n * (n - 1)));
  if (!(variance > 0)) return result;
  result.p_value = std::min(1.0, 2 * normal_cdf(-(extreme - 0.5 * pairs - 0.5) / std::sqrt(variance)));
  return result;
}

double cliffs_delta(std::span<const double> a, std::span<const double> b) {
  FC_CHECK(!a.empty() && !b.empty());
  return 2 * count_pairs_above(a, b) / (static_cast<double>(a.size()) * static_cast<double>(b.size())) - 1;
}

}  // namespace flashcore
