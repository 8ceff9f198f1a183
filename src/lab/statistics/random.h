#pragma once
// The laboratory's random numbers: the same on every machine.

#include <cstddef>
#include <cstdint>

namespace flashcore {

// xoshiro-class generators differ between standard libraries in their distributions; this one gives the same numbers
// everywhere (SplitMix64, Steele et al. 2014).
class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  // Uniform in [0, bound). The modulo bias is below bound / 2^64.
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }
  double uniform();  // [0, 1)
  double normal();   // N(0, 1), Box-Muller

 private:
  std::uint64_t state_;
};

}  // namespace flashcore
