#pragma once
// A candidate compiled and ready for its problem: what is checked, timed and raced.

#include <string>

#include "kernels/family.h"

namespace flashcore {

struct CompiledCandidate {
  Candidate candidate;
  Artifact artifact;
};

// Error CompileError as compile_candidate.
CompiledCandidate compiled_candidate(const Candidate& candidate, const Problem& problem, const DeviceLimits& limits,
                                     bool use_cache = true);

// Equal for two candidates if and only if the device would execute the same instructions with the same launch geometry
// and scalar parameters: such a pair is SAME by construction, and there is nothing to time.
std::string execution_identity(const CompiledCandidate& compiled, const PlacedProblem& problem,
                               const DeviceLimits& limits);

}  // namespace flashcore
