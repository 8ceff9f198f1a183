#pragma once
// Does the measurement tell the truth here? The same candidate against itself, many times over, must hardly ever
// differ; against itself with a planted slowdown of known size it must.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/suite.h"
#include "lab/measure/spec.h"
#include "lab/statistics/bootstrap.h"

namespace flashcore {

struct AaOptions : MeasurementSpec {  // max_seconds: of each repeat
  AaOptions() { max_seconds = 0.5; }

  std::string device;  // as open_device
  NamedProblem problem;
  std::string candidate;  // text
  int repeats = 100;
  int planted_permille = 0;  // 30: the one side does 3% more work
  double alpha = 0.05;       // of the 95% interval: kAaAlpha
  int per_process = 50;      // repeats in one worker process before the next
  double gap_ms = 1;         // idle before each sample: repeats by the hundred cannot each wait as long as `ab` does
  std::string worker_executable;
};

struct AaResult {
  std::string device_key;
  int repeats = 0;  // done
  int alarms = 0;   // intervals that exclude 1: of A against A, `alpha` of them should
  int faster = 0, slower = 0, same = 0, inconclusive = 0;  // verdicts at the margin
  int launches_per_sample = 0;
  double planted = 0;               // share of extra work that the timed samples really held
  double seconds = 0;               // all of it
  std::vector<double> effects;      // speed-up of each repeat
  std::vector<double> lows, highs;  // and its 95% interval; none in files of before these were kept
  std::string failure;              // why it ended early; empty if it did not
  // The median over the repeats of how much longer the side with the planted work took: 0.03 is 3%.
  double measured() const;
  // Why the planted work cannot be said to be what was measured, in words; empty if it can. `wanted`: the share that
  // was asked for.
  std::string why_not_planted(double wanted) const;
  double alarm_rate() const { return repeats > 0 ? static_cast<double>(alarms) / repeats : 1; }
};

// Same code on both sides on purpose. `stop` is polled. Errors as Worker.
AaResult repeat_aa(const AaOptions& options, const std::function<void(int done, int total)>& progress = {},
                   const std::function<bool()>& stop = {});
nlohmann::json aa_json(const AaOptions& options, const AaResult& result);

// Fewer races say too little. With 5% false alarms a calibration of 100 finds more than ten in 1.1% of the cases, with
// 20% ten or fewer in 0.6%. A single race then finds none in 80%.
inline constexpr int kLeastRaces = 100;          // of a calibration, and of a self-test's parts with planted work
inline constexpr int kLeastSelfTestRaces = 200;  // of its A against A

// The parts of `flashcore ab --self-test`, in their order.
struct AaPart {
  const char* name;
  int planted_permille;
  int least_races;
};
inline constexpr AaPart kAaParts[] = {{"A against A", 0, kLeastSelfTestRaces},
                                      {"3% of extra work planted", 30, kLeastRaces},
                                      {"0.5% of extra work planted", 5, kLeastRaces}};
inline constexpr double kAaAlpha = 0.05;                                      // of the 95% intervals of its races
inline constexpr const char* kAaSelfTestSchema = "flashcore.ab-self-test/1";  // of `flashcore ab --self-test --json`

// The rule by which a part of `ab --self-test` passes. Of `options` it reads repeats, planted_permille, alpha, margin.
struct AaJudgement {
  bool judged = false;  // false: it broke off, or had fewer than `least_races`
  bool passed = false;
  std::string sentence;
};
// Counts one race: its interval and verdict.
void count_race(const Interval& speedup, double margin, AaResult& result);
AaJudgement judge_aa(const AaOptions& options, const AaResult& result, int least_races);

}  // namespace flashcore
