// Boundaries of a ragged batch that no sequence can have.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "core/boundaries.h"
#include "lab/gates/lengths.h"

namespace flashcore {

DeviceLengths::DeviceLengths(Device& device, const std::vector<std::int32_t>& lengths)
    : device_(device), buffer_(device.allocate(std::max<std::size_t>(1, lengths.size()) * sizeof(std::int32_t))) {
  store(lengths);
}

void DeviceLengths::store(const std::vector<std::int32_t>& lengths) {
  device_.upload(buffer_->data(), lengths.data(), lengths.size() * sizeof(std::int32_t));
}

Reference without_sequences(const PlacedProblem& problem, const Reference& reference, const RowSample& rows,
                            const Boundaries& boundaries, const std::set<std::size_t>& sequences) {
  Reference others = reference;
  const auto columns = static_cast<std::size_t>(problem.head_dim_v);
  for (std::size_t i = 0; i < static_cast<std::size_t>(reference.rows); ++i) {
    const std::int64_t row = rows.all ? static_cast<std::int64_t>(i) % boundaries.q.back() : rows.rows[i].row;
    if (!sequences.contains(static_cast<std::size_t>(sequence_of_row(boundaries.q, row)))) continue;
    std::fill_n(others.o.begin() + static_cast<std::ptrdiff_t>(i * columns), columns,
                std::numeric_limits<double>::quiet_NaN());
    others.lse[i] = std::numeric_limits<double>::quiet_NaN();
  }
  limit_heads(problem, others);
  return others;
}

namespace {

using Int32s = std::vector<std::int32_t>;

struct ImpossibleBoundaries {
  const char* what;
  Int32s q, kv;
  std::set<std::size_t> bad;  // sequences whose rows are NaN
  bool last_has_rows = true;  // that are within the tensor: else nothing of it is written
  bool others_have_keys = true;
};

// Only the first and the last boundary are of one sequence alone.
std::vector<ImpossibleBoundaries> impossible_boundaries(const PlacedProblem& problem) {
  const Boundaries own = boundaries_of(problem);
  const Int32s q(own.q.begin(), own.q.end()), kv(own.kv.begin(), own.kv.end());
  const std::size_t last = q.size() - 2;
  std::vector<ImpossibleBoundaries> all;
  ImpossibleBoundaries each{"a first row of -1 and a last key beyond the tensor", q, kv, {0, last}};
  each.q.front() = -1, each.kv.back() += 1;
  if (problem.paged()) each.bad = {0};
  all.push_back(each);
  each = {"a first key of -1 and rows that end before they begin", q, kv, {0, last}, false};
  each.kv.front() = -1, each.q.back() = q[last] - 1;
  if (problem.paged()) each.bad = {last};
  all.push_back(each);
  each = {"a last row beyond the tensor and keys that end before they begin", q, kv, {last}};
  each.q.back() += 1, each.kv.back() = kv[last] - 1;
  all.push_back(each);
  if (!problem.paged() && own.kv.back() > problem.seqlen_kv) {
    each = {"more keys than the bound", q, Int32s(kv.size(), 0), {last}, true, false};
    each.kv.back() = kv.back();
    all.push_back(each);
  }
  if (own.q.back() > problem.seqlen_q) {
    each = {"more rows than the bound", Int32s(q.size(), 0), kv, {}};
    each.q.back() = q.back();
    for (std::size_t s = 0; s <= last; ++s) each.bad.insert(s);
    all.push_back(each);
  }
  return all;
}

// No sequence has a key.
Reference without_keys(const JudgedCall& call) {
  std::vector<SequenceLengths> sequences = call.problem.sequences();
  for (SequenceLengths& each : sequences) each.kv = 0;
  RowSample rows = call.oracle.rows;
  if (rows.all) {
    for (std::int64_t head = 0; head < call.problem.heads_q; ++head)
      for (std::int64_t row = 0; row < boundaries_of(sequences).q.back(); ++row) rows.rows.push_back({0, head, row});
    rows.all = false;
  }
  return reference_forward(call.problem, sequences, call.oracle.inputs, rows);
}

}  // namespace

std::optional<CallFault> check_impossible_boundaries(const JudgedCall& call, nlohmann::json& evidence) {
  const Boundaries own = boundaries_of(call.problem);
  const Int32s q(own.q.begin(), own.q.end()), kv(own.kv.begin(), own.kv.end());
  DeviceLengths device_q(call.device, q), device_kv(call.device, kv);
  AttentionArgs args = call.operands.args();
  args.cu_seqlens_q = device_q.data();
  if (!call.problem.paged()) args.cu_seqlens_kv = device_kv.data();
  LaunchesByLse launches(call, args);
  const auto judge = [&](const Reference& reference, const ErrorBound& bound, const std::string& boundaries,
                         std::int64_t first_unwritten, const std::set<std::size_t>& bad) {
    return launches.judge(
        Check::kLengths, [&](AttentionOutputs& outputs, const std::string& how) -> std::optional<CallFault> {
          const std::string where = how + boundaries;
          if (const auto name = is_on(Check::kRedZones) ? call.operands.broken_red_zone() : std::nullopt)
            return CallFault{Check::kLengths, where + fmt::format("it wrote out of bounds around {}", *name)};
          if (is_on(Check::kPoison) && rows_written(outputs, first_unwritten, own.q.back()))
            return CallFault{Check::kLengths, where + "it wrote rows that no sequence has"};
          // NaN is what the outputs hold before a launch, too.
          for (const std::size_t sequence : bad)
            if (is_on(Check::kPoison) &&
                rows_left(outputs, own.q[sequence], std::min(own.q[sequence + 1], first_unwritten)))
              return CallFault{Check::kLengths,
                               where + fmt::format("it wrote nothing to rows of sequence {}", sequence)};
          const OutputError error = compare_sample(call.problem, reference, call.oracle.rows, outputs);
          if (is_right(error, bound)) return std::nullopt;
          return CallFault{Check::kLengths, where + "it is wrong: " + describe_error(error, bound)};
        });
  };
  const std::vector<ImpossibleBoundaries> all = impossible_boundaries(call.problem);
  for (const ImpossibleBoundaries& each : all) {
    device_q.store(each.q), device_kv.store(each.kv);
    const Reference reference =
        without_sequences(call.problem, each.others_have_keys ? call.oracle.reference : without_keys(call),
                          call.oracle.rows, own, each.bad);
    // Fewer rows average less: the bound of all would be too small for them.
    if (auto found =
            judge(reference, error_bound(call.problem, reference), fmt::format("with boundaries of {} ", each.what),
                  each.last_has_rows ? own.q.back() : own.q[own.q.size() - 2], each.bad))
      return found;
    device_q.store(q), device_kv.store(kv);
    if (auto found = judge(call.oracle.reference, call.oracle.bound, fmt::format("after boundaries of {} ", each.what),
                           own.q.back(), {}))
      return found;
  }
  evidence["impossible_boundaries"] = all.size();
  return std::nullopt;
}

}  // namespace flashcore
