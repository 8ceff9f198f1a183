// One sample of a long time out of many short ones.

#include "device/repeated_sample.h"

#include <gtest/gtest.h>

namespace flashcore {
namespace {

// A clock that each sample moves on by 10 ms; sample i takes i microseconds.
struct Simulated {
  double now = 0;
  int taken = 0;
  Sample sample() {
    now += 0.010;
    ++taken;
    return {static_cast<double>(taken), 1000.0 + taken};
  }
  Sample run(double warm_up_ms, double measure_ms) {
    return sample_for([this] { return sample(); }, warm_up_ms, measure_ms, [this] { return now; });
  }
};

TEST(RepeatedSample, WithoutDurationsIsOneSample) {
  Simulated s;
  EXPECT_EQ(s.run(0, 0).time_us, 1);
  EXPECT_EQ(s.taken, 1);
}

TEST(RepeatedSample, TheWarmUpIsNotCounted) {
  Simulated s;
  const Sample mean = s.run(95, 195);
  EXPECT_EQ(s.taken, 10 + 20);
  EXPECT_DOUBLE_EQ(mean.time_us, (11 + 30) / 2.0);
  EXPECT_DOUBLE_EQ(mean.clock_mhz, 1000 + (11 + 30) / 2.0);
}

}  // namespace
}  // namespace flashcore
