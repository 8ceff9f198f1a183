#include "core/random.h"

#include <gtest/gtest.h>

namespace flashcore {
namespace {

// The reference implementation's numbers. Stored results, recorded kernels and goldens were drawn from them.
TEST(RandomTest, DrawsTheNumbersOfSplitMix64) {
  SplitMix random(1234567);
  for (const std::uint64_t expected :
       {6457827717110365317u, 3203168211198807973u, 9817491932198370423u, 4593380528125082431u, 16408922859458223821u})
    EXPECT_EQ(random.next(), expected);
  EXPECT_EQ(split_mix_finish(1234567 + kSplitMixStep), 6457827717110365317u);
}

TEST(RandomTest, BoundsHold) {
  SplitMix random(1);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_LT(random.below(7), 7u);
    EXPECT_LT(random.below_32(7), 7u);
    const double uniform = random.uniform();
    EXPECT_TRUE(uniform >= 0 && uniform < 1);
  }
  EXPECT_EQ(SplitMix(1234567).below(1000), 6457827717110365317u % 1000);
  EXPECT_EQ(SplitMix(1234567).below_32(1000), (6457827717110365317u >> 32) * 1000 >> 32);
}

}  // namespace
}  // namespace flashcore
