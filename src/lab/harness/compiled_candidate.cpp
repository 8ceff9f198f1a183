#include "lab/harness/compiled_candidate.h"

#include "core/hash.h"
#include "core/operands.h"

namespace flashcore {

CompiledCandidate compiled_candidate(const Candidate& candidate, const Problem& problem, const DeviceLimits& limits,
                                     bool use_cache) {
  return {candidate, compile_candidate(candidate, problem, limits, use_cache)};
}

std::string execution_identity(const CompiledCandidate& compiled, const PlacedProblem& problem,
                               const DeviceLimits& limits) {
  Hasher hasher;
  hasher.add(compiled.artifact.code_hash);
  if (compiled.candidate.family->kind() == DeviceKind::kCpu) return hasher.hex();
  const Candidate& candidate = compiled.candidate;
  hasher.add(candidate.family->program(candidate.config, problem, limits, make_layouts(problem)).fingerprint());
  return hasher.hex();
}

}  // namespace flashcore
