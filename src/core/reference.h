#pragma once
// The definition of correct: fp64 attention on the same quantised inputs, and what an idealised kernel of the same
// precision would make of them (docs/correctness.md).

#include <cstdint>
#include <limits>
#include <vector>

#include "core/data.h"
#include "core/lse_limits.h"
#include "core/problem.h"
#include "core/row_budget.h"
#include "core/scale_limits.h"
#include "core/tensor.h"

namespace flashcore {

// Which query rows to compute. Large problems are judged on a sample of rows against fp64 (every row is then compared
// with the on-device oracle); small ones on all of them.
struct RowSample {
  struct Row {
    std::int64_t batch, head, row;
  };
  // Of a ragged batch: batch 0, and the row in the packed tensors.
  std::vector<Row> rows;  // empty and all == true: every row
  bool all = true;
};
// All rows if that costs at most `max_flops`, else a seeded sample that always holds first, last and tile-edge rows
// (multiples of 16 ± 1) and touches every (batch, head) while the budget allows.
RowSample choose_rows(const Problem& problem, double max_flops, std::uint64_t seed);

// For each chosen row: head_dim_v outputs and one log-sum-exp, in the order of the sample (all: b, h, row).
struct Reference {
  std::vector<double> o;         // rows × head_dim_v
  std::vector<double> lse;       // rows; natural log of sum exp(score), a sink's included; -inf for a row of neither
  std::vector<float> ideal_o;    // the same by an idealised kernel: fp32 accumulation, P rounded to the dtype,
  std::vector<float> ideal_lse;  // o rounded to the dtype
  // Per row, what rounding theory predicts for that kernel: the rms of ‖o − ref‖ and of |lse − ref|. Keeps the bound
  // sane where the ideal kernel is exact by luck (one key, one column, fp32). 0 where o is not finite.
  std::vector<float> predicted_o;
  std::vector<float> predicted_lse;
  // Of a problem that asks for largest magnitudes: that of each row's scores, NaN of a row that is invalid, and how far
  // off a kernel's may be.
  std::vector<double> amax;
  std::vector<float> amax_error;
  std::vector<RowBudget> budgets;         // of rows whose o is finite; zeros for the others
  std::vector<std::int32_t> head_of_row;  // batch entry * heads_q + head; of a ragged batch its head
  ScaleLimits scale_limits;
  LseLimits lse_limits;
  std::int64_t rows = 0;
};

// A row that sees no key (masked, or seqlen_kv = 0), or whose scores are all -inf: o = 0, lse = -inf, or its sink.
// A NaN score or sink, or +inf as a row's maximum, makes o and lse of that row NaN.
// Threads: 0 = all cores. Time: B1 H8 S2048 D64 under 10 s on 2 cores.
Reference reference_forward(const Problem& problem, const AttentionInputs& inputs, const RowSample& rows,
                            int threads = 0);

// Of a ragged problem whose sequences have other lengths than its own, which its operands can hold
// (shorter_sequences): the rows and keys of each follow those of the one before it, in a paged cache they are its first
// ones. `rows` are a sample, of rows that the sequences have.
Reference reference_forward(const Problem& problem, const std::vector<SequenceLengths>& sequences,
                            const AttentionInputs& inputs, const RowSample& rows, int threads = 0);
// A sample for that, of all of their rows where these cost at most `max_flops`.
RowSample choose_rows(const Problem& problem, const std::vector<SequenceLengths>& sequences, double max_flops,
                      std::uint64_t seed);

// ideal_o and ideal_lse of every row, and nothing else: several times faster than fp64, for the rows that a sample
// leaves out.
Reference ideal_forward(const Problem& problem, const AttentionInputs& inputs, int threads = 0);

// How far an output is from the reference.
struct OutputError {
  double rel = 0;            // ‖o − ref‖F / ‖ref‖F over rows that are finite in the reference
  double worst_row_rel = 0;  // the same per row, the largest; ‖ref row‖ floored at 1e-3 of the mean row norm;
                             // infinite if a row that sees no key is not exactly 0
  double row_share = 0;      // of a row's error in what rounding allows of that row, the largest: 1 at its bound
  double max_abs = 0;
  // What a norm averages away, judged by what rounding allows over so many values:
  double scale = 0;        // <o, ref> / <ref, ref> - 1
  double scale_share = 0;  // of one head's or column's <o - ref, ref> in what rounding allows of it, the largest
  double bias = 0;         // mean of (o − ref), signed
  double lse_max_abs = 0;  // over finite reference values, and so
  double lse_bias = 0;     // mean of (lse - ref), signed
  double lse_rms = 0;
  double lse_share = 0;  // of one head's sum, or root of squares, of lse - ref in what rounding allows, the largest
  std::int64_t nonfinite = 0;       // values non-finite in o or lse where the reference is finite, or the reverse
  std::int64_t first_bad_row = -1;  // index into the sample: first row with such a value, else the worst row
};
struct ErrorBound {
  double rel = 0, worst_row_rel = 0, lse_max_abs = 0;
  // Infinite: not judged.
  double row_share = std::numeric_limits<double>::infinity();
  double scale = std::numeric_limits<double>::infinity();
  double scale_share = std::numeric_limits<double>::infinity();
  double bias = std::numeric_limits<double>::infinity();
  double lse_bias = std::numeric_limits<double>::infinity();
  double lse_rms = std::numeric_limits<double>::infinity();
  double lse_share = std::numeric_limits<double>::infinity();
};

// The scale_limits and lse_limits of a reference whose rows were changed; their heads stay.
void limit_heads(const Problem& problem, Reference& reference);

// `o` and `lse`: values of the chosen rows as stored by the kernel (o already converted from its dtype).
OutputError compare(const Problem& problem, const Reference& reference, const std::vector<float>& o,
                    const std::vector<float>& lse);
// Of the sums (scale, scale_share, bias, lse_bias, lse_rms, lse_share) an honest kernel trips one with a probability of
// at most this.
inline constexpr double kFalseAlarm = 1e-9;
ErrorBound error_bound(const Problem& problem, const Reference& reference);
bool within(const OutputError& error, const ErrorBound& bound);
// Its parts; NaN is within none.
// nonfinite, rel, worst_row_rel, row_share, lse_max_abs
bool within_norms(const OutputError& error, const ErrorBound& bound);
bool within_scale(const OutputError& error, const ErrorBound& bound);
bool within_bias(const OutputError& error, const ErrorBound& bound);
bool within_lse_sums(const OutputError& error, const ErrorBound& bound);  // lse_bias, lse_rms, lse_share

// Collects the chosen rows of a host tensor, as float.
std::vector<float> gather_rows(const HostTensor& tensor, const RowSample& rows);
std::vector<float> gather_lse(const Problem& problem, const std::vector<float>& lse, const RowSample& rows);

}  // namespace flashcore
