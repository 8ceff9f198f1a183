#include "lab/harness/contestant.h"

#include "core/hash.h"
#include "core/operands.h"

namespace flashcore {

std::string execution_identity(const Contestant& contestant, const PlacedProblem& problem, const DeviceLimits& limits) {
  Hasher hasher;
  hasher.add(contestant.artifact.code_hash);
  if (contestant.candidate.family->kind() == DeviceKind::kCpu) return hasher.hex();
  const Candidate& candidate = contestant.candidate;
  hasher.add(candidate.family->program(candidate.config, problem, limits, make_layouts(problem)).fingerprint());
  return hasher.hex();
}

}  // namespace flashcore
