// fc_timer_*: work of the caller's, by the device's own timer.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "flashcore/flashcore.h"

namespace {

struct Counting {
  int calls = 0;
  int fails_at = -1;
  static int32_t call(void* self) {
    auto* counting = static_cast<Counting*>(self);
    return counting->calls++ == counting->fails_at ? 7 : 0;
  }
};

class TimerTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(fc_context_create("cpu", &context_), FC_OK); }
  void TearDown() override { fc_context_destroy(context_); }
  fc_timed_work work_of(Counting& counting) {
    fc_timed_work work = FC_TIMED_WORK_INIT;
    work.call = Counting::call;
    work.user = &counting;
    work.sample_us = 20;
    return work;
  }
  void expect_refused(const fc_timed_work* work, const std::string& words) {
    fc_timer timer = nullptr;
    EXPECT_EQ(fc_timer_create(context_, work, &timer), FC_ERROR_BAD_INPUT);
    EXPECT_NE(std::string(fc_last_error()).find(words), std::string::npos) << fc_last_error();
    EXPECT_EQ(timer, nullptr);
  }
  fc_context context_ = nullptr;
};

TEST_F(TimerTest, ASampleIsTheTimeOfOneCallOutOfMany) {
  Counting counting;
  const fc_timed_work work = work_of(counting);
  fc_timer timer = nullptr;
  ASSERT_EQ(fc_timer_create(context_, &work, &timer), FC_OK) << fc_last_error();
  int32_t launches = 0;
  ASSERT_EQ(fc_timer_launches(timer, 0, &launches), FC_OK);
  EXPECT_GT(launches, 10) << "a call of nanoseconds";
  const int before = counting.calls;
  double time_us = 0, clock_mhz = -1;
  ASSERT_EQ(fc_timer_sample(timer, 0, 0, &time_us, &clock_mhz), FC_OK);
  EXPECT_GE(counting.calls - before, launches);
  EXPECT_GT(time_us, 0);
  EXPECT_EQ(clock_mhz, 0) << "a CPU's is not known";
  ASSERT_EQ(fc_timer_sample(timer, 1, 2, &time_us, nullptr), FC_OK) << "sustained, without a clock";
  EXPECT_EQ(fc_timer_destroy(timer), FC_OK);
  EXPECT_EQ(fc_timer_sample(timer, 0, 0, &time_us, nullptr), FC_ERROR_BAD_INPUT) << "closed";
}

TEST_F(TimerTest, AFunctionThatFailsEndsTheSample) {
  Counting counting;
  counting.fails_at = 0;
  const fc_timed_work work = work_of(counting);
  expect_refused(&work, "returned 7");
}

TEST_F(TimerTest, WhatIsNoWorkIsRefused) {
  Counting counting;
  expect_refused(nullptr, "work is null");
  fc_timed_work work = work_of(counting);
  work.struct_size = 8;
  expect_refused(&work, "struct_size");
  work = work_of(counting);
  work.launches = 0;
  expect_refused(&work, "launches is 0");
  work = work_of(counting);
  work.call = nullptr;
  work.graph = &counting;
  expect_refused(&work, "the CPU times calls");
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN(), 1e30}) {
    work = work_of(counting);
    work.sample_us = bad;
    expect_refused(&work, "sample_us");
  }
  EXPECT_EQ(fc_timer_create(context_, &work, nullptr), FC_ERROR_BAD_INPUT);
}

TEST_F(TimerTest, AnEmulatedGpuHasNoTime) {
  fc_context emulator = nullptr;
  ASSERT_EQ(fc_context_create("emulator", &emulator), FC_OK);
  Counting counting;
  const fc_timed_work work = work_of(counting);
  fc_timer timer = nullptr;
  EXPECT_EQ(fc_timer_create(emulator, &work, &timer), FC_ERROR_BAD_INPUT);
  fc_context_destroy(emulator);
}

}  // namespace
