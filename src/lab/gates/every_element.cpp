#include "lab/gates/every_element.h"

#include <cstdint>
#include <vector>

#include "lab/gates/calls.h"
#include "lab/harness/compared_outputs.h"

namespace flashcore {

// The bound is that of the sample, and another row may honestly have a larger one: with softcap and large scores most
// rows have no error to speak of, and one of which the largest score is a small one has a hundred times that.
EveryElement compare_every_element(const PlacedProblem& problem, const Oracle& oracle, const AttentionOutputs& ours,
                                   const AttentionOutputs& theirs) {
  ComparedOutputs compared(problem, ours, theirs);
  EveryElement every;
  every.bound.rel = 2 * oracle.bound.rel;
  every.bound.worst_row_rel = 2 * oracle.bound.worst_row_rel;
  every.bound.lse_max_abs = 2 * oracle.bound.lse_max_abs;
  const std::vector<std::int64_t> beyond = compared.rows_beyond(every.bound);
  every.rows_beyond = beyond.size();
  if (beyond.size() <= kMostRowsAgain) {
    for (const std::int64_t place : beyond) {
      const RowSample row{{compared.row_at(place)}, false};
      const Reference reference = reference_forward(problem, oracle.inputs, row);
      if (!within_norms(compare_sample(problem, reference, row, ours), error_bound(problem, reference))) continue;
      compared.leave_out(place);
      ++every.rows_judged_again;
    }
  }
  every.error = compared.error();
  return every;
}

}  // namespace flashcore
