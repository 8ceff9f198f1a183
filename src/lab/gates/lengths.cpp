// Sequences of a ragged batch that are shorter than those that its candidate was bound with.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "core/boundaries.h"
#include "core/ragged.h"
#include "lab/gates/calls.h"

namespace flashcore {
namespace {

std::string print_lengths(const std::vector<SequenceLengths>& sequences) {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t s = 0; s < std::min(sequences.size(), kMost); ++s)
    text += fmt::format("{}{}/{}", s == 0 ? "" : ", ", sequences[s].q, sequences[s].kv);
  return text + (sequences.size() > kMost ? ", ..." : "");
}

}  // namespace

std::optional<CallFault> check_lengths(const JudgedCall& call, nlohmann::json& evidence) {
  if (!call.problem.ragged() || !is_on(Check::kLengths)) return std::nullopt;
  const std::vector<ShorterSequences>& sets = OracleCache::shorter(call.problem, call.oracle);
  for (const ShorterSequences& set : sets) {
    call.operands.upload_lengths(set.sequences);
    const AttentionOutputs outputs = launch_once(call.device, call.operands, call.launch);
    const std::string where = fmt::format("with sequences of {} rows and keys ", print_lengths(set.sequences));
    if (const auto name = is_on(Check::kRedZones) ? call.operands.broken_red_zone() : std::nullopt)
      return CallFault{Check::kLengths, where + fmt::format("it wrote out of bounds around {}", *name)};
    if (is_on(Check::kPoison) && rows_written(outputs, boundaries_of(set.sequences).q.back(), outputs.o.layout.rows))
      return CallFault{Check::kLengths, where + "it wrote rows that no sequence has"};
    const OutputError error = compare_sample(call.problem, set.reference, set.rows, outputs);
    if (!is_right(error, set.bound))
      return CallFault{Check::kLengths, where + "it is wrong: " + describe_error(error, set.bound)};
  }
  call.operands.upload_lengths(call.problem.sequences());
  evidence["shorter_sequences"] = sets.size();
  return std::nullopt;
}

namespace {

// NaN in the rows first .. end - 1, as padding that nobody wrote may hold. int8 has none, and keeps what it has.
void spoil_rows(HostTensor& packed, std::int64_t first, std::int64_t end) {
  if (packed.dtype == DType::kInt8) return;
  for (std::int64_t head = 0; head < packed.layout.heads; ++head)
    for (std::int64_t row = first; row < end; ++row)
      for (std::int64_t column = 0; column < packed.layout.columns; ++column)
        packed.set(0, head, row, column, std::numeric_limits<float>::quiet_NaN());
}

// The inputs, of which no sequence uses more than `to` says of those that begin where `from` says. Pages are shared,
// and keep all of their keys.
AttentionInputs spoiled_behind(const PlacedProblem& problem, const AttentionInputs& inputs, const Boundaries& from,
                               const Boundaries& to) {
  AttentionInputs spoiled = inputs;
  for (std::size_t s = 0; s + 1 < to.q.size(); ++s) {
    spoil_rows(spoiled.q, from.q[s] + to.q[s + 1] - to.q[s], from.q[s + 1]);
    if (problem.paged()) continue;
    for (HostTensor* keys : {&spoiled.k, &spoiled.v})
      spoil_rows(*keys, from.kv[s] + to.kv[s + 1] - to.kv[s], from.kv[s + 1]);
  }
  return spoiled;
}

// What is left where the rows that count were packed: another sequence's, which no row of the sample is.
void pack_rows(AttentionOutputs& outputs, const Boundaries& from, const Boundaries& to) {
  pack_rows(outputs.o, from.q, to.q);
  const std::int64_t rows = outputs.o.layout.rows;
  for (std::int64_t head = 0; head < outputs.o.layout.heads; ++head)
    for (std::size_t s = 0; s + 1 < to.q.size(); ++s)
      for (std::int64_t row = 0; row < to.q[s + 1] - to.q[s]; ++row)
        outputs.lse[static_cast<std::size_t>(head * rows + to.q[s] + row)] =
            outputs.lse[static_cast<std::size_t>(head * rows + from.q[s] + row)];
}

// Some of the rows that none of the sequences uses.
bool unused_rows_written(const AttentionOutputs& outputs, const Boundaries& from, const Boundaries& to) {
  for (std::size_t s = 0; s + 1 < to.q.size(); ++s)
    if (rows_written(outputs, from.q[s] + to.q[s + 1] - to.q[s], from.q[s + 1])) return true;
  return false;
}

class DeviceLengths {
 public:
  DeviceLengths(Device& device, const std::vector<std::int32_t>& lengths)
      : buffer_(device.allocate(std::max<std::size_t>(1, lengths.size()) * sizeof(std::int32_t))) {
    device.upload(buffer_->data(), lengths.data(), lengths.size() * sizeof(std::int32_t));
  }
  const std::int32_t* data() const { return static_cast<const std::int32_t*>(buffer_->data()); }

