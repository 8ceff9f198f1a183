#pragma once
// Who proposes what a tune run tries next: search strategies over the feasible configs, or somebody else's program.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/child_process.h"
#include "lab/record/trial.h"
#include "lab/tune/proposal.h"
#include "lab/tune/search.h"

namespace flashcore {

struct Rejection {
  std::string answer;  // its beginning
  std::string reason;
};

class Arm {
 public:
  virtual ~Arm() = default;
  virtual std::string name() const = 0;  // "evolution", "random", "exhaustive", "proposer"
  // None once there is nothing left to propose; why_ended() then says why, if it is not that all was tried.
  virtual std::optional<Proposal> propose() = 0;
  // Everybody's trials of before the search, and the arm's own during it: arms that run beside each other on one budget
  // are compared, so they learn nothing from each other.
  virtual void observe(const Trial& trial) = 0;
  virtual std::string why_ended() const { return ""; }
  // A proposer that ended before its first proposal: nobody meant to run that.
  virtual bool died_at_once() const { return false; }
  // That, or one that ended otherwise (silence, a flood, nonsense) and made no proposal.
  virtual bool failed() const { return false; }
  // False for a proposer of whom nobody knows yet whether it works.
  virtual bool was_asked() const { return true; }
  // Answers that were no proposals since the last call: told to their giver, and kept by the tuner.
  virtual std::vector<Rejection> take_rejections() { return {}; }
};

// One search per family, in turn.
std::unique_ptr<Arm> make_search_arm(const std::string& strategy, const std::vector<const Family*>& families,
                                     const Problem& problem, const DeviceLimits& limits, std::uint64_t seed);

struct ProposerCommand {
  std::string shell;   // for /bin/sh
  std::string writes;  // confined (lab/process/confined.h): the folder that it may write; empty: not confined
};

// A program run by /bin/sh, spoken to in lines of JSON: docs/tuning.md has the protocol. It proposes configs, or
// kernels as patches (lab/harness/patch.h); what it proposes goes through the same gates as everything else, and it is
// told how each ended. `notes`: what the ledger has to say. `seconds_left`: of the budget, none without one. An answer
// that comes later is of no use to the run: it is waited for that long and a moment more, and 120 s at most.
std::unique_ptr<Arm> make_proposer_arm(const ProposerCommand& command, const std::vector<const Family*>& families,
                                       const Problem& problem, const DeviceInfo& device,
                                       const std::vector<std::string>& notes, std::function<bool()> stop,
                                       std::function<std::optional<double>()> seconds_left);

// What a proposer is told of a trial.
nlohmann::json trial_summary(const Trial& trial);

}  // namespace flashcore
