#pragma once
// Largest magnitudes that a launch wrote (Problem::amax), against its own o and the reference's scores.

#include <optional>
#include <string>

#include "lab/harness/oracle.h"

namespace flashcore {

// What is wrong with them, in words. That of o has to round to the largest of what is stored. That of scores has to be
// the largest of the reference's rows, give or take what rounding allows; where those are a sample, no less than it.
// Of a head with rows that are not finite that of scores may be any number.
std::optional<std::string> find_wrong_amax(const PlacedProblem& problem, const Reference& reference,
                                           const RowSample& rows, const AttentionOutputs& outputs);

}  // namespace flashcore
