#pragma once
// Division by a number that the host knows before the launch. The GPU has no divider: a division is some 40 dependent
// instructions, and the four that find a tile cost 700 clocks, three times per tile. Read by g++ and by NVRTC: includes
// nothing.

namespace flashcore::tile {

// n / divisor for 0 <= n < 2^31 as a multiplication by ceil(2^shift / divisor). With shift = 31 + ceil(log2(divisor))
// the multiplier fits 32 bits and the error stays below 1 / divisor. Granlund and Montgomery, "Division by Invariant
// Integers using Multiplication" (1994).
struct FastDivide {
  unsigned multiplier;
  int shift;

  static constexpr FastDivide by(int divisor) {
    int shift = 31;
    while ((1ull << (shift - 31)) < static_cast<unsigned long long>(divisor)) ++shift;
    return {static_cast<unsigned>(((1ull << shift) + divisor - 1) / divisor), shift};
  }
  constexpr int quotient(int n) const {
    return static_cast<int>(static_cast<unsigned long long>(static_cast<unsigned>(n)) * multiplier >> shift);
  }
};

}  // namespace flashcore::tile
