#pragma once
// Sums of what an output is off by where it is the reference, rounded.

#include <algorithm>
#include <cmath>

#include "core/dtype.h"
#include "core/reference_error.h"
#include "core/row_budget.h"

namespace flashcore {

// A sum of independent sub-Gaussian errors is larger than this many standard deviations, either way, with the
// probability `false_alarm`: 2 exp(-z^2 / 2).
inline double deviations(double false_alarm) { return std::sqrt(-2 * std::log(false_alarm / 2)); }

// A sum of errors, and how far single roundings that come out the other way may move it up or down.
struct SignedSum {
  double sum = 0, up = 0, down = 0;
  void add(double value) { sum += value; }
  void may_move_by(double value) { (value > 0 ? up : down) += value; }
  double largest() const { return std::max(std::abs(sum + up), std::abs(sum + down)); }
};

// Calls body(column, error, other) for each value of a row of the reference: what rounding it to `dtype` makes of it,
// and what else it may make where the value is so close to the middle of two numbers that an error which all rows may
// share carries it over; 0 where it does not.
template <class Body>
void for_each_rounding(DType dtype, const double* o, std::int64_t columns, double row_norm, const RowBudget& budget,
                       const Body& body) {
  const Precision output = precision_of(dtype);
  // Of a row of equal values each may have the same part of it.
  const double shared = row_norm > 0 ? budget.scale_systematic / (row_norm * row_norm) : 0;
  const double rms = row_norm / std::sqrt(static_cast<double>(columns));
  for (std::int64_t d = 0; d < columns; ++d) {
    const double error = static_cast<double>(round_to(dtype, static_cast<float>(o[d]))) - o[d];
    if (!std::isfinite(error)) continue;  // fp16 that overflows is judged by its kind
    const double half = half_gap(output, o[d]);
    const bool is_close = error != 0 && half - std::abs(error) <= shared * std::max(std::abs(o[d]), rms);
    body(d, error, !is_close ? 0 : error > 0 ? -2 * half : 2 * half);
  }
}

}  // namespace flashcore
