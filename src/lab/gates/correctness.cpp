#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/embedded.h"
#include "lab/gates/calls.h"
#include "lab/gates/every_element.h"
#include "lab/gates/gates.h"
#include "lab/harness/amax.h"
#include "lab/record/checks.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;

// Judging a candidate by ref_fwd needs ref_fwd compiled and loaded once per problem.
constexpr const char* kDeviceOracle = "ref_fwd";
// What a CPU computes again in fp32 to judge every row: at 1e10 a second and core some seconds of a pattern; beyond, of
// the first pattern only; and beyond that a sample of rows is all, which the evidence says.
constexpr double kEveryRowOfAllPatterns = 2e11, kEveryRowOfOnePattern = 4e12;

struct PatternResult {
  std::string failure;  // empty: passed
  Check check = Check::kErrorBound;
  OutputError error;
  ErrorBound bound;
  json evidence;
};

json evidence_of(const OutputError& e, const ErrorBound& b) {
  return {{"rel", e.rel},
          {"bound_rel", b.rel},
          {"worst_row_rel", e.worst_row_rel},
          {"bound_worst_row_rel", b.worst_row_rel},
          {"row_share", e.row_share},
          {"bound_row_share", b.row_share},
          {"lse_max_abs", e.lse_max_abs},
          {"bound_lse_max_abs", b.lse_max_abs},
          {"lse_bias", e.lse_bias},
          {"bound_lse_bias", b.lse_bias},
          {"lse_rms", e.lse_rms},
          {"bound_lse_rms", b.lse_rms},
          {"lse_share", e.lse_share},
          {"bound_lse_share", b.lse_share},
          {"scale", e.scale},
          {"bound_scale", b.scale},
          {"scale_share", e.scale_share},
          {"bound_scale_share", b.scale_share},
          {"bias", e.bias},
          {"bound_bias", b.bias},
          {"max_abs", e.max_abs},
          {"nonfinite", e.nonfinite}};
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
         fails(result, Check::kUnwritten, fmt::format("{} elements of the outputs were never written", unwritten));
}

void judge_every_element(const PlacedProblem& problem, const Oracle& oracle, const AttentionOutputs& ours,
                         const AttentionOutputs& theirs, const std::string& whose, PatternResult& result) {
  const EveryElement every = compare_every_element(problem, oracle, ours, theirs);
  result.evidence["every_element_against"] = whose;
  result.evidence["every_element"] = evidence_of(every.error, every.bound);
  result.evidence["rows_beyond"] = every.rows_beyond;
  result.evidence["rows_judged_again"] = every.rows_judged_again;
  if (within_norms(every.error, every.bound)) return;
  const std::string again =
      every.rows_beyond > kMostRowsAgain
          ? fmt::format("{} rows are beyond it, too many for an fp64 reference of each", every.rows_beyond)
          : fmt::format("{} rows are beyond it, {} of them right by an fp64 reference", every.rows_beyond,
                        every.rows_judged_again);
  fails(result, Check::kEveryRow,
        fmt::format("against {} on every element: {}; {}", whose, describe_error(every.error, every.bound), again));
}

// On a large problem fp64 covers a sample of rows; the naive kernel covers the rest.
void judge_by_device_oracle(Device& device, const EvaluateRequest& request, const Oracle& oracle, Operands& operands,
                            const AttentionOutputs& ours, PatternResult& result) {
  const PlacedProblem& problem = request.problem;
  const DeviceLimits& limits = device.info().limits;
  const Candidate naive = parse_candidate(kDeviceOracle, problem, limits);
  const LoadedCandidate loaded(device, naive, problem, compile_candidate(naive, problem, limits, request.use_cache));
  operands.upload(oracle.inputs);
  const AttentionOutputs theirs = launch_once(device, operands, loaded.bind(operands.args()));
  if (!within_norms(compare_sample(problem, oracle.reference, oracle.rows, theirs), oracle.bound))
    throw_internal("the on-device oracle {} is itself wrong on {}: nothing can be judged by it", naive.print(),
                   problem.id());
  judge_every_element(problem, oracle, ours, theirs, kDeviceOracle, result);
}

class PatternJudge {
 public:
  PatternJudge(Device& device, OracleCache& oracles, const EvaluateRequest& request, const CompiledCandidate& compiled,
               const LoadedCandidate& loaded, Operands& operands, Pattern pattern, bool first)
      : device_(device),
        limits_(device.info().limits),
        request_(request),
        problem_(request.problem),
        compiled_(compiled),
        loaded_(loaded),
        operands_(operands),
        pattern_(pattern),
        first_(first),
        oracle_(oracles.get(request.problem, pattern, request.seed, request.max_reference_flops)) {}

  PatternResult judge() {
    PatternResult result;
    result.bound = oracle_->bound;
    operands_.upload(oracle_->inputs);
    BoundWorkspaces workspaces;
    const Launch launch = loaded_.bind(operands_.args(), &workspaces);
    const AttentionOutputs outputs = launch_once(device_, operands_, launch);
    result.error = compare_sample(problem_, oracle_->reference, oracle_->rows, outputs);
    result.evidence = evidence_of(result.error, result.bound);
    result.evidence["pattern"] = to_string(pattern_);
    result.evidence["rows_judged"] = oracle_->reference.rows;
    result.evidence["all_rows"] = oracle_->rows.all;
    if (find_out_of_bounds_write(operands_, oracle_->inputs, outputs, result) ||
        find_unwritten(pattern_, outputs, result))
      return result;
    if (const auto check = exceeded(result.error, result.bound)) {
      fails(result, *check, describe_error(result.error, result.bound));
      return result;
    }
    if (is_on(Check::kAmax)) {
      if (auto wrong = find_wrong_amax(problem_, oracle_->reference, oracle_->rows, outputs)) {
        fails(result, Check::kAmax, std::move(*wrong));
        return result;
      }
    }
    const JudgedCall call{device_, problem_, *oracle_, loaded_, operands_, launch, outputs, workspaces};
    if (const auto found = judge_calls(call, within(result.error, result.bound), result.evidence)) {
      fails(result, found->check, found->what);
      return result;
    }
    if (!oracle_->rows.all && is_on(Check::kEveryRow)) judge_every_row(outputs, result);
    return result;
  }

