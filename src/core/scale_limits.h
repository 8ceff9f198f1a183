#pragma once
// How far the outputs of one head, or of one column, may be off along themselves by rounding alone. An error that one
// head has in all of its rows (a factor of its own that is rounded), or one column in all rows, is lost in the sums
// over all and in each row.

#include <cstdint>
#include <span>
#include <vector>

#include "core/problem.h"
#include "core/row_budget.h"

namespace flashcore {

// Of sums of (o - ref) * ref over the rows of a head (of a batch entry), and over all rows of a column. Empty for fp32,
// whose outputs are not rounded: the norms say all there is.
struct ScaleLimits {
  std::vector<double> of_head, of_column;
};

// Of a reference's rows: `head_of_row` is Reference's, `o` holds rows × head_dim_v values. Rows that are not finite
// have no part. An honest kernel is beyond one of all limits with a probability of at most `false_alarm`.
ScaleLimits limit_scales(const Problem& problem, std::span<const std::int32_t> head_of_row, std::span<const double> o,
                         std::span<const RowBudget> budgets, double false_alarm);

}  // namespace flashcore
