#include "lab/gates/calls.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "kernels/embedded.h"
#include "lab/harness/amax.h"
#include "lab/harness/compared_outputs.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

// Somebody who writes on after the launch has a few milliseconds to show it.
constexpr double kSettleMs = 2;
// Twice the buffers only where they leave room for the rest.
constexpr double kShareOfMemoryForFreshBuffers = 0.25;
// Of launches of which every hundredth is wrong, a hundred hold one. Those that are wrong by chance, once in a hundred,
// are met with a probability of 63% by a hundred and of 99.996% by a thousand.
constexpr int kFewestRepeats = 2, kRepeats = 100, kMostRepeats = 1000;
// On a GPU that five programs shared a launch took so long that a hundred were all, and one that is wrong by chance
// passed.
constexpr double kRepeatSeconds = 0.05, kRepeatSecondsOfGpu = 0.5, kMostRepeatSeconds = 5;
// An emulated launch takes milliseconds to seconds. What comes with a few dozen launches shows on small problems. Their
// number goes by the problem and not by the clock: on a machine that others shared half a second was five launches.
// Kernels of the library as it is run there all day long, and are repeated less often: with 32 launches of each its
// suite took four times as long.
constexpr int kEmulatedRepeats = 32, kEmulatedRepeatsOfOwn = 4;
constexpr double kFlopsOfEmulatedRepeats = 1e7;
// A sequence's KV head is a block of its own, which computes a tile of 16 rows and 64 keys however few it has: 260
// short sequences took 1.2 s a launch and were counted as nothing.
constexpr double kPairsOfEmulatedBlock = 16 * 64;

// How far `outputs` are from what was there before v was replaced. Only norms: what is judged is whether it is another
// result.
OutputError distance(const JudgedCall& call, const ReplacedValues& replaced, const AttentionOutputs& outputs) {
  Reference expected = call.oracle.reference;
  // What rounding allows is of the reference, not of another output.
  expected.budgets.clear();
  expected.scale_limits = {};
  expected.lse_limits = {};
  const std::vector<float> o = gather_rows(call.outputs.o, call.oracle.rows),
                           lse = gather_lse(call.problem, call.outputs.lse, call.oracle.rows);
  for (std::size_t i = 0; i < o.size(); ++i) expected.o[i] = replaced.factor * static_cast<double>(o[i]);
  const auto columns = static_cast<std::ptrdiff_t>(call.problem.head_dim_v);
  if (replaced.columns_reversed)
    for (auto row = expected.o.begin(); row != expected.o.end(); row += columns) std::reverse(row, row + columns);
  expected.lse.assign(lse.begin(), lse.end());
  return compare_sample(call.problem, expected, call.oracle.rows, outputs);
}

// v doubled gives o doubled, exactly (of 8 bits: negated, negated; of int8 and int4: backwards, backwards): other
// content at the same addresses, whose result needs no second reference. An output kept from the last call by address
// shows.
std::optional<CallFault> check_changed_content(const JudgedCall& call) {
  // Other checks may have used other addresses since: who keeps results by address is to have this one's at hand.
  (void)launch_once(call.device, call.operands, call.launch);
  AttentionInputs inputs = call.oracle.inputs;
  const ReplacedValues replaced = replace_values(inputs.v);
  call.operands.upload(inputs);
  const OutputError error = distance(call, replaced, launch_once(call.device, call.operands, call.launch));
  if (within_norms(error, call.oracle.bound)) return std::nullopt;
  return CallFault{Check::kChangedContent,
                   fmt::format("with v {} at the same addresses, o was not {}; a result of "
                               "other inputs? {}",
                               replaced.did(), replaced.did(), describe_error(error, call.oracle.bound))};
}

// Operands beside q, k, v and lengths, of which a launch or bind() may keep something: a list of blocks, a page, a
// slope.
bool has_further_operands(const Problem& problem) {
  return problem.paged() || problem.alibi_count() > 0 || problem.sink_count() > 0 || problem.has_descales() ||
         !problem.tensors.empty();
}

// All of them with other content at the same addresses, against a reference of that. What a launch keeps in its own
// memory is of the other content first, whose masks show less: who takes that for the rest leaves out what is visible.
std::optional<CallFault> check_further_operands(const JudgedCall& call) {
  if (!has_further_operands(call.problem)) return std::nullopt;
  const Oracle& other = OracleCache::other(call.problem, call.oracle);
  call.operands.upload(other.inputs);
  const Launch launch = call.loaded.bind(call.operands.args());
  for (const Oracle* oracle : {&other, &call.oracle, &other}) {
    call.operands.upload(oracle->inputs);
    const AttentionOutputs outputs = launch_once(call.device, call.operands, launch);
    const OutputError error = compare_sample(call.problem, oracle->reference, oracle->rows, outputs);
    if (is_right(error, oracle->bound)) continue;
    return CallFault{Check::kChangedContent,
                     "with other content of every operand at the same addresses it is wrong; does it keep something of "
                     "a mask, a table, a slope or a factor? " +
                         describe_error(error, oracle->bound)};
  }
  call.operands.upload(call.oracle.inputs);
  return std::nullopt;
}

}  // namespace

