#include "lab/harness/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/boundaries.h"
#include "core/parallel.h"
#include "core/ragged.h"

namespace flashcore {
namespace {

template <class Element>
std::size_t bytes_of(const std::vector<Element>& elements) {
  return elements.size() * sizeof(Element);
}

std::size_t bytes_of(const Reference& r) {
  const ScaleLimits& limits = r.scale_limits;
  return bytes_of(r.o) + bytes_of(r.lse) + bytes_of(r.ideal_o) + bytes_of(r.ideal_lse) + bytes_of(r.predicted_o) +
         bytes_of(r.predicted_lse) + bytes_of(r.amax) + bytes_of(r.amax_error) + bytes_of(r.budgets) +
         bytes_of(r.head_of_row) + bytes_of(limits.of_head) + bytes_of(limits.of_column) +
         bytes_of(r.lse_limits.of_sum) + bytes_of(r.lse_limits.of_norm);
}

// Fills in what follows from the inputs.
void judge_inputs(const PlacedProblem& problem, Oracle& oracle) {
  oracle.rows = choose_rows(problem, oracle.max_reference_flops, oracle.seed);
  oracle.reference = reference_forward(problem, oracle.inputs, oracle.rows);
  oracle.bound = error_bound(problem, oracle.reference);
}

std::shared_ptr<Oracle> make_oracle(const PlacedProblem& problem, Pattern pattern, std::uint64_t seed,
                                    double max_reference_flops) {
  auto oracle = std::make_shared<Oracle>(Oracle{max_reference_flops, seed, {}, {}, {}, {}, {}, {}, {}, {}});
  oracle->inputs = make_inputs(problem, pattern, seed);
  return oracle;
}

void narrow(ElementTensor& tensor) {
  const std::int64_t columns = tensor.shape.sizes[static_cast<std::size_t>(tensor.shape.count - 1)];
  for (std::int64_t i = 0; i < tensor.count(); ++i) {
    const std::int64_t column = i % columns;
    const auto place = static_cast<std::size_t>(i);
    if (tensor.element == ExpressionType::kBool)
      tensor.data[place] = 4 * column < columns ? std::byte{0xff} : std::byte{0};
    if (tensor.element != ExpressionType::kInt) continue;
    const auto value = static_cast<std::int32_t>(column / 5);
    std::memcpy(tensor.data.data() + place * sizeof value, &value, sizeof value);
  }
}

}  // namespace

std::size_t bytes_of(const Oracle& oracle) {
  std::size_t bytes = bytes_of(oracle.inputs) + bytes_of(oracle.reference) + bytes_of(oracle.rows.rows);
  if (oracle.every_row) bytes += oracle.every_row->o.data.size() + bytes_of(oracle.every_row->lse);
  for (const std::vector<ShorterSequences>* sets : {&oracle.shorter, &oracle.used})
    for (const ShorterSequences& set : *sets)
      bytes += bytes_of(set.block_table) + bytes_of(set.sequences) + bytes_of(set.rows.rows) + bytes_of(set.reference);
  return bytes + (oracle.other ? bytes_of(*oracle.other) : 0);
}

std::shared_ptr<const Oracle> OracleCache::get(const PlacedProblem& problem, Pattern pattern, std::uint64_t seed,
                                               double max_reference_flops) {
  const std::string key = fmt::format("{} {} {} {}", problem.id(), to_string(pattern), seed, max_reference_flops);
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return entries_.front().oracle;
  }
  const auto oracle = make_oracle(problem, pattern, seed, max_reference_flops);
  judge_inputs(problem, *oracle);
  entries_.push_front({key, oracle});
  std::size_t total = 0;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    total += bytes_of(*entry->oracle);
    if (total > max_bytes_ && entry != entries_.begin()) {
      entries_.erase(entry, entries_.end());
      break;
    }
  }
  return oracle;
}

const AttentionOutputs& OracleCache::every_row(const PlacedProblem& problem, const Oracle& oracle) {
  if (oracle.every_row) return *oracle.every_row;
  Reference ideal = ideal_forward(problem, oracle.inputs);
  AttentionOutputs outputs{HostTensor(problem.dtype, make_layouts(problem).o), std::move(ideal.ideal_lse)};
  const std::int64_t heads = problem.heads_q, rows = outputs.o.layout.rows, columns = problem.head_dim_v;
  parallel_for(outputs.o.layout.batch * heads, 0, [&](std::int64_t bh) {
    const float* from = ideal.ideal_o.data() + bh * rows * columns;
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t c = 0; c < columns; ++c) outputs.o.set(bh / heads, bh % heads, row, c, *from++);
  });
  oracle.every_row = std::move(outputs);
  return *oracle.every_row;
}

namespace {

ShorterSequences judged(const PlacedProblem& problem, const Oracle& oracle, const AttentionInputs& inputs,
                        std::vector<SequenceLengths> sequences) {
  ShorterSequences set;
  set.sequences = std::move(sequences);
  set.rows = choose_rows(problem, set.sequences, oracle.max_reference_flops, oracle.seed);
  set.reference = reference_forward(problem, set.sequences, inputs, set.rows);
  set.bound = error_bound(problem, set.reference);
  return set;
}

// Of the last page that a sequence uses there is none, in turn before the pool and behind it.
void break_table(const PlacedProblem& problem, const std::vector<SequenceLengths>& sequences, AttentionInputs& inputs) {
  const std::size_t stride = inputs.block_table.size() / sequences.size();
  const auto pages = static_cast<std::int32_t>(inputs.k.layout.batch);
  int broken = 0;
  for (std::size_t s = 0; s < sequences.size() && broken < 2; ++s) {
    if (sequences[s].q == 0 || sequences[s].kv == 0) continue;
    const auto last = static_cast<std::size_t>((sequences[s].kv - 1) / problem.page_size);
    inputs.block_table[s * stride + last] = broken++ == 0 ? -1 : pages;
  }
}

}  // namespace

