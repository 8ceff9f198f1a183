// Sequences of a ragged batch that are shorter than those that its candidate was bound with.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "core/boundaries.h"
#include "core/ragged.h"
#include "lab/gates/lengths.h"
#include "lab/harness/amax.h"

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

void pack_rows(AttentionOutputs& outputs, const Boundaries& from, const Boundaries& to) {
  pack_rows(outputs.o, from.q, to.q);
  const std::int64_t rows = outputs.o.layout.rows;
  for (std::int64_t head = 0; head < outputs.o.layout.heads; ++head)
    for (std::size_t s = 0; s + 1 < to.q.size(); ++s)
      for (std::int64_t row = 0; row < to.q[s + 1] - to.q[s]; ++row)
        outputs.lse[static_cast<std::size_t>(head * rows + to.q[s] + row)] =
            outputs.lse[static_cast<std::size_t>(head * rows + from.q[s] + row)];
}

LaunchesByLse::LaunchesByLse(const JudgedCall& call, const AttentionArgs& args, bool also_without)
    : call_(call), with_(call.loaded.bind(args)), is_second_left_(also_without && is_on(Check::kNoLse)) {
  if (!is_second_left_) return;
  AttentionArgs of_o = args;
  of_o.lse = nullptr;
  without_ = call.loaded.bind(of_o);
}

std::optional<CallFault> LaunchesByLse::judge(
    Check check, const std::function<std::optional<CallFault>(AttentionOutputs&, const std::string&)>& judge) {
  AttentionOutputs outputs = launch_once(call_.device, call_.operands, with_);
  std::vector<float> lse = outputs.lse;
  if (auto found = judge(outputs, "")) return found;
  if (!std::exchange(is_second_left_, false)) return std::nullopt;
  outputs = launch_once(call_.device, call_.operands, without_);
  const AttentionOutputs untouched{HostTensor(), outputs.lse};
  if (is_on(Check::kPoison) && count_unwritten(untouched) != static_cast<std::int64_t>(lse.size()))
    return CallFault{check, "a launch without lse wrote to the lse of an earlier one"};
  outputs.lse = std::move(lse);
  return judge(outputs, "without lse ");
}

namespace {

std::optional<CallFault> judge_shorter(const JudgedCall& call, const ShorterSequences& set, LaunchesByLse& launches) {
  call.operands.upload_lengths(set.sequences);
  return launches.judge(
      Check::kLengths, [&](AttentionOutputs& outputs, const std::string& how) -> std::optional<CallFault> {
        const std::string where =
            how + fmt::format("with sequences of {} rows and keys ", print_lengths(set.sequences));
        if (const auto name = is_on(Check::kRedZones) ? call.operands.broken_red_zone() : std::nullopt)
          return CallFault{Check::kLengths, where + fmt::format("it wrote out of bounds around {}", *name)};
        if (is_on(Check::kPoison) &&
            rows_written(outputs, boundaries_of(set.sequences).q.back(), outputs.o.layout.rows))
          return CallFault{Check::kLengths, where + "it wrote rows that no sequence has"};
        const OutputError error = compare_sample(call.problem, set.reference, set.rows, outputs);
        if (!is_right(error, set.bound))
          return CallFault{Check::kLengths, where + "it is wrong: " + describe_error(error, set.bound)};
        if (auto wrong = find_wrong_amax(call.problem, set.reference, set.rows, outputs))
          return CallFault{Check::kLengths, where + *wrong};
        return std::nullopt;
      });
}

}  // namespace

std::optional<CallFault> check_lengths(const JudgedCall& call, Extent extent, nlohmann::json& evidence) {
  if (!call.problem.ragged() || !is_on(Check::kLengths)) return std::nullopt;
  const bool all = extent == Extent::kAll;
  const std::span<const ShorterSequences> sets = OracleCache::shorter(call.problem, call.oracle, all ? kAllSets : 1);
  LaunchesByLse launches(call, call.operands.args(), all);
  for (const ShorterSequences& set : sets)
    if (auto found = judge_shorter(call, set, launches)) return found;
  evidence["shorter_sequences"] = sets.size();
  if (all)
    if (auto found = check_moved_sequences(call, sets.back())) return found;
  call.operands.upload_lengths(call.problem.sequences());
  return all ? check_impossible_boundaries(call, evidence) : std::nullopt;
}

