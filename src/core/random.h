#pragma once
// Random numbers that are the same on every machine: the distributions of the standard library differ between
// libraries, and a seed must not. Header only, so that tests of the shared library draw from it too.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

namespace flashcore {

// SplitMix64 (Steele, Lea and Flood 2014): a counter of this step, and Stafford's variant 13 of the finaliser. Any seed
// will do.
constexpr std::uint64_t kSplitMixStep = 0x9e3779b97f4a7c15u;
constexpr std::uint64_t split_mix_finish(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed = 0) : state_(seed) {}
  std::uint64_t next() { return split_mix_finish(state_ += kSplitMixStep); }
  // Uniform in [0, bound). The modulo bias is below bound / 2^64.
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }
  // The same without a division, which the emulator's scheduler would feel at every step.
  std::uint32_t below_32(std::uint32_t bound) { return static_cast<std::uint32_t>((next() >> 32) * bound >> 32); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }  // [0, 1)
  double normal() {                                                           // N(0, 1), Box-Muller
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t state_;
};

}  // namespace flashcore
