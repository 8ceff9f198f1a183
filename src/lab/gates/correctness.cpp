
#include "core/error.h"
#include "lab/gates/gates.h"
#include "lab/record/checks.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;

// Judging a candidate by ref_fwd needs ref_fwd compiled and loaded once per problem.
constexpr const char* kDeviceOracle = "ref_fwd";

// Somebody who writes on after the launch has a few milliseconds to show it.
constexpr double kSettleMs = 2;
// Twice the buffers only where they leave room for the rest.
constexpr double kShareOfMemoryForFreshBuffers = 0.25;

struct PatternResult {
  std::string failure;  // empty: passed
  Check check = Check::kErrorBound;
  OutputError error;
  ErrorBound bound;
  json evidence;
};

std::string describe(const OutputError& e, const ErrorBound& b) {
  if (e.nonfinite > 0)
    return fmt::format(
        "{} values are NaN or infinite where the reference is finite, or the reverse (first bad row of the sample: {})",
        e.nonfinite, e.first_bad_row);
  std::string text;
  const auto part = [&](const char* name, double value, double limit) {
    if (!(value <= limit))
      text += fmt::format("{}{} {:.3g} exceeds its bound {:.3g}", text.empty() ? "" : ", ", name, value, limit);
  };
  part("relative error", e.rel, b.rel);
  part("relative error of the worst row", e.worst_row_rel, b.worst_row_rel);
  part("LSE error", e.lse_max_abs, b.lse_max_abs);
  return text + fmt::format(" (worst row of the sample: {})", e.first_bad_row);
}

json evidence_of(const OutputError& e, const ErrorBound& b) {
  return {{"rel", e.rel},
          {"bound_rel", b.rel},
          {"worst_row_rel", e.worst_row_rel},
          {"bound_worst_row_rel", b.worst_row_rel},
          {"lse_max_abs", e.lse_max_abs},
          {"bound_lse_max_abs", b.lse_max_abs},
          {"max_abs", e.max_abs},
          {"bias", e.bias},
          {"nonfinite", e.nonfinite}};
}

OutputError compare_sample(const PlacedProblem& problem, const Reference& reference, const RowSample& rows,
                           const AttentionOutputs& outputs) {
  return compare(problem, reference, gather_rows(outputs.o, rows), gather_lse(problem, outputs.lse, rows));
}

AttentionOutputs launch_once(Device& device, Operands& operands, const Launch& launch) {
  if (is_on(Check::kPoison)) operands.poison_outputs();
  launch();
  device.synchronize();
  return operands.download_outputs();
}

bool fails(PatternResult& result, Check check, std::string reason) {
  result.failure = std::move(reason);
  result.check = check;
  return true;
}

// What a launch must leave alone.
bool find_out_of_bounds_write(const Operands& operands, const AttentionInputs& inputs, const AttentionOutputs& outputs,
                              PatternResult& result) {
  if (is_on(Check::kRedZones))
    if (const auto name = operands.broken_red_zone())
      return fails(result, Check::kRedZones,
                   fmt::format("wrote out of bounds: the red zone around {} is broken", *name));
  if (is_on(Check::kInputs))
    if (const auto name = operands.changed_input(inputs))
      return fails(result, Check::kInputs, fmt::format("changed its input {}", *name));
  if (is_on(Check::kGaps) && gaps_written(outputs))
    return fails(result, Check::kGaps, "wrote between the rows of o, which belong to somebody else (strided layout)");
  return false;
}

// With NaN among the inputs an output may be any NaN, the poison's bits included; the reference rows judge those.
bool find_unwritten(Pattern pattern, const AttentionOutputs& outputs, PatternResult& result) {
  if (pattern == Pattern::kNonFinite || !is_on(Check::kUnwritten)) return false;
  const std::int64_t unwritten = count_unwritten(outputs);
  return unwritten > 0 &&
         fails(result, Check::kUnwritten, fmt::format("{} elements of o and lse were never written", unwritten));
}

