#include "core/boundaries.h"

#include <algorithm>

#include "core/error.h"

namespace flashcore {

Boundaries boundaries_of(const Problem& problem) {
  Boundaries all{{0}, {0}};
  for (const SequenceLengths& each : problem.sequences()) {
    all.q.push_back(all.q.back() + each.q);
    all.kv.push_back(all.kv.back() + each.kv);
  }
  return all;
}

std::int64_t sequence_of_row(const std::vector<std::int64_t>& boundaries, std::int64_t row) {
  FC_CHECK(row >= 0 && row < boundaries.back());
  // Of several boundaries at one row all but the last are those of empty sequences.
  return std::upper_bound(boundaries.begin(), boundaries.end(), row) - boundaries.begin() - 1;
}

}  // namespace flashcore
