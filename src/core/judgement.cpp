// compare, error_bound and within of core/reference.h: is an output close enough to the reference.

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/reference.h"
#include "core/reference_error.h"
#include "core/rounded_sums.h"

namespace flashcore {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
// Below this a norm is taken as zero, so that an all-zero reference asks for an all-zero output.
constexpr double kTiny = 1e-30;

struct RowNorms {
  std::vector<double> row;  // ‖ref row‖; NaN where the reference is not finite
  double total = 0;         // ‖ref‖ over finite rows
  double floor = kTiny;     // the least row norm to divide by
  std::int64_t finite = 0;
};

RowNorms reference_norms(const Reference& reference, std::int64_t columns) {
  RowNorms norms;
  double squares = 0, sum = 0;
  for (std::int64_t r = 0; r < reference.rows; ++r) {
    double row = 0;
    for (std::int64_t d = 0; d < columns; ++d) {
      const double value = reference.o[static_cast<std::size_t>(r * columns + d)];
      row += value * value;
    }
    const bool finite = std::isfinite(row);
    norms.row.push_back(finite ? std::sqrt(row) : std::numeric_limits<double>::quiet_NaN());
    if (!finite) continue;
    squares += row;
    sum += std::sqrt(row);
    ++norms.finite;
  }
  norms.total = std::sqrt(squares);
  if (norms.finite > 0) norms.floor = std::max(kTiny, 1e-3 * sum / static_cast<double>(norms.finite));
  return norms;
}

// NaN where the reference has NaN, the same infinity where it has one, finite where it is finite.
bool same_kind(double reference, float value) {
  if (std::isnan(reference)) return std::isnan(value);
  if (std::isinf(reference)) return static_cast<double>(value) == reference;
  return std::isfinite(value);
}

// What rounding allows of a row: as much as the idealised kernel's own error says, where that is more than was
// foreseen.
double bound_of_row(const Reference& reference, std::size_t row, std::size_t columns) {
  double ideal = 0;
  for (std::size_t d = 0; d < columns; ++d) {
    const double error = reference.ideal_o[row * columns + d] - reference.o[row * columns + d];
    if (std::isfinite(error)) ideal += error * error;
  }
  return std::max(reference.budgets[row].worst, kBoundFactor * slack(static_cast<double>(columns)) * std::sqrt(ideal));
}

// The sums that ScaleLimits are of.
class GroupSums {
 public:
  explicit GroupSums(const Reference& reference)
      : head_of_row_(reference.head_of_row),
        limits_(reference.scale_limits),
        heads_(limits_.of_head.size()),
        columns_(limits_.of_column.size()) {}
  void add(std::size_t row, std::size_t column, double along) {
    if (columns_.empty()) return;
    heads_[static_cast<std::size_t>(head_of_row_[row])] += along;
    columns_[column] += along;
  }
  double largest_share() const {
    double largest = 0;
    const auto share = [&](double sum, double limit) {
      if (sum != 0) largest = std::max(largest, std::abs(sum) / std::max(limit, kTiny * kTiny));
    };
    for (std::size_t i = 0; i < heads_.size(); ++i) share(heads_[i], limits_.of_head[i]);
    for (std::size_t i = 0; i < columns_.size(); ++i) share(columns_[i], limits_.of_column[i]);
    return largest;
  }

 private:
  const std::vector<std::int32_t>& head_of_row_;
  const ScaleLimits& limits_;
  std::vector<double> heads_, columns_;
};

// Errors of the log-sum-exp, of all heads and of each.
class LseSums {
 public:
  explicit LseSums(const Reference& reference) : reference_(reference), heads_(reference.lse_limits.of_sum.size()) {}
  void add(std::size_t row, double difference) {
    all_.add(difference);
    if (!heads_.empty()) heads_[static_cast<std::size_t>(reference_.head_of_row[row])].add(difference);
  }
  void write_to(OutputError& error) const {
    error.lse_max_abs = all_.largest;
    if (all_.values > 0) {
      error.lse_bias = all_.sum / static_cast<double>(all_.values);
      error.lse_rms = std::sqrt(all_.squares / static_cast<double>(all_.values));
    }
    const LseLimits& limits = reference_.lse_limits;
    for (std::size_t i = 0; i < heads_.size(); ++i) {
      if (heads_[i].largest == 0) continue;
      error.lse_share = std::max({error.lse_share, std::abs(heads_[i].sum) / std::max(limits.of_sum[i], kTiny),
                                  std::sqrt(heads_[i].squares) / std::max(limits.of_norm[i], kTiny)});
    }
  }

 private:
  struct Sums {
    double sum = 0, squares = 0, largest = 0;
    std::int64_t values = 0;
    void add(double difference) {
      sum += difference, squares += difference * difference, ++values;
      largest = std::max(largest, std::abs(difference));
    }
  };
  const Reference& reference_;
  Sums all_;
  std::vector<Sums> heads_;
};

}  // namespace