// How far `outputs` are from `before`, o times `factor`.
OutputError distance(const PlacedProblem& problem, const Oracle& oracle, const AttentionOutputs& before, double factor,
                     const AttentionOutputs& outputs) {
  Reference expected = oracle.reference;
  const std::vector<float> o = gather_rows(before.o, oracle.rows), lse = gather_lse(problem, before.lse, oracle.rows);
  for (std::size_t i = 0; i < o.size(); ++i) expected.o[i] = factor * static_cast<double>(o[i]);
  expected.lse.assign(lse.begin(), lse.end());
  return compare_sample(problem, expected, oracle.rows, outputs);
}

// v doubled gives o doubled, exactly (of 8 bits: negated, negated): other content at the same addresses, whose result
// needs no second reference. An output kept from the last call by address shows.
bool find_ignored_inputs(Device& device, const PlacedProblem& problem, const Oracle& oracle, Operands& operands,
                         const Launch& launch, const AttentionOutputs& before, PatternResult& result) {
  AttentionInputs replaced = oracle.inputs;
  const double factor = replace_values(replaced.v);
  operands.upload(replaced);
  const OutputError error = distance(problem, oracle, before, factor, launch_once(device, operands, launch));
  return !within(error, oracle.bound) &&
         fails(result, Check::kChangedContent,
               fmt::format("v {} at the same addresses did not {} o; a result of other inputs? {}",
                           factor == 2 ? "doubled" : "negated", factor == 2 ? "double" : "negate",
                           describe(error, oracle.bound)));
}

// The buffers of before stay where they are, with other content, so whoever kept their addresses reads that.
bool find_kept_addresses(Device& device, const PlacedProblem& problem, const Oracle& oracle,
                         const LoadedCandidate& loaded, const AttentionOutputs& before, PatternResult& result) {
  Operands fresh(device, problem);
  fresh.upload(oracle.inputs);
  const OutputError error = distance(problem, oracle, before, 1, launch_once(device, fresh, loaded.bind(fresh.args())));
  return !within(error, oracle.bound) &&
         fails(result, Check::kFreshPointers,
               "the same inputs at other addresses gave other outputs: " + describe(error, oracle.bound));
}

bool find_late_write(Device& device, const Operands& operands, const AttentionOutputs& expected,
                     PatternResult& result) {
  device.idle(kSettleMs);
  device.synchronize();
  return !bitwise_equal(expected, operands.download_outputs()) &&
         fails(result, Check::kSettled,
               "the outputs changed after the launch was complete: somebody works outside of it");
}

bool room_for_fresh_buffers(const DeviceInfo& device, const PlacedProblem& problem) {
  return device.memory_bytes == 0 || static_cast<double>(Operands::total_bytes(problem)) <
                                         kShareOfMemoryForFreshBuffers * static_cast<double>(device.memory_bytes);
}

// On a large problem fp64 covers a sample of rows; the naive kernel covers the rest.
void judge_by_device_oracle(Device& device, const EvaluateRequest& request, const Oracle& oracle, Operands& operands,
                            const AttentionOutputs& ours, PatternResult& result) {
  const PlacedProblem& problem = request.problem;
  const DeviceLimits& limits = device.info().limits;
  const Candidate naive = parse_candidate(kDeviceOracle, problem, limits);
  const LoadedCandidate loaded(device, naive, problem, compile_candidate(naive, problem, limits, request.use_cache));
  const AttentionOutputs theirs = launch_once(device, operands, loaded.bind(operands.args()));
  if (!within(compare_sample(problem, oracle.reference, oracle.rows, theirs), oracle.bound))
    throw_internal("the on-device oracle {} is itself wrong on {}: nothing can be judged by it", naive.print(),
                   problem.id());
  const OutputError error = compare_outputs(problem, ours, theirs);
  const ErrorBound bound{2 * oracle.bound.rel, 2 * oracle.bound.worst_row_rel, 2 * oracle.bound.lse_max_abs};
  result.evidence["every_element_against"] = kDeviceOracle;
  result.evidence["device_oracle"] = evidence_of(error, bound);
  if (!within(error, bound))
    fails(result, Check::kDeviceOracle,
          fmt::format("against {} on every element: {}", kDeviceOracle, describe(error, bound)));
}

