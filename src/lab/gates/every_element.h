#pragma once
// Where fp64 covers a sample of rows: every element against what another implementation made of the same inputs.

#include <cstddef>

#include "lab/harness/oracle.h"

namespace flashcore {

struct EveryElement {
  OutputError error;
  ErrorBound bound;                   // twice the sample's: both may be off by it
  std::size_t rows_beyond = 0;        // it, each by itself
  std::size_t rows_judged_again = 0;  // of those, found right by fp64 references of their own, and not in `error`
};
// Of more rows than this that are beyond the bound none is judged again.
inline constexpr std::size_t kMostRowsAgain = 64;
EveryElement compare_every_element(const PlacedProblem& problem, const Oracle& oracle, const AttentionOutputs& ours,
                                   const AttentionOutputs& theirs);

}  // namespace flashcore
