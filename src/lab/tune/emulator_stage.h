#pragma once
// A patched kernel on the emulator before a GPU runs it: races, bad addresses, deadlocks, wrong and kept results show
// there, and cost no second of the GPU. The problem is a small one of the same kind.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lab/process/worker.h"

namespace flashcore {

// A problem of the same kind that an emulated GPU computes in seconds: the dtype, head dims, masks and the group of
// query heads stay, and so do lengths modulo 64. Batch, heads, lengths and windows shrink.
PlacedProblem emulated_problem(const PlacedProblem& problem);

class EmulatorStage {
 public:
  static constexpr double kSeconds = 180;  // that one candidate may take at most
  // That it may take of what its unpatched kernel takes, which is run first, and beside that: who waits for something
  // that does not come looks like one of much work.
  static constexpr double kTimesUnpatched = 20, kSecondsBeside = 10;
  // `executable` as Worker's.
  explicit EmulatorStage(std::string executable = {}, double seconds = kSeconds);

  // The gate kEmulator of a candidate that is made from one of `request.patches`: kPassed; kFailed with the gate
  // and the check that tripped as evidence; kSkipped with the reason where the emulator cannot judge it. `ended` is set
  // where it failed. Throws Cancelled when told to stop.
  Verdict judge(const EvaluateRequest& request, const DeviceLimits& limits, Ended& ended);
  void cancel_when(std::function<bool()> cancelled) { cancelled_ = std::move(cancelled); }

 private:
  std::string why_not_started(int arch);
  double seconds_for(const EvaluateRequest& small, const Patch& patch);

  std::string executable_;
  double seconds_;
  std::function<bool()> cancelled_;
  std::unique_ptr<Worker> worker_;
  int arch_ = 0;                                     // that it emulates
  std::map<std::string, double> unpatched_seconds_;  // by problem and candidate
};

}  // namespace flashcore
