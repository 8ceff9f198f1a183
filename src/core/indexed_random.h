#pragma once
// Random numbers by their place, for data that is the same on every machine.

#include <cstdint>
#include <span>

#include "core/random.h"

namespace flashcore {

// Every value is a function of (seed, stream, index) alone, so threads and layouts do not change it. Only IEEE
// operations are used (no libm, whose results differ between machines).
enum class DataStream : std::uint64_t { kQ = 1, kK, kV, kChoice, kPlace, kTensors };

class IndexedRandom {
 public:
  IndexedRandom(std::uint64_t seed, DataStream stream)
      : key_(split_mix_finish(seed + kSplitMixStep * static_cast<std::uint64_t>(stream))) {}
  std::uint64_t bits(std::int64_t index) const {
    return split_mix_finish(key_ + kSplitMixStep * (static_cast<std::uint64_t>(index) + 1));
  }
  std::int64_t below(std::int64_t index, std::int64_t limit) const {
    return static_cast<std::int64_t>(bits(index) % static_cast<std::uint64_t>(limit));
  }
  double normal(std::int64_t index) const;  // N(0, 1)
  // The same of `first` and those after it, several at a time.
  void normals(std::int64_t first, std::span<double> out) const;

 private:
  std::uint64_t key_;
};

// Natural logarithm of 0 < x <= 1 by atanh's series, to about 1e-12.
double portable_log(double x);

}  // namespace flashcore