std::span<const ShorterSequences> OracleCache::shorter(const PlacedProblem& problem, const Oracle& oracle,
                                                       std::size_t most) {
  std::vector<std::vector<SequenceLengths>> sets = shorter_sequences(problem);
  most = std::min(most, sets.size());
  for (std::size_t i = oracle.shorter.size(); i < most; ++i)
    oracle.shorter.push_back(judged(problem, oracle, oracle.inputs, std::move(sets[i])));
  return std::span(oracle.shorter).first(most);
}

const Oracle& OracleCache::other(const PlacedProblem& problem, const Oracle& oracle) {
  if (!oracle.other) {
    const auto other = make_oracle(problem, Pattern::kNormal, oracle.seed + 1, oracle.max_reference_flops);
    for (ElementTensor& tensor : other->inputs.tensors) narrow(tensor);
    judge_inputs(problem, *other);
    oracle.other = other;
  }
  return *oracle.other;
}

std::span<const ShorterSequences> OracleCache::used(const PlacedProblem& problem, const Oracle& oracle,
                                                    std::size_t most) {
  const std::vector<SequenceLengths> own = problem.sequences();
  std::vector<std::vector<SequenceLengths>> sets = shorter_sequences(problem);
  // Of a padded cache the callers give how many keys there are, and nothing of the rows; and of padded rows the
  // reverse.
  std::vector<SequenceLengths> keys_alone = sets.front(), rows_alone = sets.front();
  for (std::size_t s = 0; s < own.size(); ++s) keys_alone[s].q = own[s].q, rows_alone[s].kv = own[s].kv;
  sets.push_back(std::move(keys_alone));
  sets.push_back(std::move(rows_alone));
  const Boundaries from = boundaries_of(own);
  most = std::min(most, sets.size());
  for (std::size_t i = oracle.used.size(); i < most; ++i) {
    std::vector<SequenceLengths>& sequences = sets[i];
    const Boundaries to = boundaries_of(sequences);
    AttentionInputs packed = oracle.inputs;
    pack_rows(packed.q, from.q, to.q);
    // Those of a paged cache are found by the block table.
    if (!problem.paged()) pack_rows(packed.k, from.kv, to.kv), pack_rows(packed.v, from.kv, to.kv);
    if (problem.paged() && oracle.used.empty()) break_table(problem, sequences, packed);
    oracle.used.push_back(judged(problem, oracle, packed, std::move(sequences)));
    if (problem.paged()) oracle.used.back().block_table = packed.block_table;
  }
  return std::span(oracle.used).first(most);
}

std::optional<Check> exceeded(const OutputError& error, const ErrorBound& bound) {
  if (is_on(Check::kErrorBound) && !within_norms(error, bound)) return Check::kErrorBound;
  if (is_on(Check::kScale) && !within_scale(error, bound)) return Check::kScale;
  if (is_on(Check::kBias) && !within_bias(error, bound)) return Check::kBias;
  if (is_on(Check::kLse) && !within_lse_sums(error, bound)) return Check::kLse;
  return std::nullopt;
}

std::string describe_error(const OutputError& e, const ErrorBound& b) {
  if (e.nonfinite > 0)
    return fmt::format(
        "{} values are NaN or infinite where the reference is finite, or the reverse (first bad row of the sample: {})",
        e.nonfinite, e.first_bad_row);
  std::string text;
  const auto part = [&](const char* name, double value, double limit) {
    if (!(std::abs(value) <= limit))
      text += fmt::format("{}{} {:.3g} exceeds its bound {:.3g}", text.empty() ? "" : ", ", name, value, limit);
  };
  part("relative error", e.rel, b.rel);
  part("relative error of the worst row", e.worst_row_rel, b.worst_row_rel);
  part("share of a row's error in that row's bound", e.row_share, b.row_share);
  part("LSE error", e.lse_max_abs, b.lse_max_abs);
  part("the scale of o is off: <o, ref> / <ref, ref> - 1 of", e.scale, b.scale);
  part("share of the scale of one head or column in its bound", e.scale_share, b.scale_share);
  part("o is biased: its mean error", e.bias, b.bias);
  part("the LSE is biased: its mean error", e.lse_bias, b.lse_bias);
  part("rms error of the LSE", e.lse_rms, b.lse_rms);
  part("share of the LSE error of one head in its bound", e.lse_share, b.lse_share);
  return text + fmt::format(" (worst row of the sample: {})", e.first_bad_row);
}

double share_of_bound(const OutputError& error, const ErrorBound& bound) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (error.nonfinite > 0) return infinity;
  const auto share = [&](double value, double limit) {
    return value == 0 ? 0.0 : limit > 0 ? value / limit : infinity;
  };
  // NaN compares false both ways; a NaN error must not look like a small one.
  double largest = 0;
  for (const double s : {share(error.rel, bound.rel), share(error.worst_row_rel, bound.worst_row_rel),
                         share(error.row_share, bound.row_share), share(error.lse_max_abs, bound.lse_max_abs),
                         share(std::abs(error.scale), bound.scale), share(error.scale_share, bound.scale_share),
                         share(std::abs(error.bias), bound.bias), share(std::abs(error.lse_bias), bound.lse_bias),
                         share(error.lse_rms, bound.lse_rms), share(error.lse_share, bound.lse_share)})
    largest = std::isnan(s) ? infinity : std::max(largest, s);
  return largest;
}

OracleCache& shared_oracles() {
  static OracleCache cache;
  return cache;
}

}  // namespace flashcore
