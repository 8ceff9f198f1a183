#include <algorithm>

#include "core/error.h"
#include "lab/gates/gates.h"
#include "lab/gates/memoisation.h"
#include "lab/gates/self_test.h"
#include "lab/measure/engine.h"
#include "lab/record/checks.h"

namespace flashcore {
namespace {

using nlohmann::json;

struct Plan {
  int min_blocks, max_blocks;  // of a race
  int min_samples;             // of a candidate alone
  double max_seconds;
};

Plan plan_of(const EvaluateRequest& request) {
  Plan plan{};
  switch (request.phase) {
    case Phase::kSearch: plan = {kMinBlocks, 24, 12, 1.5}; break;
    case Phase::kHoldout: plan = {12, 60, 24, 5}; break;
    case Phase::kBench: plan = {12, 60, 24, 3}; break;
    case Phase::kDefault:
    case Phase::kCheck: plan = {8, 24, 16, 2}; break;
  }
  if (request.min_samples > 0) {
    plan.min_samples = request.min_samples;
    plan.min_blocks = std::max(kMinBlocks, (request.min_samples + 1) / 2);  // a block holds two samples of each
    plan.max_blocks = std::max(plan.max_blocks, plan.min_blocks);
  }
  if (request.max_seconds > 0) plan.max_seconds = request.max_seconds;
  return plan;
}

MeasureOptions measure_options(const EvaluateRequest& request) {
  const Plan plan = plan_of(request);
  MeasureOptions options;
  options.spec() = request.spec();
  options.min_blocks = plan.min_blocks;
  options.max_blocks = plan.max_blocks;
  options.min_samples = plan.min_samples;
  options.max_seconds = plan.max_seconds;
  options.early_drop = request.phase == Phase::kSearch;
  return options;
}

void conclude(Verdict& verdict, Trial& trial, GateStatus status, Ended ended, std::string reason) {
  verdict.status = status;
  verdict.reason = std::move(reason);
  trial.ended = ended;
}

void judge_comparison(const RaceResult& raced, Verdict& verdict, Trial& trial) {
  const Comparison& c = *trial.comparison;
  const std::string numbers = fmt::format("speed-up {:.4f} [{:.4f}, {:.4f}] over {} blocks against {}", c.speedup,
                                          c.ci95_low, c.ci95_high, c.blocks, c.against);
  if (c.verdict == SpeedVerdict::kFaster || c.verdict == SpeedVerdict::kSame)
    return conclude(verdict, trial, GateStatus::kPassed, Ended::kPassed, word_of(c.verdict) + ": " + numbers);
  if (c.verdict == SpeedVerdict::kSlower) verdict.evidence["check"] = to_string(Check::kComparison);
  if (c.verdict == SpeedVerdict::kSlower && is_on(Check::kComparison))
    return conclude(verdict, trial, GateStatus::kFailed, Ended::kSlower,
                    (raced.dropped ? "stopped early: " : "") + numbers);
  conclude(verdict, trial, GateStatus::kSkipped, Ended::kInconclusive,
           fmt::format("{}; this run could tell a change of {:.1f}% from none", numbers, 100 * c.detectable));
}

bool below_floor(const Timing& timing, Verdict& verdict, Trial& trial) {
  const auto why = is_on(Check::kFloor) ? why_below_floor(timing) : std::nullopt;
  if (!why) return false;
  verdict.evidence["check"] = to_string(Check::kFloor);
  conclude(verdict, trial, GateStatus::kError, Ended::kError, *why);
  trial.timing.reset();
  trial.comparison.reset();
  return true;
}

}  // namespace

Verdict judge_performance(Device& device, OracleCache& oracles, const EvaluateRequest& request,
                          const CompiledCandidate& compiled, const CompiledCandidate* incumbent, Trial& trial) {
  Verdict verdict;
  verdict.gate = Gate::kPerformance;
  const PlacedProblem& problem = request.problem;
  if (problem.total_lengths().q == 0) {
    conclude(verdict, trial, GateStatus::kSkipped, Ended::kPassed, "there is nothing to compute, so nothing to time");
    return verdict;
  }
  const auto oracle = oracles.get(problem, Pattern::kNormal, timing_seed(request.seed),
                                  std::min(request.max_reference_flops, kTimedReferenceFlops));
  if (incumbent && !race_self_test().empty()) throw_internal("{}", race_self_test());
  MeasureOptions options = measure_options(request);
  ContentAudit content;
  options.audit = [&](PreparedCandidate& prepared, int set) {
    content = detect_memoisation(device, problem, *oracle, prepared, set);
  };
  const LoadMeter load;
  Measurement measured = measure(device, problem, *oracle, compiled, incumbent, options);
  load.read(trial.machine);
  trial.environment = measured.environment;
  trial.timing = std::move(measured.candidate);
  verdict.evidence = {{"samples", trial.timing->samples.size()},
                      {"launches_per_sample", trial.timing->launches_per_sample},
                      {"buffer_copies", measured.buffer_copies},
                      {"throttled_samples", count_throttled(trial.timing->samples)},
                      {"p50_us", trial.timing->p50_us},
                      {"floor_us", trial.timing->floor_us},
                      {"known_content_us", content.same_us},
                      {"unseen_content_us", content.other_us},
                      {"ceilings", device.ceilings()}};
  if (!measured.candidate_wrong.empty() && is_on(Check::kTimedOutputs)) {
    verdict.evidence["check"] = to_string(Check::kTimedOutputs);
    conclude(verdict, trial, GateStatus::kFailed, Ended::kIncorrect,
             "the timed launches left wrong outputs: " + measured.candidate_wrong);
    trial.timing.reset();
    return verdict;
  }
  if (!measured.baseline_wrong.empty()) {
    conclude(verdict, trial, GateStatus::kError, Ended::kError,
             fmt::format("the incumbent {} is wrong, so nothing can be judged against it: {}",
                         incumbent->candidate.print(), measured.baseline_wrong));
    return verdict;
  }
  if (incumbent) {
    trial.comparison = measured.race.comparison;
    trial.comparison->against = incumbent->candidate.print();
  }
  if (!content.wrong.empty()) {
    conclude(verdict, trial, GateStatus::kFailed, Ended::kIncorrect, content.wrong);
    verdict.evidence["check"] = to_string(content.check);
    trial.timing.reset();
    trial.comparison.reset();
    return verdict;
  }
  if (below_floor(*trial.timing, verdict, trial)) return verdict;
  if (incumbent) judge_comparison(measured.race, verdict, trial);
  else conclude(verdict, trial, GateStatus::kPassed, Ended::kPassed, "");
  return verdict;
}

}  // namespace flashcore
