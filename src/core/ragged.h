#pragma once
// Ragged batches in host memory, those with a paged cache too: one sequence by itself.

#include <cstdint>

#include "core/boundaries.h"
#include "core/data.h"

namespace flashcore {

// The operands of one sequence: those of Problem::of_sequence.
AttentionInputs inputs_of_sequence(const Problem& problem, const AttentionInputs& inputs, const Boundaries& boundaries,
                                   std::int64_t sequence);

}  // namespace flashcore
