#pragma once

#include <cstdint>

#include "core/random.h"

namespace flashcore {

// Random choices of the fuzzer.
class Draws : public SplitMix {
 public:
  using SplitMix::SplitMix;
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(bound));
  }
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  template <class Values>
  auto pick(const Values& from) {
    return from[static_cast<std::size_t>(below(static_cast<std::int64_t>(from.size())))];
  }
};

}  // namespace flashcore
