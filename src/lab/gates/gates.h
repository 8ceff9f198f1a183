#pragma once
// The gates that judge what was compiled, one by one; evaluate.h puts them in order.

#include "lab/gates/request.h"
#include "lab/harness/compiled_candidate.h"
#include "lab/harness/oracle.h"
#include "lab/record/trial.h"

namespace flashcore {

// Of fp64 rows when timed outputs are judged after the fact: they were judged in full, or by a larger sample, before.
inline constexpr double kTimedReferenceFlops = 5e8;

// The resource gate on its own: pure function of the facts.
Verdict judge_resources(const Artifact& artifact, const DeviceLimits& limits);

// Per pattern: poisoned outputs, one launch, red zones, inputs, gaps between rows, unwritten elements, the error
// against the fp64 reference (and, where rows were sampled on a GPU, every element against ref_fwd), then the launch
// once more, which must give the same bits. Fills trial.error and trial.bound with the pattern closest to its bound.
Verdict judge_correctness(Device& device, OracleCache& oracles, const EvaluateRequest& request,
                          const CompiledCandidate& compiled, Trial& trial);

// Times the candidate, alone or raced against `incumbent`; fills trial.timing, comparison and environment, and on
// anything but a pass trial.ended. Inputs are fresh and outputs poisoned before, and the timed outputs are judged
// after.
Verdict judge_performance(Device& device, OracleCache& oracles, const EvaluateRequest& request,
                          const CompiledCandidate& compiled, const CompiledCandidate* incumbent, Trial& trial);

}  // namespace flashcore
