#pragma once
// The gates of one candidate, in order: valid -> compile -> resource -> correctness -> performance. Runs in the calling
// process; lab/process/worker.h runs it in another, which a crash or a hang may end.

#include <functional>

#include "device/device.h"
#include "lab/gates/request.h"
#include "lab/record/trial.h"

namespace flashcore {

// Fills a Trial; never throws for a candidate's failure. DeviceFault passes through (the context is lost).
// `stage` is told the gate about to run, so that a watchdog can say where a hang was.
Trial evaluate(Device& device, const EvaluateRequest& request, const std::function<void(Gate)>& stage = {});

// A trial with everything that is known before the first gate: what a crashed candidate is recorded with.
Trial blank_trial(const DeviceInfo& device, const EvaluateRequest& request);

}  // namespace flashcore
