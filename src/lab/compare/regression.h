#pragma once
// The regression gate: is what dispatch picks now (or a pinned candidate) slower than a baseline says it was?
//
// Where the baseline's candidate still compiles to the code that was recorded, it is raced against the present one,
// interleaved. Where its code has changed, the old code is not here any more and only its recorded time is: such a
// verdict compares two sessions, says so, and is given only where the whole interval is beyond the margin.

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/suite.h"
#include "lab/compare/ab.h"
#include "lab/record/leaderboard.h"
#include "lab/record/machine.h"

namespace flashcore {

struct BaselineEntry {
  NamedProblem problem;
  std::string device_key;
  std::string candidate;    // text
  std::string code_hash;    // empty: not recorded, taken as changed
  std::string launch_hash;  // empty: not recorded, taken as unchanged
  Regime regime = Regime::kGraph;
  Condition condition = Condition::kBurst;
  double p50_us = 0;
  double kcycles = 0;                   // 0: the clock was not known
  std::vector<double> process_p50_us;   // of each fresh process; empty where only one was recorded
  std::vector<MachineReading> machine;  // of each fresh process, how busy the machine was; empty: not recorded
};

// A flashcore.gate-baseline/1 file (record_baseline) or flashcore.bench/1 results; entries without a time are left out.
// Error kBadInput if the file is neither, or holds no entry with a time.
std::vector<BaselineEntry> load_baseline(const std::filesystem::path& file);
std::vector<BaselineEntry> parse_baseline(std::string_view text, const std::string& origin);
// The first of every row.
std::vector<BaselineEntry> baseline_of(const std::vector<LeaderboardRow>& rows);
nlohmann::json baseline_json(const std::vector<BaselineEntry>& entries);

// Regime and condition are those of each entry; record_baseline takes them from here. max_seconds: per problem.
struct GateOptions : MeasurementSpec {
  GateOptions() {
    margin = 0.02;
    max_seconds = 9;
  }

  std::string device;                    // as open_device
  std::optional<std::string> candidate;  // pinned; none: what dispatch picks
  int processes = 3;
  // Why times in a regime and condition are not to be judged here; empty: judge. See Calibration.
  std::function<std::string(const std::string& device_key, Regime, Condition)> refusal = {};
  std::string worker_executable;
};

struct GateRow {
  BaselineEntry baseline;
  std::string candidate;  // what was judged; empty if there is none
  SpeedVerdict verdict = SpeedVerdict::kNotJudged;
  std::string sentence;
  bool interleaved = false;                         // else against a recorded time
  bool same_code = false;                           // as the baseline's: nothing was timed, and 1 is the speedup
  double speedup = 0, ci95_low = 0, ci95_high = 0;  // 0: none
  std::vector<std::string> inert_fields;
  std::vector<MachineReading> machine;  // of each process of its races, how busy the machine was
  bool lacking = false;                 // the machine could not carry it out
  bool failed() const { return verdict == SpeedVerdict::kSlower || verdict == SpeedVerdict::kWrong; }
  bool passed() const { return verdict == SpeedVerdict::kFaster || verdict == SpeedVerdict::kSame; }
};

// One row per entry, or fewer when `stop` said so. Errors as Worker.
std::vector<GateRow> gate(const std::vector<BaselineEntry>& entries, const GateOptions& options,
                          const std::function<void(const GateRow&)>& progress = {},
                          const std::function<bool()>& stop = {});

// What record_baseline made of a problem.
//   kUnsupported  no family runs it, the pinned one does not, or its queries have no rows
//   kFailed       its candidate did not pass its gates, crashed or hung: a baseline of what is wrong judges nothing
//   kUnjudged     the measurement ended in an error
//   kLacking      the machine could not carry it out
enum class Recording { kRecorded, kUnsupported, kFailed, kUnjudged, kLacking };
struct RecordedProblem {
  NamedProblem problem;
  Recording ended = Recording::kRecorded;
  std::string why;                     // it was not recorded, in a sentence
  std::optional<BaselineEntry> entry;  // it was
};

// What dispatch picks (or the pinned candidate) for each problem, timed in `processes` fresh processes against itself.
// One row per problem, or fewer when `stop` said so; `progress` hears of each. Errors as Worker for the device alone.
std::vector<RecordedProblem> record_baseline(const std::vector<NamedProblem>& problems, const GateOptions& options,
                                             const std::function<void(const RecordedProblem&)>& progress = {},
                                             const std::function<bool()>& stop = {});
std::vector<BaselineEntry> entries_of(const std::vector<RecordedProblem>& rows);

// The verdict of medians of fresh processes against a recorded time; pure. `in_cycles` says what both are in.
// The interval is one for the next session's median (Student's t, sqrt(1 + 1/n)), and FASTER and SLOWER need all of it
// beyond the whole margin: nothing interleaved holds the clocks still here.
GateRow judge_recorded(const BaselineEntry& entry, const std::vector<double>& now, double recorded, bool in_cycles,
                       double margin);

nlohmann::json gate_json(const std::vector<GateRow>& rows, const GateOptions& options);
// JUnit XML: SLOWER and WRONG are failures, what could not be judged is an error, never "skipped".
std::string gate_junit(const std::vector<GateRow>& rows);
// 1 if a row failed, else 4 if the machine lacked something, else 2 if one was not judged or there is none, else 0.
int gate_exit_code(const std::vector<GateRow>& rows);
// The same of a baseline. What is unsupported was skipped: it counts only where nothing else is there.
int baseline_exit_code(const std::vector<RecordedProblem>& rows);

}  // namespace flashcore
