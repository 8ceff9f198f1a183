#pragma once
// tune: problem -> candidates -> gates -> finalists on held-out data -> leaderboard.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/suite.h"
#include "lab/record/store.h"
#include "lab/record/trial.h"

namespace flashcore {

struct TuneOptions {
  std::string device;  // as open_device
  Suite suite;
  std::optional<std::string> family;  // only this one
  // evolution | random | exhaustive; both: evolution and random in turn on one budget; none: the proposer alone
  std::string strategy = "evolution";
  std::optional<std::string> proposer;   // a shell command, beside the strategy (lab/tune/arms.h)
  std::string ledger;                    // folder of experiments' verdicts to consult; empty: none
  std::optional<double> budget_seconds;  // of the whole suite, shared evenly over its problems
  std::optional<int> budget_trials;      // per problem
  std::uint64_t seed = 1;
  int finalists = 5;
  Regime regime = Regime::kGraph;
  std::string worker_executable;  // as Worker; tests give their own
};

// Of the whole suite, when neither budget is given.
inline constexpr double kDefaultBudgetSeconds = 60;

// What happened, as it happens; the command line draws it.
struct TuneProgress {
  std::string problem;
  std::string stage;                           // "space" | "default" | "search" | "holdout" | "done"
  int done = 0, total = 0;                     // trials of this problem; total 0 if bounded by time
  std::uint64_t space_size = 0, feasible = 0;  // stage "space"
  std::vector<std::string> notes;              // stage "space": what is known already
  const Trial* trial = nullptr;                // the one just stored
  const Trial* best = nullptr;                 // incumbent so far
};

struct TuneResult {
  // What one strategy found for its share of the budget.
  struct Arm {
    std::string strategy;
    int trials = 0;
    std::string best;    // candidate, by discovery
    double best_us = 0;  // 0: none
    double heldout = 0, heldout_low = 0,
           heldout_high = 0;  // speed-up over the default on held-out data; 0: not measured
    std::string note;         // why it ended early
    int rejected = 0;         // answers of a proposer that were no proposals
    std::vector<std::pair<std::string, std::string>> rejections;  // the first of them, each with its reason
  };
  struct Entry {
    NamedProblem problem;
    std::optional<Trial> winner;  // held-out trial
    double shrinkage = 0;         // discovery p50 speed-up lost on held-out data (fraction)
    int proposed = 0, valid = 0, compiled = 0, correct = 0, raced = 0, won = 0;  // the funnel
    std::vector<std::string> inert_fields;  // fields whose values never changed the code hash
    std::vector<Arm> arms;
    int known = 0;                        // configs of earlier runs, not tried again
    std::map<std::string, int> rejected;  // of those, by how they ended
    std::string problem_note;             // why there is no winner
    int lacking = 0;                      // trials that the machine could not carry out
  };
  std::string run;
  std::vector<Entry> entries;
  bool interrupted = false;
};

// Order, per problem: the default config of each supporting family (the first correct one is the incumbent; ref_fwd is
// a baseline and searched only if it is alone), the search against the incumbent, then in another process and with
// another seed the `finalists` fastest against the default. The winner is the finalist with the best held-out speed-up
// among those whose interval lies above 1 with a Holm-adjusted p below 5%; without one, the default. Errors: kBadInput
// for an unknown family or strategy, and for a proposer that ends before its first proposal; kEnvironment if the device
// is not there or the store cannot be written.
//
// Resumes: candidates already tried for the same problem, device and source_hash are read from the store, counted and
// shown to the search, not run again. `stop` is polled; when true the run ends cleanly with what is done saved.
TuneResult tune(const TuneOptions& options, Store& store, const std::function<void(const TuneProgress&)>& progress,
                const std::function<bool()>& stop);

}  // namespace flashcore
