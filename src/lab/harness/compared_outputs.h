#pragma once
// Two outputs of the same inputs against each other, every element.

#include <cstdint>
#include <vector>

#include "core/reference.h"
#include "lab/harness/operands.h"

namespace flashcore {

class ComparedOutputs {
 public:
  // Reads both, on all cores.
  ComparedOutputs(const PlacedProblem& problem, const AttentionOutputs& ours, const AttentionOutputs& theirs);

  // Of the rows that are not left out. Fields as compare() of core/reference.h; first_bad_row counts b, h, row.
  [[nodiscard]] OutputError error() const;
  // The rows that alone are beyond the bound of a row or of the LSE, by their places b, h, row, in order.
  [[nodiscard]] std::vector<std::int64_t> rows_beyond(const ErrorBound& bound) const;
  [[nodiscard]] RowSample::Row row_at(std::int64_t place) const;
  void leave_out(std::int64_t place);

 private:
  struct Difference {
    double error2 = 0, norm2 = 0, bias = 0, max_abs = 0, lse_abs = 0;
    std::int64_t nonfinite = 0;
    bool left_out = false;
  };
  static Difference of_row(const AttentionOutputs& ours, const AttentionOutputs& theirs, const RowSample::Row& row,
                           std::size_t place);
  [[nodiscard]] double rel(const Difference& d) const;

  std::int64_t heads_, rows_, columns_;
  std::vector<Difference> differences_;
  double floor_ = 0;  // of a row's norm, as compare() has it
};

// error() of all rows.
OutputError compare_outputs(const PlacedProblem& problem, const AttentionOutputs& ours, const AttentionOutputs& theirs);

}  // namespace flashcore
