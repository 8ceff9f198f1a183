#pragma once
// What came of tune.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/suite.h"
#include "lab/record/trial.h"
#include "lab/tune/stop_loss.h"

namespace flashcore {

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
    bool failed = false;      // a proposer that made no proposal, and did not say that it is done
    int rejected = 0;         // answers of a proposer that were no proposals
    std::vector<std::pair<std::string, std::string>> rejections;  // the first of them, each with its reason
  };
  struct Entry {
    NamedProblem problem;
    std::optional<Trial> winner;   // held-out trial
    std::optional<Trial> closest;  // where the default stays: the finalist that came closest to winning
    double shrinkage = 0;          // discovery p50 speed-up lost on held-out data (fraction)
    int proposed = 0, valid = 0, compiled = 0, correct = 0, raced = 0, led = 0;  // the funnel
    std::vector<std::string> inert_fields;  // fields whose values never changed the code hash
    std::vector<Arm> arms;
    int known = 0;                     // configs of earlier runs, not tried again
    std::map<Ended, int> rejected;     // of those, by how they ended
    std::string problem_note;          // why there is no winner
    int lacking = 0;                   // trials that the machine could not carry out
    std::optional<ExpectedGain> gain;  // of another trial when the search ended, where a stop-loss was asked for
    bool stopped_at_loss = false;      // by it, and not by the budget
  };
  std::string run;
  std::vector<Entry> entries;
  bool interrupted = false;
};

}  // namespace flashcore