OutputError compare(const Problem& problem, const Reference& reference, const std::vector<float>& o,
                    const std::vector<float>& lse) {
  const std::int64_t columns = problem.head_dim_v;
  FC_CHECK(o.size() == reference.o.size() && lse.size() == reference.lse.size());
  FC_CHECK(static_cast<std::int64_t>(o.size()) == reference.rows * columns);
  const RowNorms norms = reference_norms(reference, columns);
  OutputError error;
  GroupSums groups(reference);
  LseSums lse_sums(reference);
  double squares = 0, sum = 0, along = 0;
  std::int64_t values = 0, broken_row = -1, most_of_its_bound = -1;
  for (std::int64_t r = 0; r < reference.rows; ++r) {
    const auto at_row = static_cast<std::size_t>(r);
    double row = 0, row_sum = 0, row_along = 0;
    std::int64_t row_values = 0;
    std::int64_t broken = same_kind(reference.lse[at_row], lse[at_row]) ? 0 : 1;
    if (std::isfinite(reference.lse[at_row]) && std::isfinite(lse[at_row]))
      lse_sums.add(at_row, lse[at_row] - reference.lse[at_row]);
    for (std::int64_t d = 0; d < columns; ++d) {
      const auto at = static_cast<std::size_t>(r * columns + d);
      if (!same_kind(reference.o[at], o[at])) ++broken;
      if (!std::isfinite(reference.o[at]) || !std::isfinite(o[at])) continue;
      const double difference = o[at] - reference.o[at];
      error.max_abs = std::max(error.max_abs, std::abs(difference));
      row_sum += difference;
      row_along += difference * reference.o[at];
      if (std::isfinite(norms.row[at_row]))
        groups.add(at_row, static_cast<std::size_t>(d), difference * reference.o[at]);
      row += difference * difference;
      ++row_values;
    }
    error.nonfinite += broken;
    if (broken > 0 && broken_row < 0) broken_row = r;
    if (std::isnan(norms.row[at_row])) continue;
    squares += row;
    sum += row_sum;
    along += row_along;
    values += row_values;
    const bool sees_nothing = reference.lse[at_row] == -kInf;
    const double rel = row == 0 ? 0 : sees_nothing ? kInf : std::sqrt(row) / std::max(norms.row[at_row], norms.floor);
    if (rel > error.worst_row_rel) {
      error.worst_row_rel = rel;
      error.first_bad_row = r;
    }
    if (reference.budgets.empty() || row == 0) continue;
    const double share =
        std::sqrt(row) / std::max(bound_of_row(reference, at_row, static_cast<std::size_t>(columns)), kTiny);
    if (share > error.row_share) error.row_share = share, most_of_its_bound = r;
  }
  error.rel = squares == 0 ? 0 : std::sqrt(squares) / std::max(norms.total, kTiny);
  error.scale = along == 0 ? 0 : along / std::max(norms.total * norms.total, kTiny * kTiny);
  error.scale_share = groups.largest_share();
  error.bias = values == 0 ? 0 : sum / static_cast<double>(values);
  lse_sums.write_to(error);
  // A row that is small beside the others may be worse than the worst of these.
  if (error.row_share > 1) error.first_bad_row = most_of_its_bound;
  if (broken_row >= 0) error.first_bad_row = broken_row;
  return error;
}

