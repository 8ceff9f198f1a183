#include "lab/experiment/run.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/files.h"
#include "kernels/source_hash.h"
#include "lab/process/worker.h"
#include "lab/record/number_text.h"

namespace flashcore {
namespace {

constexpr int kMinBlocksOfExperiment = 8, kMaxBlocks = 400;
// Below this a process could not finish its first blocks.
constexpr double kMinSeconds = 0.15;
constexpr double kMaxReferenceFlops = 2e9;

const ExperimentArm& arm_at(const Experiment& e, std::size_t arm) { return e.candidates[arm]; }

class Runner {
 public:
  Runner(const std::vector<Experiment>& experiments, const ExperimentRunOptions& options,
         const std::function<void(int, int, const std::string&)>& progress, const std::function<bool()>& stop)
      : experiments_(experiments), options_(options), progress_(progress), stop_(stop) {
    for (const Experiment& e : experiments_) {
      const int pairs = static_cast<int>(e.candidates.size() * e.problems.size());
      total_ += static_cast<int>((e.candidates.size() + 1) * e.problems.size());
      if (options_.time) total_ += pairs * processes_of(e);
      timings_ += pairs * processes_of(e);
    }
  }

  std::vector<ExperimentResult> run() {
    int processes = 1;
    for (const Experiment& e : experiments_) processes = std::max(processes, processes_of(e));
    try {
      for (int process = 0; process < (options_.time ? processes : 1); ++process) run_process(process);
    } catch (const Cancelled&) {
      // What was measured is written all the same; a pair of fewer processes than asked for decides nothing.
    }
    for (std::size_t i = 0; i < results_.size(); ++i) judge(i);
    return std::move(results_);
  }

 private:
  int processes_of(const Experiment& e) const { return options_.processes.value_or(e.processes); }

  void step(const std::string& what) {
    if (stop_ && stop_()) throw Cancelled("stopped between two measurements");
    if (progress_) progress_(++done_, total_, what);
  }

  void run_process(int process) {
    Worker worker(options_.device, options_.worker_executable);
    worker.cancel_when(stop_);
    if (process == 0) prepare(worker);
    if (!options_.time) return;
    for (std::size_t i = 0; i < results_.size(); ++i)
      if (process < processes_of(experiments_[i])) time_pairs(worker, i, process);
  }

  // Gates and occupancy of every arm, before anything is timed.
  void prepare(Worker& worker) {
    for (const Experiment& e : experiments_) {
      ExperimentResult result;
      result.experiment = e;
      result.device = worker.device();
      result.created_at = now_iso8601();
      result.source_hash = source_hash();
      if (result.device.limits.emulated)
        for (NamedProblem& p : result.experiment.problems) {
          p.problem = shrunk_for_emulator(p.problem);
          p.name = p.problem.id();
        }
      for (const LedgerEntry& entry : options_.ledger)
        if (entry.name == e.name && entry.device_key == result.device.key)
          result.earlier.push_back(fmt::format("{} on {}: {} {}", entry.created_at.substr(0, 10), entry.device_key,
                                               entry.verdict, entry.summary));
      const PatchScope patches(e.patches());
      try {
        for (const NamedProblem& problem : result.experiment.problems) {
          add_facts(worker, result, e.control, problem);
          for (const ExperimentArm& arm : e.candidates) add_facts(worker, result, arm, problem);
        }
      } catch (const Cancelled&) {
        // Where only gates are asked for, those that were judged are the result. A run has none without its timings.
        if (!options_.time && !result.facts.empty()) {
          outcomes_.emplace_back();
          results_.push_back(std::move(result));
        }
        throw;
      }
      for (std::size_t arm = 0; arm < e.candidates.size(); ++arm)
        for (const NamedProblem& problem : result.experiment.problems) result.pairs.push_back({arm, problem, {}});
      outcomes_.emplace_back(result.pairs.size());
      results_.push_back(std::move(result));
    }
  }

