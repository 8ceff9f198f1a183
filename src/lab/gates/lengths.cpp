// Sequences of a ragged batch that are shorter than those that its candidate was bound with.

#include <fmt/format.h>

#include <algorithm>
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

std::optional<CallFault> check_used_lengths(const JudgedCall& call, nlohmann::json& evidence) {
  if (!call.problem.ragged() || !is_on(Check::kUsedLengths)) return std::nullopt;
  const Boundaries from = boundaries_of(call.problem);
  const std::vector<ShorterSequences>& sets = OracleCache::used(call.problem, call.oracle);
  for (const ShorterSequences& set : sets) {
    const Boundaries to = boundaries_of(set.sequences);
    std::vector<std::int32_t> rows, keys;
    for (const SequenceLengths& each : set.sequences)
      rows.push_back(static_cast<std::int32_t>(each.q)), keys.push_back(static_cast<std::int32_t>(each.kv));
    const DeviceLengths used_q(call.device, rows), used_kv(call.device, keys);
    AttentionArgs args = call.operands.args();
    args.seqused_kv = used_kv.data();
    args.seqused_q = to.q == from.q ? nullptr : used_q.data();
    AttentionOutputs outputs = launch_once(call.device, call.operands, call.loaded.bind(args));
    const std::string where = fmt::format("with {}seqused_kv of sequences of {} rows and keys ",
                                          args.seqused_q ? "seqused_q and " : "", print_lengths(set.sequences));
    if (const auto name = is_on(Check::kRedZones) ? call.operands.broken_red_zone() : std::nullopt)
      return CallFault{Check::kUsedLengths, where + fmt::format("it wrote out of bounds around {}", *name)};
    if (is_on(Check::kPoison) && unused_rows_written(outputs, from, to))
      return CallFault{Check::kUsedLengths, where + "it wrote rows that are not used"};
    pack_rows(outputs, from, to);
    const OutputError error = compare_sample(call.problem, set.reference, set.rows, outputs);
    if (!is_right(error, set.bound))
      return CallFault{Check::kUsedLengths, where + "it is wrong: " + describe_error(error, set.bound)};
  }
  evidence["used_lengths"] = sets.size();
  return std::nullopt;
}

}  // namespace flashcore