namespace {

const double kDeviations = deviations(kFalseAlarm);

// What the sums are if o is the reference's, rounded. Where a kernel's own errors are far below the gaps of o's type,
// equal values round alike and the errors do not average out; they are these.
struct RoundedReference {
  SignedSum along, sum;  // of <o - ref, ref>, and of o - ref
  void add_row(DType dtype, const double* o, std::int64_t columns, double row_norm, const RowBudget& budget) {
    for_each_rounding(dtype, o, columns, row_norm, budget, [&](std::int64_t d, double error, double other) {
      along.add(error * o[d]);
      sum.add(error);
      if (other == 0) return;
      along.may_move_by(other * o[d]);
      sum.may_move_by(other);
    });
  }
};

void bound_sums(const Problem& problem, const Reference& reference, const RowNorms& norms, ErrorBound& bound) {
  RowBudget zero;
  const DType dtype = problem.output_dtype();
  RoundedReference rounded;
  double scale = 0, scale2 = 0, scale_alike = 0, bias = 0, bias2 = 0, bias_alike = 0, rows = 0;
  LseBudget lse;
  for (std::int64_t r = 0; r < reference.rows; ++r) {
    const auto at = static_cast<std::size_t>(r);
    const RowBudget& b = reference.budgets.empty() ? zero : reference.budgets[at];
    if (std::isfinite(reference.lse[at])) lse.add(b);
    if (std::isnan(norms.row[at])) continue;
    scale += b.scale_systematic;
    scale2 += b.scale_variance;
    scale_alike += b.scale_alike;
    bias += b.bias_systematic;
    bias2 += b.bias_variance;
    bias_alike += b.bias_alike;
    ++rows;
    if (problem.dtype != DType::kF32)
      rounded.add_row(dtype, &reference.o[at * static_cast<std::size_t>(problem.head_dim_v)], problem.head_dim_v,
                      norms.row[at], b);
  }
  if (lse.rows() > 0) {
    const auto lse_rows = static_cast<double>(lse.rows());
    bound.lse_bias = lse.sum_limit(kFalseAlarm, false) / lse_rows;
    bound.lse_rms = lse.norm_limit(kFalseAlarm) / std::sqrt(lse_rows);
  }
  const double values = rows * static_cast<double>(problem.head_dim_v);
  if (values == 0) return;
  const double norm2 = std::max(norms.total * norms.total, kTiny * kTiny);
  if (problem.dtype == DType::kF32) return;  // neither can be larger than the norm of the error, which is as small
  bound.scale = (std::max(scale, rounded.along.largest()) + kDeviations * (std::sqrt(scale2) + scale_alike)) / norm2;
  bound.bias = (std::max(bias, rounded.sum.largest()) + kDeviations * (std::sqrt(bias2) + bias_alike)) / values;
}

}  // namespace

ErrorBound error_bound(const Problem& problem, const Reference& reference) {
  const RowNorms norms = reference_norms(reference, problem.head_dim_v);
  const OutputError ideal = compare(problem, reference, reference.ideal_o, reference.ideal_lse);
  const double columns = static_cast<double>(problem.head_dim_v);
  double squares = 0, worst_row = 0, worst_of_rows = 0, lse = 0;
  for (std::int64_t r = 0; r < reference.rows; ++r) {
    const auto at = static_cast<std::size_t>(r);
    // A row of o that is not finite may have a finite lse.
    if (std::isfinite(reference.lse[at])) lse = std::max(lse, static_cast<double>(reference.predicted_lse[at]));
    if (std::isnan(norms.row[at])) continue;
    const double predicted = reference.predicted_o[at];
    squares += predicted * predicted;
    const double norm = std::max(norms.row[at], norms.floor);
    worst_row = std::max(worst_row, predicted / norm);
    if (!reference.budgets.empty()) worst_of_rows = std::max(worst_of_rows, reference.budgets[at].worst / norm);
  }
  const double rel = std::sqrt(squares) / std::max(norms.total, kTiny);
  ErrorBound bound;
  bound.rel = kBoundFactor * slack(columns * static_cast<double>(norms.finite)) * std::max(rel, ideal.rel);
  bound.worst_row_rel =
      std::max(worst_of_rows, kBoundFactor * slack(columns) * std::max(worst_row, ideal.worst_row_rel));
  bound.row_share = bound.scale_share = bound.lse_share = 1;
  bound.lse_max_abs = kBoundFactor * std::max(lse, ideal.lse_max_abs);
  bound_sums(problem, reference, norms, bound);
  if (problem.dtype == DType::kF32) return bound;
  // Rows may have the same weights in other places (ALiBi on constant data), which then round alike: what that makes of
  // a sum the idealised kernel shows.
  bound.scale = std::max(bound.scale, kBoundFactor * std::abs(ideal.scale));
  bound.bias = std::max(bound.bias, kBoundFactor * std::abs(ideal.bias));
  bound.scale_share = std::max(bound.scale_share, kBoundFactor * ideal.scale_share);
  return bound;
}

// Written so that a NaN in any of them fails.
bool within_norms(const OutputError& error, const ErrorBound& bound) {
  return error.nonfinite == 0 && error.rel <= bound.rel && error.worst_row_rel <= bound.worst_row_rel &&
         error.row_share <= bound.row_share && error.lse_max_abs <= bound.lse_max_abs;
}

bool within_scale(const OutputError& error, const ErrorBound& bound) {
  return std::abs(error.scale) <= bound.scale && error.scale_share <= bound.scale_share;
}

bool within_bias(const OutputError& error, const ErrorBound& bound) { return std::abs(error.bias) <= bound.bias; }

bool within_lse_sums(const OutputError& error, const ErrorBound& bound) {
  return std::abs(error.lse_bias) <= bound.lse_bias && error.lse_rms <= bound.lse_rms &&
         error.lse_share <= bound.lse_share;
}

bool within(const OutputError& error, const ErrorBound& bound) {
  return within_norms(error, bound) && within_scale(error, bound) && within_bias(error, bound) &&
         within_lse_sums(error, bound);
}

}  // namespace flashcore
