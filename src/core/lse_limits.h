#pragma once
// How far the log-sum-exps of rows may be off by rounding alone: in sum, and in squares. An error that one head has in
// all of its rows is lost in the mean and the rms over all heads.

#include <cstdint>
#include <span>
#include <vector>

#include "core/row_budget.h"

namespace flashcore {

// Of rows whose log-sum-exp is finite (docs/correctness.md, "Sums").
class LseBudget {
 public:
  void add(const RowBudget& row);
  std::int64_t rows() const { return rows_; }
  // Of the sum of lse - ref, where several lanes add up a row; `chain`: or one thread alone.
  double sum_limit(double false_alarm, bool chain) const;
  // Of the root of the sum of (lse - ref)^2.
  double norm_limit(double false_alarm) const;

 private:
  double systematic_ = 0, systematic2_ = 0, variance_ = 0, chain_variance_ = 0, variance2_ = 0, largest_ = 0;
  std::int64_t rows_ = 0;
};

// By head, as Reference::head_of_row counts them.
struct LseLimits {
  std::vector<double> of_sum, of_norm;
};

// Rows of an lse that is not finite have no part. An honest kernel is beyond one of all limits with a probability of at
// most `false_alarm`.
LseLimits limit_lse(std::span<const std::int32_t> head_of_row, std::span<const double> lse,
                    std::span<const RowBudget> budgets, double false_alarm);

}  // namespace flashcore