// Poison tells whoever looks at it that somebody looks. Here the buffers hold what users' do: a plausible result, of
// other inputs. Leaves oracle.inputs in the operands.
std::optional<CallFault> check_earlier_result(const JudgedCall& call) {
  if (!is_on(Check::kEarlierResult)) return std::nullopt;
  std::random_device random;
  call.operands.upload(call.oracle.inputs, std::uint64_t{random()} | 1);
  (void)launch_once(call.device, call.operands, call.launch);
  call.operands.upload(call.oracle.inputs);
  call.launch();
  call.device.synchronize();
  const AttentionOutputs again = call.operands.download_outputs();
  if (bitwise_equal(call.outputs, again)) return std::nullopt;
  // Other bits are another check's.
  const OutputError error = compare_outputs(call.problem, again, call.outputs);
  const ErrorBound& once = call.oracle.bound;
  const ErrorBound bound{2 * once.rel, 2 * once.worst_row_rel, 2 * once.lse_max_abs};
  const auto wrong = find_wrong_amax(call.problem, call.oracle.reference, call.oracle.rows, again);
  if (wrong) return CallFault{Check::kEarlierResult, "where the outputs held the result of other inputs " + *wrong};
  if (within_norms(error, bound)) return std::nullopt;
  return CallFault{Check::kEarlierResult,
                   "where the outputs held the result of other inputs it did not write its own (it returns where there "
                   "is one?): " +
                       describe_error(error, bound)};
}

namespace {

// The buffers of before stay where they are, with other content, so whoever kept their addresses reads that.
std::optional<CallFault> check_fresh_pointers(const JudgedCall& call) {
  Operands fresh(call.device, call.problem);
  fresh.upload(call.oracle.inputs);
  const OutputError error = distance(call, {}, launch_once(call.device, fresh, call.loaded.bind(fresh.args())));
  if (within_norms(error, call.oracle.bound)) return std::nullopt;
  return CallFault{Check::kFreshPointers, "the same inputs at other addresses gave other outputs: " +
                                              describe_error(error, call.oracle.bound)};
}

}  // namespace

std::optional<CallFault> check_settled(const JudgedCall& call) {
  if (!is_on(Check::kSettled)) return std::nullopt;
  call.device.idle(kSettleMs);
  call.device.synchronize();
  if (bitwise_equal(call.outputs, call.operands.download_outputs())) return std::nullopt;
  return CallFault{Check::kSettled, "the outputs changed after the launch was complete: somebody works outside of it"};
}

namespace {

bool room_for_fresh_buffers(const DeviceInfo& device, const PlacedProblem& problem) {
  return device.memory_bytes == 0 || static_cast<double>(Operands::total_bytes(problem)) <
                                         kShareOfMemoryForFreshBuffers * static_cast<double>(device.memory_bytes);
}

}  // namespace

std::optional<CallFault> check_no_lse(const JudgedCall& call, bool repeated) {
  if (!is_on(Check::kNoLse)) return std::nullopt;
  AttentionArgs args = call.operands.args();
  args.lse = nullptr;
  const Launch launch = call.loaded.bind(args);
  AttentionOutputs outputs = launch_once(call.device, call.operands, launch);
  if (repeated && is_on(Check::kRepeat) && !bitwise_equal(outputs, launch_once(call.device, call.operands, launch)))
    return CallFault{Check::kNoLse, "a second launch without lse gave other bits (a state that only lse resets?)"};
  AttentionOutputs untouched{HostTensor(), outputs.lse};
  if (is_on(Check::kPoison) && count_unwritten(untouched) != static_cast<std::int64_t>(outputs.lse.size()))
    return CallFault{Check::kNoLse, "a launch without lse wrote to the lse of an earlier one"};
  outputs.lse = call.outputs.lse;
  const OutputError error = compare_sample(call.problem, call.oracle.reference, call.oracle.rows, outputs);
  if (is_right(error, call.oracle.bound)) return std::nullopt;
  return CallFault{Check::kNoLse, "without lse o is wrong: " + describe_error(error, call.oracle.bound)};
}

namespace {

std::optional<CallFault> check_offset(const JudgedCall& call, std::size_t offset) {
  Operands operands(call.device, call.problem, {offset, std::max(offset, sizeof(float))});
  operands.upload(call.oracle.inputs);
  const Launch launch = call.loaded.bind(operands.args());
  const AttentionOutputs outputs = launch_once(call.device, operands, launch);
  const std::string where = fmt::format("with addresses that are multiples of {} bytes and of no more ", offset);
  if (const auto name = is_on(Check::kRedZones) ? operands.broken_red_zone() : std::nullopt)
    return CallFault{Check::kAlignment, where + fmt::format("it wrote out of bounds around {}", *name)};
  const OutputError error = compare_sample(call.problem, call.oracle.reference, call.oracle.rows, outputs);
  if (is_right(error, call.oracle.bound)) return std::nullopt;
  return CallFault{Check::kAlignment, where + "it is wrong: " + describe_error(error, call.oracle.bound)};
}

}  // namespace

