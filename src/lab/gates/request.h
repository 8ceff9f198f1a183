#pragma once
// What is asked of the gates for one candidate.

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/data.h"
#include "device/device.h"
#include "lab/harness/patch.h"
#include "lab/measure/spec.h"
#include "lab/record/trial.h"

namespace flashcore {

struct EvaluateRequest : MeasurementSpec {  // max_seconds 0: by phase
  PlacedProblem problem;
  std::string problem_name, suite;
  std::string candidate;                 // text
  std::vector<Patch> patches;            // that candidate and incumbent are made from, if they are
  std::optional<std::string> incumbent;  // compare with it, interleaved; already known to be correct
  // Already timed on this problem: execution identity (harness/compiled_candidate.h) -> candidate text. A search trial
  // that would run the same instructions is SAME by construction and not timed.
  std::map<std::string, std::string> timed;
  Phase phase = Phase::kSearch;
  std::vector<Pattern> patterns = {Pattern::kNormal};
  GateLevel level = GateLevel::kFull;
  bool time = true;                   // false: stop after correctness
  int min_samples = 0;                // 0: by phase
  double max_reference_flops = 2e10;  // fp64 rows are sampled beyond this
  bool use_cache = true;
  // A candidate that fails the resource gate goes on, to be looked at: it ends "resource" all the same, with what was
  // counted or timed. Never stored.
  bool past_resources = false;
};

// Sets level and patterns of a request for one candidate or for two: what a search can afford, and what a published
// number needs.
template <class Request>
void ask_quick_gate(Request& request) {
  request.level = GateLevel::kQuick;
  request.patterns = {Pattern::kNormal, Pattern::kOutlier};
}
template <class Request>
void ask_full_gate(Request& request) {  // for the problem that it has by now
  request.level = GateLevel::kFull;
  request.patterns = patterns_of(request.problem);
}

void to_json(nlohmann::json& json, const EvaluateRequest& request);
void from_json(const nlohmann::json& json, EvaluateRequest& request);

}  // namespace flashcore
