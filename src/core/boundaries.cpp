#include "core/boundaries.h"

#include <algorithm>

#include "core/error.h"
#include "core/random.h"

namespace flashcore {

Boundaries boundaries_of(const Problem& problem) { return boundaries_of(problem.sequences()); }

Boundaries boundaries_of(const std::vector<SequenceLengths>& sequences) {
  Boundaries all{{0}, {0}};
  for (const SequenceLengths& each : sequences) {
    all.q.push_back(all.q.back() + each.q);
    all.kv.push_back(all.kv.back() + each.kv);
  }
  return all;
}

namespace {

// 1 .. length - 1, or as long as it is where there is nothing between.
std::int64_t shorter(SplitMix& random, std::int64_t length) {
  return length < 2 ? length : 1 + static_cast<std::int64_t>(random.below(static_cast<std::size_t>(length) - 1));
}

std::int64_t any_length(SplitMix& random, std::int64_t length) {
  return static_cast<std::int64_t>(random.below(static_cast<std::size_t>(length) + 1));
}

}  // namespace

std::vector<std::vector<SequenceLengths>> shorter_sequences(const Problem& problem) {
  constexpr std::int64_t kKinds = 4;
  SplitMix random(
      static_cast<std::uint64_t>((problem.batch * 1000033 + problem.seqlen_q) * 1000033 + problem.seqlen_kv));
  std::vector<std::vector<SequenceLengths>> sets;
  for (std::int64_t kind = 0; kind < kKinds && problem.batch > 0;) {
    std::vector<SequenceLengths>& set = sets.emplace_back(problem.sequences());
    for (SequenceLengths& each : set) {
      switch (kind++) {
        case 0: each = {shorter(random, each.q), shorter(random, each.kv)}; break;
        case 1: each = {std::min<std::int64_t>(each.q, 1), std::min<std::int64_t>(each.kv, 1)}; break;
        case 2: each.kv = 0; break;
        case 3: each.q = 0; break;
        default: each = {any_length(random, each.q), any_length(random, each.kv)};
      }
    }
  }
  return sets;
}

std::int64_t sequence_of_row(const std::vector<std::int64_t>& boundaries, std::int64_t row) {
  FC_CHECK(row >= 0 && row < boundaries.back());
  // Of several boundaries at one row all but the last are those of empty sequences.
  return std::upper_bound(boundaries.begin(), boundaries.end(), row) - boundaries.begin() - 1;
}

}  // namespace flashcore
