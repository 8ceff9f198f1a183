// V that is NaN in all of one head, or of one sequence: the rows that see it, and all others.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "core/boundaries.h"
#include "core/paged.h"
#include "lab/gates/calls.h"

namespace flashcore {
namespace {

// Heads of a batch entry, or rows of a ragged batch's packed tensors, whose V is NaN.
struct Spoiled {
  std::string what;
  std::int64_t batch = 0;
  std::int64_t first_head = 0, end_head = 0;  // of q
  std::int64_t first_row = 0, end_row = 0;
  std::int64_t first_key = 0;  // keys before it are numbers
  Band<std::int64_t> band;
};

void spoil(HostTensor& v, std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t end) {
  for (std::int64_t row = first; row < end; ++row)
    for (std::int64_t column = 0; column < v.layout.columns; ++column)
      v.set(batch, head, row, column, std::numeric_limits<float>::quiet_NaN());
}

// One of the middle, so that there are others before it and behind it.
Spoiled spoil_head(const PlacedProblem& problem, HostTensor& v) {
  const std::int64_t number = problem.batch * problem.heads_kv / 2, head = number % problem.heads_kv,
                     group = problem.group_size();
  Spoiled spoiled{
      "", number / problem.heads_kv, head * group, (head + 1) * group, 0, problem.seqlen_q, 0, problem.band()};
  spoiled.what = fmt::format("V of key head {} of batch entry {}", head, spoiled.batch);
  spoil(v, spoiled.batch, head, 0, v.layout.rows);
  return spoiled;
}

// Its pages that no other sequence has, which are its last ones. Returns the first key of these.
std::int64_t spoil_pages(const PlacedProblem& problem, const std::vector<std::int32_t>& table, std::size_t sequence,
                         HostTensor& v) {
  const std::vector<SequenceLengths> all = problem.sequences();
  const std::size_t stride = table.size() / all.size();
  const auto pages = [&](std::size_t s) {
    return static_cast<std::size_t>(pages_of_keys(all[s].kv, problem.page_size));
  };
  std::set<std::int32_t> of_others;
  for (std::size_t s = 0; s < all.size(); ++s)
    for (std::size_t place = 0; s != sequence && place < pages(s); ++place) of_others.insert(table[s * stride + place]);
  std::int64_t first_key = all[sequence].kv;
  for (std::size_t place = pages(sequence); place-- > 0;) {
    const std::int32_t page = table[sequence * stride + place];
    if (of_others.contains(page)) break;
    first_key = static_cast<std::int64_t>(place) * problem.page_size;
    for (std::int64_t head = 0; head < problem.heads_kv; ++head)
      spoil(v, page, head, 0, std::min(problem.page_size, all[sequence].kv - first_key));
  }
  return first_key;
}

std::optional<Spoiled> spoil_sequence(const PlacedProblem& problem, AttentionInputs& inputs) {
  const std::vector<SequenceLengths> all = problem.sequences();
  std::vector<std::size_t> with_both;
  for (std::size_t s = 0; s < all.size(); ++s)
    if (all[s].q > 0 && all[s].kv > 0) with_both.push_back(s);
  if (with_both.empty()) return std::nullopt;
  const std::size_t s = with_both[with_both.size() / 2];
  const Boundaries at = boundaries_of(problem);
  Spoiled spoiled{fmt::format("V of sequence {}", s), 0, 0, problem.heads_q, at.q[s], at.q[s + 1], 0,
                  problem.of_sequence(all[s]).band()};
  if (problem.paged()) spoiled.first_key = spoil_pages(problem, inputs.block_table, s, inputs.v);
  for (std::int64_t head = 0; head < problem.heads_kv && !problem.paged(); ++head)
    spoil(inputs.v, 0, head, at.kv[s], at.kv[s + 1]);
  return spoiled;
}

// A row that sees a key of them and has a number in o. Where a function may hide keys nobody says which row sees one.
std::optional<std::int64_t> row_without_nan(const PlacedProblem& problem, const Spoiled& spoiled, const HostTensor& o) {
  if (problem.has_expression()) return std::nullopt;
  for (std::int64_t head = spoiled.first_head; head < spoiled.end_head; ++head)
    for (std::int64_t row = spoiled.first_row; row < spoiled.end_row; ++row) {
      const KeyRange<std::int64_t> keys = spoiled.band.keys_of_row(row - spoiled.first_row);
      if (std::max(keys.begin, spoiled.first_key) >= keys.end) continue;
      for (std::int64_t column = 0; column < o.layout.columns; ++column)
        if (!std::isnan(o.at(spoiled.batch, head, row, column))) return row - spoiled.first_row;
    }
  return std::nullopt;
}

// Those rows of `from` in `to`.
void copy_rows(const Spoiled& spoiled, const AttentionOutputs& from, AttentionOutputs& to) {
  const TensorLayout& l = to.o.layout;
  const std::size_t bytes = static_cast<std::size_t>(l.columns) * size_of(to.o.dtype);
  for (std::int64_t head = spoiled.first_head; head < spoiled.end_head; ++head)
    for (std::int64_t row = spoiled.first_row; row < spoiled.end_row; ++row) {
      const auto at = static_cast<std::size_t>(l.offset(spoiled.batch, head, row)) * size_of(to.o.dtype);
      std::memcpy(to.o.data.data() + at, from.o.data.data() + at, bytes);
      const auto of_lse = static_cast<std::size_t>((spoiled.batch * l.heads + head) * l.rows + row);
      to.lse[of_lse] = from.lse[of_lse];
    }
}

}  // namespace

std::optional<CallFault> check_nan_of_v(const JudgedCall& call) {
  const PlacedProblem& problem = call.problem;
  if (!is_on(Check::kNanOfV) || is_integer(problem.cache_dtype())) return std::nullopt;
  if (problem.batch * problem.heads_kv == 0) return std::nullopt;
  AttentionInputs inputs = call.oracle.inputs;
  const std::optional<Spoiled> spoiled =
      problem.ragged() ? spoil_sequence(problem, inputs) : spoil_head(problem, inputs.v);
  if (!spoiled) return std::nullopt;
  call.operands.upload(inputs);
  AttentionOutputs outputs = launch_once(call.device, call.operands, call.launch);
  call.operands.upload(call.oracle.inputs);
  if (const auto row = row_without_nan(problem, *spoiled, outputs.o))
    return CallFault{Check::kNanOfV,
                     fmt::format("with NaN in {}, row {}, which sees it, is not NaN", spoiled->what, *row)};
  copy_rows(*spoiled, call.outputs, outputs);
  const OutputError error = compare_sample(problem, call.oracle.reference, call.oracle.rows, outputs);
  if (is_right(error, call.oracle.bound)) return std::nullopt;
  return CallFault{Check::kNanOfV, fmt::format("with NaN in {}, others are wrong: {}", spoiled->what,
                                               describe_error(error, call.oracle.bound))};
}

}  // namespace flashcore
