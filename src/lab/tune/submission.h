#pragma once
// One answer of a proposer judged by itself: source, compiler, resource gate, emulator, correctness, performance. What
// `flashcore submit` and the tool of that name (docs/agents.md) tell.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/suite.h"
#include "lab/tune/emulator_stage.h"
#include "lab/tune/preflight.h"

namespace flashcore {

struct SubmissionOptions : MeasurementSpec {
  std::string device;  // as open_device
  NamedProblem problem;
  bool compile_only = false;  // source, compiler and resource gate; no device
  std::string arch;           // of compile_only
};

struct Submission {
  std::string answer;              // the line, its beginning
  std::string candidate;           // with its whole config, if it is valid; empty if the answer could not be read
  std::vector<std::string> notes;  // what the patch changes outside of its family, what was not judged and why
  std::vector<Verdict> gates;      // in order
  std::optional<bool> is_unpatched_code;  // as of Preflight
  std::optional<Trial> trial;             // of the device, or of what stopped it before
  Ended ended = Ended::kNotYet;           // kPassed: every gate that could judge it
  bool is_of_other_device = false;        // a kernel of GPUs, and the device is none: nothing was judged
  std::string message;
};

// The gate that stopped it, or null.
const Verdict* stopping_verdict(const Submission& submission);

class SubmissionJudge {
 public:
  // Error kBadInput or kEnvironment if there is no such device, or if FLASHCORE_SOURCE or FLASHCORE_SANDBOX is wrong.
  SubmissionJudge(SubmissionOptions options, std::function<bool()> stop);
  // Never throws for what is wrong with the answer. Throws Cancelled when told to stop.
  Submission judge(const std::string& line);
  const DeviceInfo& device() const { return device_; }

 private:
  void judge_candidate(const std::string& candidate, const std::optional<Patch>& patch, Submission& submission);

  SubmissionOptions options_;
  std::function<bool()> stop_;
  DeviceInfo device_;
  std::unique_ptr<Worker> worker_;
  EmulatorStage emulator_;
};

}  // namespace flashcore
