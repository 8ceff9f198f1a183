#pragma once
// Where the sequences of a ragged batch lie that are packed one after another.

#include <cstdint>
#include <vector>

#include "core/problem.h"

namespace flashcore {

// Boundaries of the sequences of a problem in its packed tensors, batch + 1 each: sequence s has the rows
// q[s] .. q[s + 1] - 1 of q, o and lse, and the rows kv[s] .. kv[s + 1] - 1 of k and v.
struct Boundaries {
  std::vector<std::int64_t> q, kv;
};
Boundaries boundaries_of(const Problem& problem);
Boundaries boundaries_of(const std::vector<SequenceLengths>& sequences);

// Lengths that the same operands can hold: of each sequence no more than it has. Within four sequences of one set, or
// of several where the batch is smaller, one is shorter, one has a single row and a single key, one no keys, and one no
// rows (as far as it has any); the others are of any length. A kernel knows the bounds and nothing of the lengths.
std::vector<std::vector<SequenceLengths>> shorter_sequences(const Problem& problem);

// The sequence that a row of a packed tensor belongs to.
std::int64_t sequence_of_row(const std::vector<std::int64_t>& boundaries, std::int64_t row);

}  // namespace flashcore
