#include "lab/tune/holdout.h"

#include <numeric>
#include <optional>

#include "lab/measure/engine.h"
#include "lab/measure/race.h"

namespace flashcore {
namespace {

constexpr int kMinBlocksOfHoldout = 8, kMaxBlocksOfHoldout = 60;

PairRequest pair_request(const HoldoutRequest& request, const std::string& candidate, int process,
                         bool baseline_gates) {
  PairRequest pair;
  pair.problem = request.base.problem;
  pair.problem_name = request.base.problem_name;
  pair.suite = request.base.suite;
  pair.candidate = candidate;
  pair.baseline = request.baseline;
  pair.patches = request.base.patches;
  pair.patterns = request.base.patterns;
  pair.level = request.base.level;
  pair.max_reference_flops = request.base.max_reference_flops;
  pair.gates = true;  // what is published has passed all gates in the process that timed it
  pair.baseline_gates = baseline_gates;
  const double by_default = pair.measure.max_seconds;
  pair.measure.spec() = request.base.spec();
  if (request.base.max_seconds <= 0) pair.measure.max_seconds = by_default;
  pair.measure.seed = seed_of_process(request.base.seed, process);
  pair.measure.min_blocks = kMinBlocksOfHoldout;
  pair.measure.max_blocks = kMaxBlocksOfHoldout;
  return pair;
}

Comparison comparison_of(const EvaluateRequest& request, const std::vector<PairOutcome>& outcomes) {
  std::vector<std::vector<double>> blocks;
  for (const PairOutcome& outcome : outcomes) blocks.push_back(outcome.log_ratios);
  Comparison comparison = compare_processes(blocks, request.margin, request.seed);
  comparison.against = outcomes.front().baseline.candidate();
  return comparison;
}

Ended ended_of(const PairOutcome& outcome) {
  switch (outcome.ended) {
    case PairEnded::kCandidateFailed: return outcome.candidate.ended;
    case PairEnded::kCrashed: return Ended::kCrashed;
    case PairEnded::kTimeout: return Ended::kTimeout;
    case PairEnded::kEnvironment: return Ended::kEnvironment;
    default: return Ended::kError;
  }
}

PairOutcome race(const HoldoutRequest& request, Worker& worker, const std::string& finalist, int process,
                 BaselineGates& gates) {
  const bool needed = gates.needed(worker.restarts());
  PairOutcome outcome = worker.measure_pair(pair_request(request, finalist, process, needed));
  // A worker that had died meanwhile is another process, in which the baseline has not passed.
  if (!needed && outcome.ended == PairEnded::kMeasured && gates.needed(worker.restarts()))
    outcome = worker.measure_pair(pair_request(request, finalist, process, true));
  gates.note(outcome.ended, worker.restarts());
  return outcome;
}

}  // namespace

Trial heldout_trial(const EvaluateRequest& request, const std::vector<PairOutcome>& outcomes) {
  const PairOutcome& first = outcomes.front();
  Trial trial = first.candidate;
  trial.phase = Phase::kHoldout;
  trial.seed = request.seed;
  trial.suite = request.suite;
  trial.problem_name = request.problem_name;
  trial.seconds.emplace();
  for (const PairOutcome& outcome : outcomes) *trial.seconds += seconds_of(outcome);
  Verdict verdict{Gate::kPerformance, GateStatus::kPassed, "", {{"processes", outcomes.size()}}};
  for (const PairOutcome& outcome : outcomes) {
    if (outcome.ended == PairEnded::kMeasured) continue;
    // One process that fails is not outvoted by those that did not.
    trial.timing.reset();
    trial.message = outcome.message;
    if (outcome.ended == PairEnded::kSameCode) {
      trial.comparison = Comparison{first.baseline.candidate(), 1, 1, 1, SpeedVerdict::kSame, 0, request.margin};
      trial.ended = Ended::kPassed;
      return trial;
    }
    if (trial.ended == Ended::kPassed) trial.ended = ended_of(outcome);
    verdict.status = GateStatus::kError;
    verdict.reason = outcome.message;
    trial.gates.push_back(std::move(verdict));
    return trial;
  }
  const Comparison comparison = comparison_of(request, outcomes);
  trial.comparison = comparison;
  verdict.reason = fmt::format("{}: speed-up {:.4f} [{:.4f}, {:.4f}] over {} blocks in {} processes against {}",
                               comparison.verdict, comparison.speedup, comparison.ci95_low, comparison.ci95_high,
                               comparison.blocks, outcomes.size(), comparison.against);
  verdict.evidence["log_ratios"] = nlohmann::json::array();
  for (const PairOutcome& outcome : outcomes) verdict.evidence["log_ratios"].push_back(outcome.log_ratios);
  if (comparison.verdict == SpeedVerdict::kSlower) verdict.status = GateStatus::kFailed;
  if (comparison.verdict == SpeedVerdict::kInconclusive) verdict.status = GateStatus::kSkipped;
  trial.ended = ended_of(comparison.verdict);
  trial.message = trial.ended == Ended::kPassed ? "" : verdict.reason;
  trial.gates.push_back(std::move(verdict));
  return trial;
}

std::vector<Trial> measure_holdout(const HoldoutRequest& request, Worker& first, const std::string& device,
                                   const std::string& worker_executable, const std::function<void(const Trial&)>& done,
                                   const std::function<bool()>& stop) {
  EvaluateRequest alone = request.base;
  alone.candidate = request.baseline;
  alone.phase = Phase::kHoldout;
  std::vector<Trial> trials = {first.evaluate(alone)};
  done(trials.front());
  std::vector<std::vector<PairOutcome>> outcomes(request.finalists.size());
  std::vector<std::size_t> racing(request.finalists.size());
  std::iota(racing.begin(), racing.end(), std::size_t{0});
  for (int process = 0; !racing.empty() && process < request.winner_processes; ++process) {
    std::optional<Worker> fresh;
    if (process > 0) {
      fresh.emplace(device, worker_executable);
      fresh->cancel_when(stop);
    }
    Worker& worker = fresh ? *fresh : first;
    BaselineGates gates;
    if (process == 0 && trials.front().ended == Ended::kPassed) gates.note(PairEnded::kMeasured, worker.restarts());
    for (const std::size_t i : racing) {
      outcomes[i].push_back(race(request, worker, request.finalists[i], process, gates));
      done(outcomes[i].back().candidate);
    }
    std::erase_if(racing, [&](std::size_t i) {
      if (outcomes[i].back().ended != PairEnded::kMeasured) return true;
      return process + 1 == request.processes && !may_win(comparison_of(request.base, outcomes[i]));
    });
  }
  for (const auto& of_one : outcomes) trials.push_back(heldout_trial(request.base, of_one));
  return trials;
}

}  // namespace flashcore