PatternResult judge_pattern(Device& device, OracleCache& oracles, const EvaluateRequest& request,
                            const CompiledCandidate& compiled, const LoadedCandidate& loaded, Operands& operands,
                            Pattern pattern) {
  const PlacedProblem& problem = request.problem;
  const auto oracle = oracles.get(problem, pattern, request.seed, request.max_reference_flops);
  PatternResult result;
  result.bound = oracle->bound;
  operands.upload(oracle->inputs);
  const Launch launch = loaded.bind(operands.args());
  const AttentionOutputs outputs = launch_once(device, operands, launch);
  result.error = compare_sample(problem, oracle->reference, oracle->rows, outputs);
  result.evidence = evidence_of(result.error, result.bound);
  result.evidence["pattern"] = to_string(pattern);
  result.evidence["rows_judged"] = oracle->reference.rows;
  result.evidence["all_rows"] = oracle->rows.all;
  if (find_out_of_bounds_write(operands, oracle->inputs, outputs, result) || find_unwritten(pattern, outputs, result))
    return result;
  if (is_on(Check::kErrorBound) && !within(result.error, result.bound)) {
    fails(result, Check::kErrorBound, describe(result.error, result.bound));
    return result;
  }
  const bool hardware = !device.info().limits.emulated;  // an emulator watches every access, and takes its time
  // Kept results and late writes need one pattern to show, not six.
  const bool thorough = hardware && pattern == Pattern::kNormal;
  if (thorough && is_on(Check::kSettled) && find_late_write(device, operands, outputs, result)) return result;
  const AttentionOutputs again = launch_once(device, operands, launch);
  if (is_on(Check::kRepeat) && !bitwise_equal(outputs, again)) {
    fails(result, Check::kRepeat,
          "the same launch repeated gave other bits (a race, or a result that only the first call writes)");
    return result;
  }
  if (thorough && is_on(Check::kChangedContent) &&
      find_ignored_inputs(device, problem, *oracle, operands, launch, outputs, result))
    return result;
  if (thorough && is_on(Check::kFreshPointers) && room_for_fresh_buffers(device.info(), problem) &&
      find_kept_addresses(device, problem, *oracle, loaded, outputs, result))
    return result;
  if (!oracle->rows.all && device.info().limits.kind == DeviceKind::kCuda && !device.info().limits.emulated &&
      compiled.candidate.family->name() != kDeviceOracle && is_on(Check::kDeviceOracle)) {
    operands.upload(oracle->inputs);
    judge_by_device_oracle(device, request, *oracle, operands, outputs, result);
  }
  return result;
}

}  // namespace

Verdict judge_correctness(Device& device, OracleCache& oracles, const EvaluateRequest& request,
                          const CompiledCandidate& compiled, Trial& trial) {
  Verdict verdict;
  verdict.gate = Gate::kCorrectness;
  verdict.evidence = {{"bound_factor", kBoundFactor},
                      {"inputs_checked", Operands::input_bytes(request.problem) <= Operands::kInputCheckLimit},
                      {"patterns", json::array()}};
  if (request.patterns.empty()) throw_bad_input("no data pattern was asked for; give at least one, e.g. normal");
  const LoadedCandidate loaded(device, compiled.candidate, request.problem, compiled.artifact);
  Operands operands(device, request.problem);
  double worst_share = -1;
  for (const Pattern pattern : request.patterns) {
    const PatternResult result = judge_pattern(device, oracles, request, compiled, loaded, operands, pattern);
    verdict.evidence["patterns"].push_back(encode_nonfinite(result.evidence));
    const double share = share_of_bound(result.error, result.bound);
    if (share > worst_share || !result.failure.empty()) {
      worst_share = share;
      trial.error = result.error;
      trial.bound = result.bound;
    }
    if (!result.failure.empty()) {
      verdict.status = GateStatus::kFailed;
      verdict.evidence["check"] = to_string(result.check);
      verdict.reason = fmt::format("{} data, seed {}: {}", to_string(pattern), request.seed, result.failure);
      return verdict;
    }
  }
  verdict.status = GateStatus::kPassed;
  return verdict;
}

}  // namespace flashcore
