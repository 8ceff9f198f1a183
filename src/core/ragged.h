#pragma once
// Ragged batches in host memory, those with a paged cache too: one sequence by itself.

#include <cstdint>

#include "core/boundaries.h"
#include "core/data.h"

namespace flashcore {

// The operands of one sequence: those of Problem::of_sequence.
AttentionInputs inputs_of_sequence(const Problem& problem, const AttentionInputs& inputs, const Boundaries& boundaries,
                                   std::int64_t sequence);

// Moves rows of a packed tensor to the front: those from `from`[s] on become those from `to`[s] on, as many as
// sequence s has by `to` (batch + 1 boundaries each; none moves back). What is left behind them stays.
void pack_rows(HostTensor& packed, const std::vector<std::int64_t>& from, const std::vector<std::int64_t>& to);

}  // namespace flashcore