namespace {

// NaN in the rows first .. end - 1, as padding that nobody wrote may hold. int8 and int4 have none, and keep what they
// have.
void spoil_rows(HostTensor& packed, std::int64_t first, std::int64_t end) {
  if (is_integer(packed.dtype)) return;
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

// Some of the rows that none of the sequences uses.
bool unused_rows_written(const AttentionOutputs& outputs, const Boundaries& from, const Boundaries& to) {
  for (std::size_t s = 0; s + 1 < to.q.size(); ++s)
    if (rows_written(outputs, from.q[s] + to.q[s + 1] - to.q[s], from.q[s + 1])) return true;
  return false;
}

// A launch with these numbers of rows and keys, of which none is given that all sequences have anyway; packed.
class UsedLaunch {
 public:
  UsedLaunch(const JudgedCall& call, const ShorterSequences& set, bool also_without_lse)
      : call_(call),
        set_(set),
        also_without_lse_(also_without_lse),
        from_(boundaries_of(call.problem)),
        to_(boundaries_of(set.sequences)),
        spoiled_(set.sequences) {
    for (const SequenceLengths& each : set.sequences)
      rows_.push_back(static_cast<std::int32_t>(each.q)), keys_.push_back(static_cast<std::int32_t>(each.kv));
  }

  // Numbers that the sequence cannot have. The keys that it has are numbers, so that NaN comes from nothing but that.
  void make_impossible(std::size_t sequence, std::optional<std::int64_t> rows, std::optional<std::int64_t> keys) {
    if (rows) rows_[sequence] = static_cast<std::int32_t>(*rows);
    if (keys) keys_[sequence] = static_cast<std::int32_t>(*keys);
    spoiled_[sequence].kv = call_.problem.sequences()[sequence].kv;
    bad_.insert(sequence);
    is_impossible_ = true;
  }
  // The set's again, for the launch that was bound.
  void make_possible() {
    for (const std::size_t s : bad_) {
      rows_[s] = static_cast<std::int32_t>(set_.sequences[s].q),
      keys_[s] = static_cast<std::int32_t>(set_.sequences[s].kv);
      spoiled_[s] = set_.sequences[s];
    }
    bad_.clear();
  }

  std::optional<CallFault> judge(const std::string& what) {
    AttentionInputs inputs = spoiled_behind(call_.problem, call_.oracle.inputs, from_, boundaries_of(spoiled_));
    if (!set_.block_table.empty()) inputs.block_table = set_.block_table;
    call_.operands.upload(inputs);
    bind();
    const std::string set = fmt::format("with {}{}{} of sequences of {} rows and keys{} ",
                                        gives_rows_ ? "seqused_q" : "", gives_rows_ && gives_keys_ ? " and " : "",
                                        gives_keys_ ? "seqused_kv" : "", print_lengths(set_.sequences), what);
    const Reference others = without_sequences(call_.problem, set_.reference, set_.rows, to_, bad_);
    // Fewer rows average less: the bound of all would be too small for them.
    const ErrorBound bound = bad_.empty() ? set_.bound : error_bound(call_.problem, others);
    return launches_->judge(
        Check::kUsedLengths, [&](AttentionOutputs& outputs, const std::string& how) -> std::optional<CallFault> {
          const std::string where = how + set;
          if (const auto name = is_on(Check::kRedZones) ? call_.operands.broken_red_zone() : std::nullopt)
            return CallFault{Check::kUsedLengths, where + fmt::format("it wrote out of bounds around {}", *name)};
          if (is_on(Check::kPoison) && unused_rows_written(outputs, from_, to_))
            return CallFault{Check::kUsedLengths, where + "it wrote rows that are not used"};
          // NaN is what the outputs hold before a launch, too.
          for (const std::size_t sequence : bad_)
            if (is_on(Check::kPoison) && rows_left(outputs, from_.q[sequence], from_.q[sequence + 1]))
              return CallFault{Check::kUsedLengths,
                               where + fmt::format("it wrote nothing to rows of sequence {}", sequence)};
          pack_rows(outputs, from_, to_);
          const OutputError error = compare_sample(call_.problem, others, set_.rows, outputs);
          if (is_right(error, bound)) return std::nullopt;
          return CallFault{Check::kUsedLengths, where + "it is wrong: " + describe_error(error, bound)};
        });
  }

 private:
  // The first time; then the launch reads what the same addresses hold.
  void bind() {
    if (launches_) {
      device_rows_->store(rows_), device_keys_->store(keys_);
      return;
    }
    device_rows_.emplace(call_.device, rows_), device_keys_.emplace(call_.device, keys_);
    gives_rows_ = is_impossible_ || to_.q != from_.q;
    gives_keys_ = is_impossible_ || call_.problem.paged() || to_.kv != from_.kv;
    AttentionArgs args = call_.operands.args();
    if (gives_keys_) args.seqused_kv = device_keys_->data();
    if (gives_rows_) args.seqused_q = device_rows_->data();
    launches_.emplace(call_, args, also_without_lse_);
  }

  const JudgedCall& call_;
  const ShorterSequences& set_;
  const bool also_without_lse_;
  Boundaries from_, to_;
  std::vector<SequenceLengths> spoiled_;  // behind these lies NaN
  std::vector<std::int32_t> rows_, keys_;
  std::set<std::size_t> bad_;  // sequences of numbers that they cannot have
  bool is_impossible_ = false, gives_rows_ = false, gives_keys_ = false;
  std::optional<DeviceLengths> device_rows_, device_keys_;
  std::optional<LaunchesByLse> launches_;
};

// Of lengths that no batch has, that sequence's rows are NaN, and all others right: of the set's sequences the longest
// and another one. The same launch serves possible ones after them. Counts launches.
std::optional<CallFault> check_impossible_lengths(const JudgedCall& call, const ShorterSequences& set, int& launches) {
  std::vector<std::size_t> of_rows;
  for (std::size_t s = 0; s < set.sequences.size(); ++s)
    if (set.sequences[s].q > 0) of_rows.push_back(s);
  if (of_rows.empty()) return std::nullopt;
  std::stable_sort(of_rows.begin(), of_rows.end(),
                   [&](std::size_t a, std::size_t b) { return set.sequences[a].q > set.sequences[b].q; });
  const std::vector<SequenceLengths> own = call.problem.sequences();
  UsedLaunch launch(call, set, true);
  const auto judge = [&](const std::string& what) {
    launches += 2;
    std::optional<CallFault> found = launch.judge(", and " + what + ",");
    if (found) return found;
    launch.make_possible();
    return launch.judge(", after " + what + ",");
  };
  launch.make_impossible(of_rows[0], std::nullopt,
                         1 + (call.problem.paged() ? call.problem.seqlen_kv : own[of_rows[0]].kv));
  std::string what = fmt::format("more keys than sequence {} can have", of_rows[0]);
  if (of_rows.size() > 1) {
    launch.make_impossible(of_rows[1], std::nullopt, -1);
    what += fmt::format(" and -1 keys of sequence {}", of_rows[1]);
  }
  if (auto found = judge(what)) return found;
  launch.make_impossible(of_rows[0], -1, std::nullopt);
  what = fmt::format("-1 rows of sequence {}", of_rows[0]);
  if (of_rows.size() > 1) {
    launch.make_impossible(of_rows[1], own[of_rows[1]].q + 1, std::nullopt);
    what += fmt::format(" and more rows than sequence {} can have", of_rows[1]);
  }
  return judge(what);
}

}  // namespace

std::optional<CallFault> check_used_lengths(const JudgedCall& call, Extent extent, nlohmann::json& evidence) {
  if (!call.problem.ragged() || !is_on(Check::kUsedLengths)) return std::nullopt;
  const bool all = extent == Extent::kAll;
  const std::span<const ShorterSequences> sets = OracleCache::used(call.problem, call.oracle, all ? kAllSets : 1);
  int launches = static_cast<int>(sets.size());
  for (const ShorterSequences& set : sets)
    if (auto found = UsedLaunch(call, set, all && &set == &sets.front()).judge("")) return found;
  // With the keys of the set in which they are given alone.
  if (all)
    if (auto found = check_impossible_lengths(call, sets[sets.size() - 2], launches)) return found;
  call.operands.upload(call.oracle.inputs);
  evidence["used_lengths"] = launches;
  return std::nullopt;
}

}  // namespace flashcore
