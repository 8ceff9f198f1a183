#pragma once
// Trial: the one record. Everything the laboratory prints is a pure function of stored trials.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/operands.h"
#include "core/reference.h"
#include "device/artifact.h"
#include "device/device.h"
#include "lab/record/machine.h"
#include "lab/record/outcome.h"
#include "lab/record/trial_seconds.h"

namespace flashcore {

struct Verdict {
  Gate gate = Gate::kValid;
  GateStatus status = GateStatus::kSkipped;
  std::string reason;       // one sentence a stranger understands
  nlohmann::json evidence;  // the numbers behind it
};

// Order statistics of the samples of one candidate; times in microseconds of device time per launch.
struct Timing {
  double p10_us = 0, p50_us = 0, p90_us = 0;
  std::vector<Sample> samples;  // in the order taken
  int launches_per_sample = 0;
  Regime regime = Regime::kGraph;
  Condition condition = Condition::kBurst;
  double floor_us = 0;  // no honest time is below it
  double kcycles = 0;   // p50 time × clock; 0 where the clock is not known
};

// Interleaved comparison with another candidate in the same process.
struct Comparison {
  std::string against;  // candidate text of the other
  double speedup = 0;   // their time / our time: above 1 is faster
  double ci95_low = 0, ci95_high = 0;
  SpeedVerdict verdict = SpeedVerdict::kInconclusive;
  int blocks = 0;        // ABBA blocks behind it
  double margin = 0.03;  // what the verdict was judged against
  // That there is no difference, beside the interval, never the verdict: over the blocks of one process by Wilcoxon's
  // signed ranks, over several processes by what differs between them (hierarchical_bootstrap_median).
  double p_value = 1;
  double detectable = 0;  // the smallest change this run could have told from none: 0.012 means 1.2%
  int processes = 1;      // that the blocks are of
};

struct Trial {
  std::int64_t id = 0;     // given by the store
  std::string run;         // one tune/bench/check run
  std::string created_at;  // ISO 8601, UTC
  Phase phase = Phase::kSearch;
  std::string suite;
  std::string problem_name;  // in the suite
  PlacedProblem problem;
  DeviceInfo device;
  std::string family;
  std::string config;  // canonical text (ConfigSpace::print)
  ChosenBy chosen_by = ChosenBy::kCaller;
  std::string source_hash;  // of what decides this trial's time: lab/record/freshness.h
  std::string launch_hash;  // of its launches alone; empty: none, a CPU's, or an older flashcore did not say
  std::uint64_t seed = 0;
  std::optional<Artifact> artifact;
  std::vector<Verdict> gates;
  std::optional<OutputError> error;
  std::optional<ErrorBound> bound;
  std::optional<Timing> timing;
  std::optional<Comparison> comparison;
  EnvironmentReading environment;
  MachineReading machine;
  std::optional<TrialSeconds> seconds;  // none: an older flashcore did not say
  Ended ended = Ended::kNotYet;
  std::string message;  // why, when it did not pass

  std::string candidate() const { return config.empty() ? family : family + ":" + config; }
};

// Round trip of everything, non-finite numbers included (as "nan", "inf", "-inf"). from_json throws Error kBadInput
// naming the field that is missing or of the wrong type.
void to_json(nlohmann::json& json, const Trial& trial);
void from_json(const nlohmann::json& json, Trial& trial);
// The same from text, as a store holds it: Error kBadInput as parse_json() too.
Trial parse_trial(std::string_view text);
void to_json(nlohmann::json& json, const DeviceInfo& device);
void from_json(const nlohmann::json& json, DeviceInfo& device);
void to_json(nlohmann::json& json, const Verdict& verdict);
void from_json(const nlohmann::json& json, Verdict& verdict);
void to_json(nlohmann::json& json, const Timing& timing);
void from_json(const nlohmann::json& json, Timing& timing);
void to_json(nlohmann::json& json, const Comparison& comparison);
void from_json(const nlohmann::json& json, Comparison& comparison);

// "2025-01-31T12:00:00.123Z": what Trial::created_at holds.
std::string now_iso8601();
// Seconds since 1970 of such a text, whole ones; none where it is no time.
std::optional<double> parse_iso8601(const std::string& when);
// The verdict of one gate, or null if the trial never reached it.
const Verdict* find_gate(const Trial& trial, Gate gate);
// True if the gate was reached and passed.
bool passed_gate(const Trial& trial, Gate gate);
// How much of the correctness gate it passed; none if it did not, or was stored before gates had levels.
std::optional<GateLevel> gate_level(const Trial& trial);
// Correct, with a time and not wrong on purpose: the only trials that may be ranked.
bool is_ranked(const Trial& trial);

}  // namespace flashcore
