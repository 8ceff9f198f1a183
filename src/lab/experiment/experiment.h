#pragma once
// Experiment: a hypothesis with a predicted effect, stated before anything runs (experiments/*.yaml), and what its
// measurement means for it.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/suite.h"
#include "lab/harness/patch.h"
#include "lab/measure/spec.h"
#include "lab/record/outcome.h"
#include "lab/record/trial.h"

namespace flashcore {

// Speed-up over the control: 1.05 is 5% faster.
struct Prediction {
  double low = 1, high = 1;
  double middle() const;  // geometric
  // Would FASTER, SLOWER or SAME at this margin agree with its direction?
  bool allows(SpeedVerdict verdict, double margin) const;
};

// Where an interval of a measured speed-up lies. Within: it reaches the predicted range, so that the measurement cannot
// tell the two apart.
enum class RangePlace { kWithin, kAbove, kBelow };
RangePlace place_in_range(const Prediction& predicted, double ci95_low, double ci95_high);

// Of what a candidate makes of normal data, over what the control makes of the same: 1 is the control's error.
struct ErrorPrediction {
  std::optional<Prediction> o;    // relative, of the Frobenius norm
  std::optional<Prediction> lse;  // root of the mean square
};

struct ExperimentArm {
  std::string name;       // "three stages"
  std::string candidate;  // text; "sm80_fwd+<patch>:..." if patched
  std::optional<Patch> patch;
  Prediction predicted;  // of the control: none
  ErrorPrediction predicted_error = {};
};

// An idea whose code is gone, and how it ended: nobody runs it, and nobody need try it again.
struct ClosedExperiment {
  HypothesisVerdict verdict = HypothesisVerdict::kRefuted;
  std::string finding;
  std::string last_commit;  // that still holds the code
};

struct Experiment
    : MeasurementSpec {  // max_seconds: for one candidate on one problem in one process; the seed is the run's
  Experiment() { max_seconds = 0.5; }

  std::string name, hypothesis, mechanism, refuted_by;
  std::string known;  // what was known when the file was written; "" if it does not say
  std::optional<ClosedExperiment> closed;
  std::filesystem::path file;
  ExperimentArm control;
  std::vector<ExperimentArm> candidates;
  std::vector<NamedProblem> problems;
  int processes = 3;
  // CONFIRMED when every pair of candidate and problem agrees with its prediction, or most of them.
  bool every = true;

  std::vector<Patch> patches() const;
};

// Keys: name, hypothesis, mechanism, refuted_by, known, closed {verdict, finding, last_commit}, control {name,
// candidate, patch}, candidates [{name, candidate, predicted: [low, high], predicted_error: {o: [low, high], lse: [low,
// high]}, patch}], problems [ids], acceptance {margin, processes, seconds, confirmed_when: every|most}, regime,
// condition; the last three and predicted_error may be left out. `patch` names a folder beside the file
// (lab/harness/patch.h). Error kBadInput with file and line, also for a prediction that no verdict could contradict and
// for candidates that are no text of a family.
Experiment load_experiment(const std::filesystem::path& file);
// Its text; `file` is what complaints call it, and patches lie beside.
Experiment parse_experiment(std::string_view text, const std::filesystem::path& file);

// Of one comparison. The verdict (verdict_of) decides the direction: against the prediction's it refutes. In its
// direction the interval decides the size: kConfirmed where it reaches the range, kSizeOutside where it does not.
HypothesisVerdict outcome_of(const Prediction& predicted, const Comparison& measured, double margin);
// Of all of them. Every: one refutation refutes, and one size outside leaves no more than kSizeOutside. Most: more than
// half decide.
HypothesisVerdict overall_outcome(const std::vector<HypothesisVerdict>& outcomes, bool every);

// The same problem, small enough for an emulated GPU.
PlacedProblem shrunk_for_emulator(PlacedProblem problem, std::int64_t rows = 150);

}  // namespace flashcore