 private:
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace

namespace {

// A launch with these numbers of rows and keys, of which none is given that all sequences have anyway; packed.
class UsedLaunch {
 public:
  UsedLaunch(const JudgedCall& call, const ShorterSequences& set)
      : call_(call),
        set_(set),
        from_(boundaries_of(call.problem)),
        to_(boundaries_of(set.sequences)),
        spoiled_(set.sequences) {
    for (const SequenceLengths& each : set.sequences)
      rows_.push_back(static_cast<std::int32_t>(each.q)), keys_.push_back(static_cast<std::int32_t>(each.kv));
  }

  // More keys than it can have; those that it has are numbers, so that NaN comes from nothing but that.
  void make_impossible(std::size_t sequence) {
    const SequenceLengths own = call_.problem.sequences()[sequence];
    keys_[sequence] = static_cast<std::int32_t>(1 + (call_.problem.paged() ? call_.problem.seqlen_kv : own.kv));
    spoiled_[sequence].kv = own.kv;
    gives_keys_ = true;
  }

  std::optional<CallFault> judge(const Reference& reference, const ErrorBound& bound, const std::string& what) {
    const DeviceLengths used_q(call_.device, rows_), used_kv(call_.device, keys_);
    AttentionArgs args = call_.operands.args();
    if (call_.problem.paged() || to_.kv != from_.kv || gives_keys_) args.seqused_kv = used_kv.data();
    if (to_.q != from_.q) args.seqused_q = used_q.data();
    AttentionInputs inputs = spoiled_behind(call_.problem, call_.oracle.inputs, from_, boundaries_of(spoiled_));
    if (!set_.block_table.empty()) inputs.block_table = set_.block_table;
    call_.operands.upload(inputs);
    AttentionOutputs outputs = launch_once(call_.device, call_.operands, call_.loaded.bind(args));
    const std::string where =
        fmt::format("with {}{}{} of sequences of {} rows and keys{} ", args.seqused_q ? "seqused_q" : "",
                    args.seqused_q && args.seqused_kv ? " and " : "", args.seqused_kv ? "seqused_kv" : "",
                    print_lengths(set_.sequences), what);
    if (const auto name = is_on(Check::kRedZones) ? call_.operands.broken_red_zone() : std::nullopt)
      return CallFault{Check::kUsedLengths, where + fmt::format("it wrote out of bounds around {}", *name)};
    if (is_on(Check::kPoison) && unused_rows_written(outputs, from_, to_))
      return CallFault{Check::kUsedLengths, where + "it wrote rows that are not used"};
    pack_rows(outputs, from_, to_);
    const OutputError error = compare_sample(call_.problem, reference, set_.rows, outputs);
    if (is_right(error, bound)) return std::nullopt;
    return CallFault{Check::kUsedLengths, where + "it is wrong: " + describe_error(error, bound)};
  }

 private:
  const JudgedCall& call_;
  const ShorterSequences& set_;
  Boundaries from_, to_;
  std::vector<SequenceLengths> spoiled_;  // behind these lies NaN
  std::vector<std::int32_t> rows_, keys_;
  bool gives_keys_ = false;  // other numbers than the set's
};

// NaN in all rows of that sequence of the set.
Reference without_sequence(const PlacedProblem& problem, const ShorterSequences& set, std::size_t sequence) {
  Reference reference = set.reference;
  const Boundaries at = boundaries_of(set.sequences);
  const auto columns = static_cast<std::size_t>(problem.head_dim_v);
  for (std::size_t i = 0; i < set.rows.rows.size(); ++i) {
    const std::int64_t row = set.rows.rows[i].row;
    if (row < at.q[sequence] || row >= at.q[sequence + 1]) continue;
    std::fill_n(reference.o.begin() + static_cast<std::ptrdiff_t>(i * columns), columns,
                std::numeric_limits<double>::quiet_NaN());
    reference.lse[i] = std::numeric_limits<double>::quiet_NaN();
  }
  return reference;
}

}  // namespace

std::optional<CallFault> check_used_lengths(const JudgedCall& call, nlohmann::json& evidence) {
  if (!call.problem.ragged() || !is_on(Check::kUsedLengths)) return std::nullopt;
  const std::vector<ShorterSequences>& sets = OracleCache::used(call.problem, call.oracle);
  for (const ShorterSequences& set : sets)
    if (auto found = UsedLaunch(call, set).judge(set.reference, set.bound, "")) return found;
  // Of lengths that no batch has, that sequence's rows are NaN, and all others right: with the keys of the set in which
  // they are given alone.
  const ShorterSequences& keys_alone = sets[sets.size() - 2];
  const auto longest = std::max_element(keys_alone.sequences.begin(), keys_alone.sequences.end(),
                                        [](const auto& a, const auto& b) { return a.q < b.q; });
  if (longest->q > 0) {
    const auto sequence = static_cast<std::size_t>(longest - keys_alone.sequences.begin());
    UsedLaunch impossible(call, keys_alone);
    impossible.make_impossible(sequence);
    // Fewer rows average less: the bound of all would be too small for them.
    const Reference others = without_sequence(call.problem, keys_alone, sequence);
    if (auto found = impossible.judge(others, error_bound(call.problem, others),
                                      fmt::format(", and more keys than sequence {} can have,", sequence)))
      return found;
  }
  call.operands.upload(call.oracle.inputs);
  evidence["used_lengths"] = sets.size() + 1;
  return std::nullopt;
}

}  // namespace flashcore
