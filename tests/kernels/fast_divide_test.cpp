#include "kernels/tile/fast_divide.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace flashcore::tile {
namespace {

constexpr int kMax = std::numeric_limits<int>::max();

void expect_exact(int divisor, int n) {
  ASSERT_EQ(FastDivide::by(divisor).quotient(n), n / divisor) << n << " / " << divisor;
}

// The error grows with the dividend, and a quotient changes at multiples of the divisor: these are where it would show.
TEST(FastDivide, IsExactAroundMultiplesAndAtTheEnds) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const int divisor = i < 2000 ? i + 1 : 1 + static_cast<int>(random() % static_cast<unsigned>(kMax));
    for (const int n : {0, 1, divisor - 1, divisor, kMax - 1, kMax, kMax / divisor * divisor,
                        kMax / divisor * divisor - 1, static_cast<int>(random() & 0x7fffffffu)})
      expect_exact(divisor, n);
  }
}

TEST(FastDivide, PowersOfTwoAndTheirNeighbours) {
  for (int bit = 0; bit < 31; ++bit) {
    for (const int divisor : {(1 << bit) - 1, 1 << bit, (1 << bit) + 1}) {
      if (divisor < 1) continue;
      for (int other = 0; other < 31; ++other) {
        expect_exact(divisor, 1 << other);
        expect_exact(divisor, (1 << other) - 1);
      }
    }
  }
}

}  // namespace
}  // namespace flashcore::tile
