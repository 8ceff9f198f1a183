#pragma once
// ab: one candidate against another on one problem, judged. Fresh worker processes race them in interleaved blocks; the
// verdict is of all blocks together, by a hierarchical bootstrap (process, then block).

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/suite.h"
#include "lab/gates/pair.h"
#include "lab/measure/race.h"

namespace flashcore {

// Of the margin, in each process: together they then come to less than the quarter that verdict_of asks for.
inline constexpr double kTargetHalfWidth = 0.2;

struct AbOptions : MeasurementSpec {  // max_seconds: in all processes together
  AbOptions() { max_seconds = 9; }

  std::string device;  // as open_device
  std::string suite;   // where the problem comes from, for the record
  NamedProblem problem;
  std::string baseline, candidate;  // A and B, text
  int processes = 3;                // fewer than three are not for publishing
  bool same_code = false;           // race them even where they are the same code: A against A
  // Why times are not to be judged here (Calibration::why_not_trusted): then only what needs none is. Empty: judge.
  std::string refusal;
  std::string worker_executable;  // as Worker; tests give their own
};

struct AbResult {
  // Of the candidate against the baseline; kNotJudged: a side failed its gates, or the measurement broke.
  SpeedVerdict verdict = SpeedVerdict::kNotJudged;
  std::string sentence;  // one, for a person: who, against whom, effect, interval, what could have been detected
  PairEnded ended = PairEnded::kError;
  bool same_code = false;
  // Fields in which two configs of one machine code differ: a bug of the family. Empty where the configs are the same.
  std::vector<std::string> inert_fields;
  Comparison comparison;       // of all processes; `against` is the baseline
  double between_process = 0;  // standard deviation of a process's effect beyond its own noise (0.01: 1%)
  double wilcoxon_p = 1;       // of all blocks, as if of one process
  double tost_p = 1;           // "the effect is not inside the margin", by signed ranks
  double mann_whitney_p = 1, cliffs_delta = 0;  // of the raw samples; descriptive, never the verdict
  int throttled = 0, samples = 0;
  std::vector<PairOutcome> processes;  // raw samples included
};

// Progress: told once per process. `stop` is polled; Cancelled passes through. Errors as Worker.
AbResult ab(const AbOptions& options, const std::function<void(int done, int total)>& progress = {},
            const std::function<bool()>& stop = {});

// What several processes' outcomes come to; a pure function, so that a stored run can be judged again.
AbResult judge_ab(const AbOptions& options, std::vector<PairOutcome> processes);

// {"verdict", "sentence", "candidate", "baseline", "speedup", "ci95", ..., "processes": [{"log_ratios", "samples"}]}.
nlohmann::json ab_json(const AbOptions& options, const AbResult& result);

// The process's exit code by docs/exit-codes.md: 0 FASTER or SAME, 1 SLOWER, a candidate that failed its gates, or an
// inert parameter, 2 anything that could not be judged.
int ab_exit_code(const AbResult& result);

}  // namespace flashcore
