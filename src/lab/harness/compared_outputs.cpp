#include "lab/harness/compared_outputs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel.h"

namespace flashcore {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Same value, or both NaN.
bool same_nonfinite(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

double ratio(double top, double bottom) { return bottom > 0 ? top / bottom : top > 0 ? kInfinity : 0.0; }

}  // namespace

ComparedOutputs::ComparedOutputs(const PlacedProblem& problem, const AttentionOutputs& ours,
                                 const AttentionOutputs& theirs)
    : heads_(problem.heads_q), rows_(ours.o.layout.rows), columns_(ours.o.layout.columns) {
  const std::int64_t all_heads = ours.o.layout.batch * heads_;
  differences_.resize(static_cast<std::size_t>(all_heads * rows_));
  parallel_for(all_heads, 0, [&](std::int64_t head) {
    for (std::int64_t place = head * rows_; place < (head + 1) * rows_; ++place) {
      const auto at = static_cast<std::size_t>(place);
      differences_[at] = of_row(ours, theirs, row_at(place), at);
    }
  });
  double norms = 0;
  for (const Difference& d : differences_) norms += std::sqrt(d.norm2);
  floor_ = 1e-3 * norms / std::max<double>(1, static_cast<double>(differences_.size()));
}

RowSample::Row ComparedOutputs::row_at(std::int64_t place) const {
  const std::int64_t head = place / rows_;
  return {head / heads_, head % heads_, place % rows_};
}

void ComparedOutputs::leave_out(std::int64_t place) {
  differences_.at(static_cast<std::size_t>(place)).left_out = true;
}

ComparedOutputs::Difference ComparedOutputs::of_row(const AttentionOutputs& ours, const AttentionOutputs& theirs,
                                                    const RowSample::Row& row, std::size_t place) {
  Difference d;
  for (std::int64_t c = 0; c < ours.o.layout.columns; ++c) {
    const float x = ours.o.at(row.batch, row.head, row.row, c), y = theirs.o.at(row.batch, row.head, row.row, c);
    if (!std::isfinite(x) || !std::isfinite(y)) {
      d.nonfinite += !same_nonfinite(x, y);
      continue;
    }
    const double difference = static_cast<double>(x) - y;
    d.error2 += difference * difference;
    d.norm2 += static_cast<double>(y) * y;
    d.bias += difference;
    d.max_abs = std::max(d.max_abs, std::abs(difference));
  }
  const float x = ours.lse[place], y = theirs.lse[place];
  if (std::isfinite(x) && std::isfinite(y)) d.lse_abs = std::abs(static_cast<double>(x) - y);
  else d.nonfinite += !same_nonfinite(x, y);
  return d;
}

double ComparedOutputs::rel(const Difference& d) const {
  return d.nonfinite ? kInfinity : ratio(std::sqrt(d.error2), std::max(std::sqrt(d.norm2), floor_));
}

OutputError ComparedOutputs::error() const {
  OutputError error;
  double error2 = 0, norm2 = 0, worst = -1;
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < differences_.size(); ++i) {
    const Difference& d = differences_[i];
    if (d.left_out) continue;
    ++rows;
    error2 += d.error2;
    norm2 += d.norm2;
    error.bias += d.bias;
    error.max_abs = std::max(error.max_abs, d.max_abs);
    error.lse_max_abs = std::max(error.lse_max_abs, d.lse_abs);
    error.nonfinite += d.nonfinite;
    const double of_row = rel(d);
    if (of_row > worst) worst = of_row, error.first_bad_row = static_cast<std::int64_t>(i);
    if (std::isfinite(of_row)) error.worst_row_rel = std::max(error.worst_row_rel, of_row);
  }
  error.rel = ratio(std::sqrt(error2), std::sqrt(norm2));
  error.bias /= std::max<double>(1, static_cast<double>(rows * columns_));
  return error;
}

std::vector<std::int64_t> ComparedOutputs::rows_beyond(const ErrorBound& bound) const {
  std::vector<std::int64_t> beyond;
  for (std::size_t i = 0; i < differences_.size(); ++i) {
    const Difference& d = differences_[i];
    if (!d.left_out && !(rel(d) <= bound.worst_row_rel && d.lse_abs <= bound.lse_max_abs))
      beyond.push_back(static_cast<std::int64_t>(i));
  }
  return beyond;
}

OutputError compare_outputs(const PlacedProblem& problem, const AttentionOutputs& ours,
                            const AttentionOutputs& theirs) {
  return ComparedOutputs(problem, ours, theirs).error();
}

}  // namespace flashcore
