#include "lab/compare/noise.h"

#include "lab/gates/gates.h"
#include "lab/measure/engine.h"

namespace flashcore {

Noise measure_noise(Device& device, const PlacedProblem& problem, const Candidate& candidate) {
  const CompiledCandidate compiled = compiled_candidate(candidate, problem, device.info().limits);
  MeasureOptions options;
  options.min_blocks = options.max_blocks = 30;
  const auto oracle = shared_oracles().get(problem, Pattern::kNormal, timing_seed(options.seed), kTimedReferenceFlops);
  const Measurement measured = measure(device, problem, *oracle, compiled, &compiled, options);
  const Comparison& c = measured.race.comparison;
  return {.ratio = {c.speedup, c.ci95_low, c.ci95_high},
          .blocks = c.blocks,
          .problem = problem.id(),
          .candidate = candidate.print(),
          .wrong = measured.candidate_wrong.empty() ? measured.baseline_wrong : measured.candidate_wrong};
}

}  // namespace flashcore