  void add_facts(Worker& worker, ExperimentResult& result, const ExperimentArm& arm, const NamedProblem& problem) {
    step(result.experiment.name + ": gates of " + arm.name);
    EvaluateRequest request;
    request.problem = problem.problem;
    request.problem_name = problem.name;
    request.suite = "experiment " + result.experiment.name;
    request.candidate = arm.candidate;
    if (arm.patch) request.patches = {*arm.patch};
    request.phase = Phase::kCheck;
    request.seed = options_.seed;
    ask_full_gate(request);
    request.time = false;
    request.max_reference_flops = kMaxReferenceFlops;
    ArmFacts facts{arm.name, problem.problem.id(), worker.evaluate(request), std::nullopt};
    result.failed_gates += facts.gates.ended != Ended::kPassed;
    const DeviceLimits& limits = result.device.limits;
    if (facts.gates.artifact && limits.kind == DeviceKind::kCuda && !limits.emulated) {
      const Candidate candidate = parse_candidate(arm.candidate, problem.problem, limits);
      const Program program =
          candidate.family->program(candidate.config, problem.problem, limits, make_layouts(problem.problem));
      const Dim3 grid = program.steps.front().launch.grid;
      facts.occupancy = occupancy_of(*facts.gates.artifact, limits, std::int64_t{grid.x} * grid.y * grid.z);
    }
    result.facts.push_back(std::move(facts));
  }

  void time_pairs(Worker& worker, std::size_t index, int process) {
    const Experiment& e = results_[index].experiment;
    for (std::size_t at = 0; at < results_[index].pairs.size(); ++at) {
      const ExperimentPair& pair = results_[index].pairs[at];
      auto& outcomes = outcomes_[index][at];
      step(fmt::format("{}: {} on {}, process {}", e.name, arm_at(e, pair.arm).name, pair.problem.name, process + 1));
      // What failed once is not tried again.
      if (!outcomes.empty() && outcomes.back().ended != PairEnded::kMeasured) continue;
      outcomes.push_back(worker.measure_pair(request_for(e, pair, process)));
    }
  }

  PairRequest request_for(const Experiment& e, const ExperimentPair& pair, int process) const {
    PairRequest request;
    request.problem = pair.problem.problem;
    request.problem_name = pair.problem.name;
    request.suite = "experiment " + e.name;
    request.candidate = arm_at(e, pair.arm).candidate;
    request.baseline = e.control.candidate;
    request.patches = e.patches();
    ask_full_gate(request);
    request.max_reference_flops = kMaxReferenceFlops;
    request.gates = true;  // what is published has passed all gates in the process that timed it
    request.measure.spec() = e.spec();
    request.measure.seed = seed_of_process(options_.seed, process);
    request.measure.min_blocks = kMinBlocksOfExperiment;
    request.measure.max_blocks = kMaxBlocks;
    request.measure.target_half_width = kTargetHalfWidth;
    if (options_.max_seconds)
      request.measure.max_seconds = std::max(kMinSeconds, std::min(e.max_seconds, *options_.max_seconds / timings_));
    return request;
  }

  void judge(std::size_t index) {
    ExperimentResult& result = results_[index];
    const PatchScope patches(result.experiment.patches());
    for (std::size_t at = 0; at < result.pairs.size(); ++at) {
      ExperimentPair& pair = result.pairs[at];
      if (outcomes_[index][at].empty()) continue;
      AbOptions options;
      options.device = options_.device;
      options.problem = pair.problem;
      options.baseline = result.experiment.control.candidate;
      options.candidate = arm_at(result.experiment, pair.arm).candidate;
      options.margin = result.experiment.margin;
      options.seed = options_.seed;
      pair.result = judge_ab(options, std::move(outcomes_[index][at]));
    }
    result.processes = processes_of(result.experiment);
    if (options_.time) conclude(result);
  }

