#include <cmath>

#include "core/error.h"
#include "lab/gates.h"
#include "lab/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;

// Judging a candidate by ref_fwd needs ref_fwd compiled and loaded once per problem.
constexpr const char* kDeviceOracle = "ref_fwd";

struct PatternResult {
  std::string failure;  // empty: passed
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

OutputError compare_sample(const Problem& problem, const Oracle& oracle, const AttentionOutputs& outputs) {
  return compare(problem, oracle.reference, gather_rows(outputs.o, oracle.rows),
                 gather_lse(problem, outputs.lse, oracle.rows));
}

AttentionOutputs launch_once(Device& device, Operands& operands, const Launch& launch) {
  operands.poison_outputs();
  launch();
  device.synchronize();
  return operands.download_outputs();
}

// What a launch must leave alone.
std::string trespass(const Operands& operands, const AttentionInputs& inputs, const AttentionOutputs& outputs) {
  if (const auto name = operands.broken_red_zone())
    return fmt::format("wrote out of bounds: the red zone around {} is broken", *name);
  if (const auto name = operands.changed_input(inputs)) return fmt::format("changed its input {}", *name);
  if (gaps_written(outputs)) return "wrote between the rows of o, which belong to somebody else (strided layout)";
  return "";
}

// On a large problem fp64 covers a sample of rows; the naive kernel covers the rest.
void judge_by_device_oracle(Device& device, const EvaluateRequest& request, const Oracle& oracle, Operands& operands,
                            const AttentionOutputs& ours, PatternResult& result) {
  const Problem& problem = request.problem;
  const DeviceLimits& limits = device.info().limits;
  const Candidate naive = parse_candidate(kDeviceOracle, problem, limits);
  const LoadedCandidate loaded(device, naive, problem, compile_candidate(naive, problem, limits, request.use_cache));
  const AttentionOutputs theirs = launch_once(device, operands, loaded.bind(operands.args()));
  if (!within(compare_sample(problem, oracle, theirs), oracle.bound))
    throw_internal("the on-device oracle {} is itself wrong on {}: nothing can be judged by it", naive.print(),
                   problem.id());
  const OutputError error = compare_outputs(problem, ours, theirs);
  const ErrorBound bound{2 * oracle.bound.rel, 2 * oracle.bound.worst_row_rel, 2 * oracle.bound.lse_max_abs};
  result.evidence["every_element_against"] = kDeviceOracle;
  result.evidence["device_oracle"] = evidence_of(error, bound);
  if (!within(error, bound))
    result.failure = fmt::format("against {} on every element: {}", kDeviceOracle, describe(error, bound));
}

PatternResult judge_pattern(Device& device, OracleCache& oracles, const EvaluateRequest& request,
                            const Contestant& contestant, const LoadedCandidate& loaded, Operands& operands,
                            Pattern pattern) {
  const Problem& problem = request.problem;
  const auto oracle = oracles.get(problem, pattern, request.seed, request.max_reference_flops);
  PatternResult result;
  result.bound = oracle->bound;
  operands.upload(oracle->inputs);
  const Launch launch = loaded.bind(operands.args());
  const AttentionOutputs outputs = launch_once(device, operands, launch);
  result.error = compare_sample(problem, *oracle, outputs);
  result.evidence = evidence_of(result.error, result.bound);
  result.evidence["pattern"] = to_string(pattern);
  result.evidence["rows_judged"] = oracle->reference.rows;
  result.evidence["all_rows"] = oracle->rows.all;
  result.failure = trespass(operands, oracle->inputs, outputs);
  if (!result.failure.empty()) return result;
  // With NaN among the inputs an output may be any NaN, the poison's bits included; the reference rows judge those.
  if (const std::int64_t unwritten = pattern == Pattern::kNonFinite ? 0 : count_unwritten(outputs); unwritten > 0) {
    result.failure = fmt::format("{} elements of o and lse were never written", unwritten);
    return result;
  }
  if (!within(result.error, result.bound)) {
    result.failure = describe(result.error, result.bound);
    return result;
  }
  const AttentionOutputs again = launch_once(device, operands, launch);
  if (!bitwise_equal(outputs, again)) {
    result.failure = "the same launch repeated gave other bits (a race, or a result that only the first call writes)";
    return result;
  }
  if (!oracle->rows.all && device.info().limits.kind == DeviceKind::kCuda && !device.info().limits.emulated &&
      contestant.candidate.family->name() != kDeviceOracle)
    judge_by_device_oracle(device, request, *oracle, operands, outputs, result);
  return result;
}

}  // namespace

Verdict judge_correctness(Device& device, OracleCache& oracles, const EvaluateRequest& request,
                          const Contestant& contestant, Trial& trial) {
  Verdict verdict;
  verdict.gate = "correctness";
  verdict.evidence = {{"bound_factor", kBoundFactor},
                      {"inputs_checked", Operands::input_bytes(request.problem) <= Operands::kInputCheckLimit},
                      {"patterns", json::array()}};
  if (request.patterns.empty()) throw_bad_input("no data pattern was asked for; give at least one, e.g. normal");
  const LoadedCandidate loaded(device, contestant.candidate, request.problem, contestant.artifact);
  Operands operands(device, request.problem);
  double worst_share = -1;
  for (const Pattern pattern : request.patterns) {
    const PatternResult result = judge_pattern(device, oracles, request, contestant, loaded, operands, pattern);
    verdict.evidence["patterns"].push_back(encode_nonfinite(result.evidence));
    const double share = share_of_bound(result.error, result.bound);
    if (share > worst_share || !result.failure.empty()) {
      worst_share = share;
      trial.error = result.error;
      trial.bound = result.bound;
    }
    if (!result.failure.empty()) {
      verdict.status = GateStatus::kFailed;
      verdict.reason = fmt::format("{} data, seed {}: {}", to_string(pattern), request.seed, result.failure);
      return verdict;
    }
  }
  verdict.status = GateStatus::kPassed;
  return verdict;
}

}  // namespace flashcore
