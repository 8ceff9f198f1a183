#pragma once
// A finalist on held-out data: raced against the baseline in several fresh processes, on inputs and buffers that the
// search never saw.

#include <functional>
#include <string>
#include <vector>

#include "lab/gates/request.h"
#include "lab/process/worker.h"
#include "lab/tune/facts.h"

namespace flashcore {

struct HoldoutRequest {
  EvaluateRequest
      base;  // problem, seed, patterns, regime, max_seconds (of each process); candidate and incumbent unset
  std::string baseline;
  std::vector<std::string> finalists;
  int processes = kFewestProcesses;         // that every finalist is raced in
  int winner_processes = kWinnerProcesses;  // and who may win after those (may_win)
};

// The trials, the baseline's first, then the finalists' in order, each with phase kHoldout and, for finalists, the
// comparison over all of its processes. Processes are the outer loop; who may not win any more after `processes` of
// them is left out of the others. `first` is the first process, the others are started as
// `device` and ended again. `done` is told after each race.
std::vector<Trial> measure_holdout(const HoldoutRequest& request, Worker& first, const std::string& device,
                                   const std::string& worker_executable, const std::function<void(const Trial&)>& done,
                                   const std::function<bool()>& stop);

// A process's races have one seed, so their baseline meets the same inputs in each, and passes its gates once.
class BaselineGates {
 public:
  bool needed(int restarts) const { return passed_after_ != restarts; }
  // A failure may have ended the process.
  void note(PairEnded ended, int restarts) { passed_after_ = ended == PairEnded::kMeasured ? restarts : -1; }

 private:
  int passed_after_ = -1;  // so many restarts of the worker
};

// One trial of the outcomes of several processes; a pure function.
Trial heldout_trial(const EvaluateRequest& request, const std::vector<PairOutcome>& outcomes);

}  // namespace flashcore
