#include "core/scale_limits.h"

#include <algorithm>
#include <cmath>

#include "core/rounded_sums.h"

namespace flashcore {
namespace {

// Of one group: what all of its values may have alike, the variance of the rest, and standard deviations that add up as
// they are. As the sum over all rows (docs/correctness.md, "Sums").
struct GroupSum {
  double systematic = 0, variance = 0, alike = 0;
  SignedSum rounded;
  double limit(double z) const { return std::max(systematic, rounded.largest()) + z * (std::sqrt(variance) + alike); }
};

}  // namespace

ScaleLimits limit_scales(const Problem& problem, std::span<const std::int32_t> head_of_row, std::span<const double> o,
                         std::span<const RowBudget> budgets, double false_alarm) {
  ScaleLimits limits;
  if (problem.dtype == DType::kF32 || head_of_row.empty()) return limits;
  const DType dtype = problem.output_dtype();
  const Precision output = precision_of(dtype);
  const std::int64_t columns = problem.head_dim_v;
  std::vector<GroupSum> heads(1 + static_cast<std::size_t>(*std::max_element(head_of_row.begin(), head_of_row.end())));
  std::vector<GroupSum> by_column(static_cast<std::size_t>(columns));
  for (std::size_t row = 0; row < head_of_row.size(); ++row) {
    const double* values = &o[row * static_cast<std::size_t>(columns)];
    double squares = 0;
    for (std::int64_t d = 0; d < columns; ++d) squares += values[d] * values[d];
    if (!std::isfinite(squares) || squares == 0) continue;
    const double norm = std::sqrt(squares);
    const RowBudget& b = budgets[row];
    GroupSum& head = heads[static_cast<std::size_t>(head_of_row[row])];
    head.systematic += b.scale_systematic, head.variance += b.scale_variance, head.alike += b.scale_alike;
    for_each_rounding(dtype, values, columns, norm, b, [&](std::int64_t d, double error, double other) {
      const double value = values[d], rounding = half_gap(output, value) / std::sqrt(3.0) * std::abs(value);
      GroupSum& column = by_column[static_cast<std::size_t>(d)];
      // All that a row's error may be apart from o's rounding may be in this column.
      column.systematic += std::abs(value) / norm * b.scale_systematic;
      column.variance += value * value / squares * b.scale_variance + rounding * rounding;
      if (b.scale_alike > 0) column.alike += rounding;
      for (SignedSum* sum : {&head.rounded, &column.rounded}) {
        sum->add(error * value);
        if (other != 0) sum->may_move_by(other * value);
      }
    });
  }
  const double z = deviations(false_alarm / static_cast<double>(heads.size() + by_column.size()));
  for (const GroupSum& head : heads) limits.of_head.push_back(head.limit(z));
  for (const GroupSum& column : by_column) limits.of_column.push_back(column.limit(z));
  return limits;
}

}  // namespace flashcore
