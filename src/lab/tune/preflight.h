#pragma once
// What is asked of a proposed kernel before a device runs it: does it compile, does it pass the resource gate, and is
// it right on the emulator.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/tune/emulator_stage.h"

namespace flashcore {

struct Preflight {
  std::vector<Verdict> gates;  // in order; the last is what stopped it, if anything did
  Ended ended = Ended::kNotYet;
  std::string message;
  std::string candidate;  // with its whole config; empty if it is not valid
  // Whether the compiler makes the same machine code of the kernel without its patch; none if that was not asked, or
  // could not be told (no NVRTC, a config that the patch alone allows).
  std::optional<bool> is_unpatched_code;
  TrialSeconds seconds;  // that it took, all of the host
  bool stopped() const { return ended != Ended::kNotYet; }
};

// The gates kValid, kCompile and kResource for `limits`, by NVRTC in a process of its own: no GPU. kCompile is skipped,
// and kResource not reached, where there is no NVRTC. The patches of the request are in the registry.
// `compare_unpatched`: compiles the kernel without its patch as well.
Preflight compile_only(const EvaluateRequest& request, const DeviceLimits& limits, const std::function<bool()>& stop,
                       bool compare_unpatched = false);

// Asks the emulator next, of what the compiler has not stopped.
void judge_on_emulator(Preflight& preflight, EmulatorStage& emulator, const EvaluateRequest& request,
                       const DeviceLimits& limits);

// In place of the gates on an emulated device: where it would not run what the patch changes, the candidate is stopped
// as not judged (kInconclusive). What was right there is the kernel without the change.
void stop_unless_emulated(Preflight& preflight, const Patch& patch);

// The trial of a candidate that `preflight` stopped.
Trial stopped_trial(const DeviceInfo& device, const EvaluateRequest& request, const Preflight& preflight);
// The verdict of the emulator, before that of the device's correctness.
void note_emulator_verdict(Trial& trial, const Verdict& verdict);

}  // namespace flashcore
