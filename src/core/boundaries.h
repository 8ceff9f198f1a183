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

// The sequence that a row of a packed tensor belongs to.
std::int64_t sequence_of_row(const std::vector<std::int64_t>& boundaries, std::int64_t row);

}  // namespace flashcore