  const std::vector<Experiment>& experiments_;
  const ExperimentRunOptions& options_;
  const std::function<void(int, int, const std::string&)>& progress_;
  const std::function<bool()>& stop_;
  std::vector<ExperimentResult> results_;
  std::vector<std::vector<std::vector<PairOutcome>>> outcomes_;  // by experiment, pair, process
  int done_ = 0, total_ = 0, timings_ = 0;
};

bool is_timed(const ExperimentPair& pair) { return pair.result.ended == PairEnded::kMeasured || pair.result.same_code; }

// It was timed in fewer processes than were asked for.
bool is_cut_short(const ExperimentResult& result, const ExperimentPair& pair) {
  return is_timed(pair) && !pair.result.same_code && static_cast<int>(pair.result.processes.size()) < result.processes;
}

// Than what is stored of the same device: a verdict says more than none, and without one whole comparisons do.
bool says_less(const ExperimentResult& result, const LedgerEntry& stored) {
  if (result.verdict != HypothesisVerdict::kInconclusive) return false;
  if (stored.verdict != HypothesisVerdict::kInconclusive) return true;
  const auto whole = std::count_if(result.pairs.begin(), result.pairs.end(), [&](const ExperimentPair& pair) {
    return is_timed(pair) && !is_cut_short(result, pair);
  });
  const auto timed =
      std::count_if(stored.pairs.begin(), stored.pairs.end(), [](const LedgerPair& pair) { return pair.speedup > 0; });
  return whole < std::min<std::ptrdiff_t>(timed, std::ssize(result.pairs));
}

}  // namespace

std::optional<ArmError> error_of(const Trial& gates) {
  for (const Verdict& verdict : gates.gates) {
    if (verdict.gate != Gate::kCorrectness || !verdict.evidence.contains("patterns")) continue;
    for (const nlohmann::json& pattern : verdict.evidence.at("patterns"))
      if (pattern.value("pattern", "") == to_string(Pattern::kNormal) && pattern.contains("rel") &&
          pattern.value("nonfinite", 0) == 0)  // of elements that are no numbers the others say nothing
        return ArmError{pattern.at("rel").get<double>(), pattern.value("lse_rms", 0.0)};
  }
  return std::nullopt;
}

std::optional<ErrorRatio> error_ratio(const ExperimentResult& result, const ArmFacts& facts) {
  const std::optional<ArmError> own = error_of(facts.gates);
  if (!own) return std::nullopt;
  ErrorRatio ratio{*own, std::nullopt, std::nullopt};
  for (const ArmFacts& control : result.facts) {
    if (control.arm != result.experiment.control.name || control.problem != facts.problem) continue;
    const std::optional<ArmError> its = error_of(control.gates);
    if (its && its->o > 0) ratio.o = own->o / its->o;
    if (its && its->lse > 0) ratio.lse = own->lse / its->lse;
  }
  return ratio;
}

std::string ratio_words(const std::optional<double>& measured, const std::optional<Prediction>& predicted) {
  if (!measured) return "–";
  std::string text = fmt::format("{:.3g}", *measured);
  if (!predicted) return text;
  const bool within = place_in_range(*predicted, *measured, *measured) == RangePlace::kWithin;
  return text +
         fmt::format("; {:.3g} to {:.3g} predicted{}", predicted->low, predicted->high, within ? "" : ": outside");
}

ErrorPrediction predicted_error_of(const Experiment& experiment, const std::string& arm) {
  for (const ExperimentArm& candidate : experiment.candidates)
    if (candidate.name == arm) return candidate.predicted_error;
  return {};
}

std::filesystem::path experiment_folder(const ExperimentResult& result, const std::filesystem::path& folder) {
  for (const std::string& name : {result.experiment.name, result.experiment.name + "_on_" + result.device.key}) {
    const std::filesystem::path target = folder / name, verdict = target / "verdict.json";
    std::error_code ignored;
    if (!std::filesystem::exists(verdict, ignored)) return target;
    try {
      const LedgerEntry entry = parse_ledger_entry(read_file(verdict), verdict.string());
      if (entry.device_key != result.device.key) continue;
      return says_less(result, entry) ? target / "unjudged" : target;
    } catch (const Error&) {  // what cannot be read may be somebody's
      return target / "unjudged";
    }
  }
  return folder / result.experiment.name / "unjudged";
}

std::vector<ExperimentResult> run_experiments(const std::vector<Experiment>& experiments,
                                              const ExperimentRunOptions& options,
                                              const std::function<void(int, int, const std::string&)>& progress,
                                              const std::function<bool()>& stop) {
  if (experiments.empty()) throw_bad_input("no experiment was given; give a file, as experiments/pipeline_stages.yaml");
  return Runner(experiments, options, progress, stop).run();
}

namespace {

// "" where none was predicted.
std::string count_predicted_errors(const ExperimentResult& result) {
  int predicted = 0, within = 0;
  const auto count = [&](const std::optional<Prediction>& range, const std::optional<double>& measured) {
    if (!range || !measured) return;
    ++predicted;
    within += place_in_range(*range, *measured, *measured) == RangePlace::kWithin;
  };
  for (const ArmFacts& facts : result.facts) {
    const ErrorPrediction prediction = predicted_error_of(result.experiment, facts.arm);
    if (const auto ratio = error_ratio(result, facts)) count(prediction.o, ratio->o), count(prediction.lse, ratio->lse);
  }
  if (predicted == 0) return "";
  return fmt::format("; {} of {} over the control's {} within the predicted range", within,
                     text::plural(predicted, "error"), within == 1 ? "is" : "are");
}

}  // namespace

void conclude(ExperimentResult& result) {
  const Experiment& e = result.experiment;
  std::vector<HypothesisVerdict> outcomes;
  std::string measured;
  std::optional<double> worst_error;
  for (ExperimentPair& pair : result.pairs) {
    const ExperimentArm& arm = e.candidates[pair.arm];
    const Comparison& c = pair.result.comparison;
    pair.outcome = outcome_of(arm.predicted, c, e.margin);
    const bool timed = is_timed(pair), stopped = is_cut_short(result, pair);
    if (stopped) pair.outcome = HypothesisVerdict::kInconclusive;
    if (timed) {
      pair.prediction_error = c.speedup / arm.predicted.middle() - 1;
      if (!worst_error || std::abs(pair.prediction_error) > std::abs(*worst_error)) worst_error = pair.prediction_error;
    }
    outcomes.push_back(pair.outcome);
    if (!measured.empty()) measured += "; ";
    measured += timed ? fmt::format("{} on {}: {} at {:.3f} [{:.3f}, {:.3f}], predicted {:.2f} to {:.2f}", arm.name,
                                    pair.problem.name, pair.result.verdict, c.speedup, c.ci95_low, c.ci95_high,
                                    arm.predicted.low, arm.predicted.high)
                      : fmt::format("{} on {}: {}", arm.name, pair.problem.name, pair.result.verdict);
    if (stopped) measured += fmt::format(" ({} of {} processes)", pair.result.processes.size(), result.processes);
  }
  result.verdict = overall_outcome(outcomes, e.every);
  const auto count = [&](HypothesisVerdict which) { return std::count(outcomes.begin(), outcomes.end(), which); };
  result.summary = {e.hypothesis, fmt::format("Speed-up over {}: {}.", e.control.name, measured),
                    fmt::format("Of {}: the prediction agrees for {}, the effect is right and its size outside the "
                                "predicted range for {}, {} refuted, {} undecided{}.",
                                text::plural(static_cast<std::int64_t>(outcomes.size()), "comparison"),
                                count(HypothesisVerdict::kConfirmed), count(HypothesisVerdict::kSizeOutside),
                                count(HypothesisVerdict::kRefuted), count(HypothesisVerdict::kInconclusive),
                                (worst_error ? fmt::format("; the largest error from a range's middle is {:+.1f}%",
                                                           100 * *worst_error)
                                             : "; nothing was timed") +
                                    count_predicted_errors(result))};
}

}  // namespace flashcore