AttentionOutputs launch_once(Device& device, Operands& operands, const Launch& launch) {
  if (is_on(Check::kPoison)) operands.poison_outputs();
  launch();
  device.synchronize();
  return operands.download_outputs();
}

namespace {

void launch_into(AttentionOutputs& outputs, Device& device, Operands& operands, const Launch& launch) {
  if (is_on(Check::kPoison)) operands.poison_outputs();
  launch();
  device.synchronize();
  operands.download_outputs(outputs);
}

}  // namespace

bool is_right(const OutputError& error, const ErrorBound& bound) {
  return within_norms(error, bound) && !exceeded(error, bound);
}

OutputError compare_sample(const PlacedProblem& problem, const Reference& reference, const RowSample& rows,
                           const AttentionOutputs& outputs) {
  return compare(problem, reference, gather_rows(outputs.o, rows), gather_lse(problem, outputs.lse, rows));
}

namespace {

int emulated_repeats(const PlacedProblem& problem, const Family& family) {
  const double blocks = static_cast<double>(problem.batch * problem.heads_kv),
               of_blocks =
                   blocks * kPairsOfEmulatedBlock * 2 * static_cast<double>(problem.head_dim + problem.head_dim_v);
  const double affordable = kFlopsOfEmulatedRepeats / std::max({1.0, problem.flops(), of_blocks});
  const bool is_own = family.source_overlay() == nullptr && sources_are_built_in();
  return static_cast<int>(
      std::clamp<double>(affordable, kFewestRepeats, is_own ? kEmulatedRepeatsOfOwn : kEmulatedRepeats));
}

}  // namespace

bool is_launch_cheap(const JudgedCall& call) {
  const Family& family = *call.loaded.candidate().family;
  const bool is_own = family.source_overlay() == nullptr && sources_are_built_in();
  return !call.device.info().limits.emulated || !is_own || emulated_repeats(call.problem, family) > kFewestRepeats;
}

std::optional<CallFault> check_repeats(const JudgedCall& call, GateLevel level, nlohmann::json& evidence) {
  const bool full = level == GateLevel::kFull, emulated = call.device.info().limits.emulated;
  // The first launch is one of them.
  int wanted = !full      ? kFewestRepeats
               : emulated ? emulated_repeats(call.problem, *call.loaded.candidate().family)
                          : kRepeats;
  const double seconds = call.device.info().limits.kind == DeviceKind::kCuda ? kRepeatSecondsOfGpu : kRepeatSeconds;
  const double start = call.device.now_seconds();
  AttentionOutputs again = call.operands.download_outputs();  // its memory: new pages cost more than the launch
  for (int done = 1; done < wanted; ++done) {
    launch_into(again, call.device, call.operands, call.launch);
    evidence["repeats"] = done + 1;
    if (is_on(Check::kRepeat) && !bitwise_equal(call.outputs, again))
      return CallFault{Check::kRepeat,
                       fmt::format("the same launch repeated gave other bits in repeat {} (a race, a state between "
                                   "launches, or a result that only the first call writes)",
                                   done)};
    if (!full || emulated || done > 3) continue;
    const double each = std::max(1e-7, (call.device.now_seconds() - start) / done);
    const int affordable = static_cast<int>(std::min(kMostRepeatSeconds / each, double{kMostRepeats}));
    const int cheap = static_cast<int>(std::min(seconds / each, double{kMostRepeats}));
    wanted = std::max(kFewestRepeats, std::min(std::max(kRepeats, cheap), affordable));
  }
  return std::nullopt;
}

std::optional<CallFault> check_state(const JudgedCall& call) {
  if (auto found = check_earlier_result(call)) return found;
  if (is_on(Check::kChangedContent))
    for (auto* check : {check_changed_content, check_further_operands})
      if (auto found = check(call)) return found;
  if (is_on(Check::kFreshPointers) && room_for_fresh_buffers(call.device.info(), call.problem))
    return check_fresh_pointers(call);
  return std::nullopt;
}

std::optional<CallFault> check_arguments(const JudgedCall& call, int promised, Extent extent,
                                         nlohmann::json& evidence) {
  if (!is_on(Check::kAlignment) || !room_for_fresh_buffers(call.device.info(), call.problem)) return std::nullopt;
  // Multiples of what is promised and of no more; and of 16, 32, 64 and 128, where somebody may change his way of
  // copying.
  std::set<int> offsets{promised};
  if (!call.device.info().limits.emulated && extent == Extent::kAll)
    for (const int offset : {16, 32, 64, 128})
      if (offset >= promised) offsets.insert(offset);
  evidence["offsets"] = offsets;
  for (const int offset : offsets)
    if (auto found = check_offset(call, static_cast<std::size_t>(offset))) return found;
  return std::nullopt;
}

}  // namespace flashcore
