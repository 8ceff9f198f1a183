#pragma once
// The gates of one candidate, in order: valid -> compile -> resource -> correctness -> performance. Runs in the calling
// process; lab/process/worker.h runs it in another, which a crash or a hang may end.

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/data.h"
#include "device/device.h"
#include "lab/harness/patch.h"
#include "lab/record/trial.h"

namespace flashcore {

struct EvaluateRequest {
  PlacedProblem problem;
  std::string problem_name, suite;
  std::string candidate;                 // text
  std::vector<Patch> patches;            // that candidate and incumbent are made from, if they are
  std::optional<std::string> incumbent;  // compare with it, interleaved; already known to be correct
  // Already timed on this problem: execution identity (gates.h) -> candidate text. A search trial that would run the
  // same instructions is SAME by construction and not timed.
  std::map<std::string, std::string> timed;
  Phase phase = Phase::kSearch;
  std::uint64_t seed = 1;
  std::vector<Pattern> patterns = {Pattern::kNormal};
  bool time = true;  // false: stop after correctness
  Regime regime = Regime::kGraph;
  Condition condition = Condition::kBurst;
  int min_samples = 0;                // 0: by phase
  double max_seconds = 0;             // of timing; 0: by phase
  double max_reference_flops = 2e10;  // fp64 rows are sampled beyond this
  double margin = 0.03;               // of the comparison's verdict; the regression gate uses 0.02
  bool use_cache = true;
};
void to_json(nlohmann::json& json, const EvaluateRequest& request);
void from_json(const nlohmann::json& json, EvaluateRequest& request);

// Fills a Trial; never throws for a candidate's failure. DeviceFault passes through (the context is lost).
// `stage` is told the gate about to run, so that a watchdog can say where a hang was.
Trial evaluate(Device& device, const EvaluateRequest& request,
               const std::function<void(const std::string&)>& stage = {});

// A trial with everything that is known before the first gate: what a crashed candidate is recorded with.
Trial blank_trial(const DeviceInfo& device, const EvaluateRequest& request);

// The resource gate on its own: pure function of the facts.
Verdict judge_resources(const Artifact& artifact, const DeviceLimits& limits);

// max(FLOPs / measured ceiling, bytes that cannot stay in cache / measured bandwidth) + empty launch.
double floor_us(const Problem& problem, const DeviceInfo& device, const Ceilings& ceilings);

}  // namespace flashcore