 private:
  // Kept results, late writes and arguments need one pattern to show, not all. An emulator watches every access, and
  // takes its time; of a patched kernel it asks for kept results all the same, for it may be all that judges that.
  // Outputs that are wrong as they are, which only a check that is turned off lets pass, say nothing of other
  // arguments.
  std::optional<CallFault> judge_calls(const JudgedCall& call, bool right, json& evidence) const {
    const bool thorough = first_ && !limits_.emulated, full = request_.level == GateLevel::kFull;
    // By large scores and by NaN a kernel may choose another way.
    const bool unusual = pattern_ == Pattern::kLargeLogits || pattern_ == Pattern::kNonFinite;
    const Extent extent = first_ ? Extent::kAll : Extent::kOneLaunch;
    std::optional<CallFault> found;
    if (thorough) found = check_settled(call);
    if (!found) found = check_repeats(call, first_ ? request_.level : GateLevel::kQuick, evidence);
    if (!found && first_ && full) found = check_workspaces(call);
    // Of all data, for a kernel may choose its way by lse and by the scores.
    if (!found && full && right) found = check_no_lse(call, first_);
    if (full && right && (first_ || (unusual && is_launch_cheap(call)))) {
      if (!found) found = check_arguments(call, promised_alignment(), extent, evidence);
      if (!found) found = check_lengths(call, extent, evidence);
      if (!found) found = check_used_lengths(call, extent, evidence);
    }
    const bool patched = compiled_.candidate.family->source_overlay() != nullptr || !sources_are_built_in();
    if (!found && (thorough || (first_ && patched))) found = check_state(call);
    if (!found && first_ && full && right && pattern_ == Pattern::kNormal) found = check_nan_of_v(call);
    // The poison of the launch before may have led such data another way than users' buffers would.
    if (!found && !first_ && full && unusual && (!limits_.emulated || patched)) found = check_earlier_result(call);
    return found;
  }

  int promised_alignment() const {
    const auto element = static_cast<int>(std::max(size_of(problem_.dtype), size_of(problem_.output_dtype())));
    const Candidate& candidate = compiled_.candidate;
    if (candidate.family->kind() == DeviceKind::kCpu) return element;
    return std::max(
        element,
        candidate.family->program(candidate.config, problem_, limits_, make_layouts(problem_)).alignment_bytes);
  }

  void judge_every_row(const AttentionOutputs& outputs, PatternResult& result) {
    if (limits_.emulated || compiled_.candidate.family->name() == kDeviceOracle) return;
    if (limits_.kind == DeviceKind::kCuda)
      return judge_by_device_oracle(device_, request_, *oracle_, operands_, outputs, result);
    if (request_.level != GateLevel::kFull) return;
    if (problem_.flops() > (first_ ? kEveryRowOfOnePattern : kEveryRowOfAllPatterns)) return;
    judge_every_element(problem_, *oracle_, outputs, OracleCache::every_row(problem_, *oracle_), "fp32", result);
  }

  Device& device_;
  const DeviceLimits& limits_;
  const EvaluateRequest& request_;
  const PlacedProblem& problem_;
  const CompiledCandidate& compiled_;
  const LoadedCandidate& loaded_;
  Operands& operands_;
  Pattern pattern_;
  bool first_;
  std::shared_ptr<const Oracle> oracle_;
};

// Some checks are of normal data alone, and of the pattern that is judged first: that is the normal one, if it is asked
// for, wherever it was named.
std::vector<Pattern> in_order_of_judgement(std::vector<Pattern> patterns) {
  std::ranges::stable_partition(patterns, [](Pattern pattern) { return pattern == Pattern::kNormal; });
  return patterns;
}

// Full only with every pattern.
GateLevel level_of(const EvaluateRequest& request) {
  const auto asked = [&](Pattern pattern) {
    return std::find(request.patterns.begin(), request.patterns.end(), pattern) != request.patterns.end();
  };
  const std::vector<Pattern> patterns = patterns_of(request.problem);
  return std::all_of(patterns.begin(), patterns.end(), asked) ? request.level : GateLevel::kQuick;
}

}  // namespace

Verdict judge_correctness(Device& device, OracleCache& oracles, const EvaluateRequest& request,
                          const CompiledCandidate& compiled, Trial& trial) {
  Verdict verdict;
  verdict.gate = Gate::kCorrectness;
  verdict.evidence = {{"level", level_of(request)},
                      {"bound_factor", kBoundFactor},
                      {"inputs_checked", Operands::input_bytes(request.problem) <= Operands::kInputCheckLimit},
                      {"patterns", json::array()}};
  if (request.patterns.empty()) throw_bad_input("no data pattern was asked for; give at least one, e.g. normal");
  const LoadedCandidate loaded(device, compiled.candidate, request.problem, compiled.artifact);
  Operands operands(device, request.problem);
  double worst_share = -1;
  const std::vector<Pattern> patterns = in_order_of_judgement(request.patterns);
  for (const Pattern pattern : patterns) {
    const bool first = pattern == patterns.front();
    const PatternResult result =
        PatternJudge(device, oracles, request, compiled, loaded, operands, pattern, first).judge();
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
