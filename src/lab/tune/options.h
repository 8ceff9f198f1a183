#pragma once
// What is asked of tune, and what it tells while it runs.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/suite.h"
#include "lab/measure/spec.h"
#include "lab/record/trial.h"
#include "lab/tune/stop_loss.h"

namespace flashcore {

struct TuneOptions : MeasurementSpec {  // how long one trial is timed follows from the budget
  std::string device;                   // as open_device
  Suite suite;
  std::optional<std::string> family;  // only this one
  // evolution | random | exhaustive; both: evolution and random in turn on one budget; none: the proposer alone
  std::string strategy = "evolution";
  std::optional<std::string> proposer;   // a shell command, beside the strategy (lab/tune/arms.h)
  bool confine_proposer = false;         // no network, writes in one folder, limits
  std::string ledger;                    // folder of experiments' verdicts to consult; empty: none
  std::optional<double> budget_seconds;  // of the whole suite, shared evenly over its problems
  std::optional<int> budget_trials;      // per problem
  std::optional<StopLoss> stop_loss;     // ends a problem's search before its budget does
  int finalists = 5;
  std::string worker_executable;  // as Worker; tests give their own
};

// Of the whole suite, when neither budget is given.
inline constexpr double kDefaultBudgetSeconds = 60;

// What happened, as it happens; the command line draws it.
struct TuneProgress {
  std::string problem;
  std::string stage;                           // "space" | "default" | "trying" | "search" | "holdout" | "done"
  int done = 0, total = 0;                     // trials of this problem; total 0 if bounded by time
  std::uint64_t space_size = 0, feasible = 0;  // stage "space"
  std::vector<std::string> notes;              // stage "space": what is known already
  std::string trying;                          // stage "trying": the patched candidate that is about to be judged
  double most_seconds = 0;                     // stage "trying": after which it counts as a hang
  const Trial* trial = nullptr;                // the one just stored
  const Trial* best = nullptr;                 // incumbent so far
};

}  // namespace flashcore
