#pragma once
// The two gates that run a candidate. evaluate.h puts them in order; the resource gate needs no device.

#include "kernels/family.h"
#include "lab/gates/evaluate.h"
#include "lab/harness/oracle.h"

namespace flashcore {

// A candidate compiled and ready for its problem.
struct Contestant {
  Candidate candidate;
  Artifact artifact;
};

// Equal for two contestants if and only if the device would execute the same instructions with the same launch geometry
// and scalar parameters: such a pair is SAME by construction, and there is nothing to time.
std::string execution_identity(const Contestant& contestant, const PlacedProblem& problem, const DeviceLimits& limits);

// Per pattern: poisoned outputs, one launch, red zones, inputs, gaps between rows, unwritten elements, the error
// against the fp64 reference (and, where rows were sampled on a GPU, every element against ref_fwd), then the launch
// once more, which must give the same bits. Fills trial.error and trial.bound with the pattern closest to its bound.
Verdict judge_correctness(Device& device, OracleCache& oracles, const EvaluateRequest& request,
                          const Contestant& contestant, Trial& trial);

// Times the candidate, alone or raced against `incumbent`; fills trial.timing, comparison and environment, and on
// anything but a pass trial.ended. Inputs are fresh and outputs poisoned before, and the timed outputs are judged
// after.
Verdict judge_performance(Device& device, OracleCache& oracles, const EvaluateRequest& request,
                          const Contestant& contestant, const Contestant* incumbent, Trial& trial);

}  // namespace flashcore
