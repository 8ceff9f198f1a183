#include "core/lse_limits.h"

#include <algorithm>
#include <cmath>

#include "core/rounded_sums.h"

namespace flashcore {

void LseBudget::add(const RowBudget& row) {
  const double variance = row.lse_variance + row.lse_chain_variance;
  systematic_ += row.lse_systematic;
  systematic2_ += row.lse_systematic * row.lse_systematic;
  variance_ += row.lse_variance;
  chain_variance_ += row.lse_chain_variance;
  variance2_ += variance * variance;
  largest_ = std::max(largest_, variance);
  ++rows_;
}

double LseBudget::sum_limit(double false_alarm, bool chain) const {
  return systematic_ + deviations(false_alarm) * std::sqrt(variance_ + (chain ? chain_variance_ : 0));
}

double LseBudget::norm_limit(double false_alarm) const {
  // Laurent and Massart (2000), lemma 1: how large a sum of squares may be.
  const double t = -std::log(false_alarm);
  const double squares = variance_ + chain_variance_ + 2 * std::sqrt(t * variance2_) + 2 * t * largest_;
  return std::sqrt(systematic2_) + std::sqrt(squares);
}

LseLimits limit_lse(std::span<const std::int32_t> head_of_row, std::span<const double> lse,
                    std::span<const RowBudget> budgets, double false_alarm) {
  LseLimits limits;
  if (head_of_row.empty() || budgets.empty()) return limits;
  std::vector<LseBudget> heads(1 + static_cast<std::size_t>(*std::max_element(head_of_row.begin(), head_of_row.end())));
  for (std::size_t row = 0; row < head_of_row.size(); ++row)
    if (std::isfinite(lse[row])) heads[static_cast<std::size_t>(head_of_row[row])].add(budgets[row]);
  const double of_one = false_alarm / static_cast<double>(2 * heads.size());
  for (const LseBudget& head : heads) {
    // Of the few rows of one head more than their mean decides whether one thread adds each up.
    limits.of_sum.push_back(head.sum_limit(of_one, true));
    limits.of_norm.push_back(head.norm_limit(of_one));
  }
  return limits;
}

}  // namespace flashcore
