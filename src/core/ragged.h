#pragma once
// Ragged batches in host memory: where sequences lie that are packed one after another, and one of them by itself.

#include <cstdint>
#include <vector>

#include "core/data.h"
#include "core/problem.h"

namespace flashcore {

// Boundaries of the sequences of a problem in its packed tensors, batch + 1 each: sequence s has the rows
// q[s] .. q[s + 1] - 1 of q, o and lse, and the rows kv[s] .. kv[s + 1] - 1 of k and v.
struct Boundaries {
  std::vector<std::int64_t> q, kv;
};
Boundaries boundaries_of(const Problem& problem);

// The sequence that a row of a packed tensor belongs to.
std::int64_t sequence_of_row(const std::vector<std::int64_t>& boundaries, std::int64_t row);

// The operands of one sequence: those of Problem::of_sequence.
AttentionInputs inputs_of_sequence(const Problem& problem, const AttentionInputs& inputs, const Boundaries& boundaries,
                                   std::int64_t sequence);

}  // namespace flashcore
