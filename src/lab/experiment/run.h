#pragma once
// Runs experiments: occupancy predicted and gates passed first, then every candidate against the control, interleaved,
// in fresh processes.

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/compare/ab.h"
#include "lab/experiment/experiment.h"
#include "lab/experiment/ledger.h"
#include "lab/gates/occupancy.h"

namespace flashcore {

struct ExperimentRunOptions {
  std::string device;                 // as open_device
  std::optional<int> processes;       // instead of the files'
  std::optional<double> max_seconds;  // of timing, of all experiments together; shares them out evenly
  std::uint64_t seed = 1;
  bool time = true;                 // false: gates only
  std::vector<LedgerEntry> ledger;  // what is known already
  std::string worker_executable;    // as Worker; tests give their own
};

// What is known of an arm on a problem before it is timed.
struct ArmFacts {
  std::string arm, problem;
  Trial gates;
  std::optional<Occupancy> occupancy;  // of GPU candidates that compiled
};

// Of an arm's outputs on normal data, in the gate of correctness.
struct ArmError {
  double o = 0;    // relative, of the Frobenius norm
  double lse = 0;  // root of the mean square
};
std::optional<ArmError> error_of(const Trial& gates);  // none where the gate did not come so far

// A candidate's error on a problem beside what was predicted of it.
struct ErrorRatio {
  ArmError error;
  std::optional<double> o, lse;  // over the control's; none where that is 0 or not known
};

struct ExperimentPair {
  std::size_t arm = 0;  // of Experiment::candidates
  NamedProblem problem;
  AbResult result;
  HypothesisVerdict outcome = HypothesisVerdict::kInconclusive;
  double prediction_error = 0;  // measured speed-up / middle of the predicted range - 1
};

struct ExperimentResult {
  Experiment experiment;
  HypothesisVerdict verdict = HypothesisVerdict::kInconclusive;
  int processes = 0;  // that were asked for; a run that was stopped has fewer, and a pair of fewer decides nothing
  std::vector<std::string> summary;  // three lines
  DeviceInfo device;
  std::string created_at, source_hash;
  std::vector<ArmFacts> facts;  // control and candidates on each problem
  std::vector<ExperimentPair> pairs;
  std::vector<std::string> earlier;  // of the ledger
  int failed_gates = 0;
};

// Processes are the outer loop, so that many experiments share the cost of starting them. Progress: a line for each
// step. `stop` is polled: what was measured by then is judged. Errors as Worker.
std::vector<ExperimentResult> run_experiments(
    const std::vector<Experiment>& experiments, const ExperimentRunOptions& options,
    const std::function<void(int done, int total, const std::string&)>& progress, const std::function<bool()>& stop);

// Of `facts`, one of result.facts; none where the gate of correctness has no figures.
std::optional<ErrorRatio> error_ratio(const ExperimentResult& result, const ArmFacts& facts);
// The arm's; of the control, none.
ErrorPrediction predicted_error_of(const Experiment& experiment, const std::string& arm);

// "1.02; 0.99 to 1.01 predicted: outside"; "–" where nothing is known.
std::string ratio_words(const std::optional<double>& measured, const std::optional<Prediction>& predicted);

// Verdict and summary from the pairs: a pure function.
void conclude(ExperimentResult& result);

// A stored result (verdict.json and samples.json), concluded again by the rules of today. Comparisons stay as they were
// recorded. Of a file that does not say how many processes were asked for, a pair that decided nothing decides nothing
// again. Error kBadInput naming the folder's file that is no result.
ExperimentResult rejudge_experiment(const std::filesystem::path& folder);

// Where the files of a result go: `folder`/<name>, but never over a verdict that says more. What was measured on
// another device goes beside it, into <name>_on_<device>. Where there is a verdict, a result without one goes into a
// folder "unjudged" in it, which no ledger reads; so does one that was stopped, where more comparisons were timed
// before.
std::filesystem::path experiment_folder(const ExperimentResult& result, const std::filesystem::path& folder);
// samples.json (every sample of every process), verdict.json (what the ledger reads), then verdict.md and verdict.html
// in `target`. Returns why pages could not be written; what was measured stays. Error kEnvironment if that
// cannot be written.
std::vector<std::string> write_experiment(const ExperimentResult& result, const std::filesystem::path& target);
// What rejudge_experiment found, into the folder that it read: verdict.json gets the verdict, the summary and the
// outcomes, and keeps all else as it was recorded. Returns and throws as write_experiment.
std::vector<std::string> write_rejudged(const ExperimentResult& result, const std::filesystem::path& target);
nlohmann::json experiment_json(const ExperimentResult& result);
nlohmann::json experiment_samples_json(const ExperimentResult& result);
std::string experiment_markdown(const ExperimentResult& result);
std::string experiment_html(const ExperimentResult& result);

}  // namespace flashcore
