#pragma once
// Two candidates, one problem, one process: the gates of both, then the race. What `flashcore ab` asks of a worker for
// each of its processes.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/data.h"
#include "lab/harness/patch.h"
#include "lab/measure/engine.h"
#include "lab/record/trial.h"

namespace flashcore {

struct PairRequest {
  PlacedProblem problem;
  std::string problem_name, suite;
  std::string candidate, baseline;  // text
  std::vector<Patch> patches;       // that they are made from, if they are
  MeasureOptions measure;           // `audit` and `wrapper` do not travel
  std::vector<Pattern> patterns = all_patterns();
  GateLevel level = GateLevel::kFull;
  double max_reference_flops = 2e10;
  bool gates = true;           // false: of a pair that passed them before; the timed outputs are judged in any case
  bool baseline_gates = true;  // false: the baseline passed them in this process
  // The candidate may fail the resource gate: an inversion's, which is slow on purpose. Its trial says so, and is never
  // stored.
  bool past_resources = false;
  bool same_code = false;  // race them even where they are the same code: how A against A is tested
  bool time = true;        // false: stop once both have passed their gates
  bool use_cache = true;
  // The candidate is known to compute something else (record/wrong_on_purpose.h): no gate is asked of it, nor are its
  // outputs judged. It gets a ratio, and its trial says "incorrect".
  bool wrong_on_purpose = false;
  bool count = false;  // on an emulated GPU, which has no time: what one launch of each does (Gate::kCounters)
};
void to_json(nlohmann::json& json, const PairRequest& request);
void from_json(const nlohmann::json& json, PairRequest& request);

struct PairOutcome {
  PairEnded ended = PairEnded::kError;
  std::string message;
  Trial candidate, baseline;       // gates and timing; samples in the order taken
  std::vector<double> log_ratios;  // per block: log(baseline's time / candidate's time)
  std::vector<bool> candidate_outside;
};
// Of both; the race is shared out evenly between the two.
TrialSeconds seconds_of(const PairOutcome& outcome);
void to_json(nlohmann::json& json, const PairOutcome& outcome);
void from_json(const nlohmann::json& json, PairOutcome& outcome);

// Never throws for a candidate's failure; DeviceFault passes through. `stage`: as evaluate(), with the side before it.
// The request's wrapper, if it has one, is of the candidate's timed launches.
PairOutcome measure_pair(Device& device, const PairRequest& request,
                         const std::function<void(const std::string&)>& stage = {});

}  // namespace flashcore
