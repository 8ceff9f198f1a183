#include "lab/compare/wake_up.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/parallel.h"

namespace flashcore {
namespace {

std::vector<WakeUp> rounds(int packed, int apart, double packed_us) {
  std::vector<WakeUp> all(static_cast<std::size_t>(packed),
                          {.late_us = 1800, .both_us = packed_us, .on_wakers_core = true});
  all.resize(static_cast<std::size_t>(packed + apart), {.late_us = 60, .both_us = 2100, .on_wakers_core = false});
  return all;
}

TEST(WakeUp, ThreadsArePackedIfHelpersStartOnTheirWakersCoreAndThatCostsTime) {
  const WakeUpSummary packed = summarise_wake_ups(rounds(9, 3, 4900), 2000, 0.1);
  EXPECT_TRUE(packed.packed);
  EXPECT_EQ(packed.rounds, 12);
  EXPECT_EQ(packed.on_wakers_core, 9);
  EXPECT_EQ(packed.late_us, 1800);
  EXPECT_EQ(packed.both_us, 4900);
  EXPECT_EQ(
      wake_up_words(packed),
      "after a pause a helper thread starts 1800 us late, on its waker's core in 9 of 12 rounds: two threads take "
      "4900 us for what each does in 2000 us. This machine's scheduler packs threads on few cores, so that a call "
      "on several threads takes longer after a pause");
  const nlohmann::json json = packed;
  EXPECT_EQ(json.at("packed"), true);
  EXPECT_EQ(json.at("alone_us"), 2000.0);
}

TEST(WakeUp, OneSignAloneIsNone) {
  const WakeUpSummary apart = summarise_wake_ups(rounds(2, 10, 4900), 2000, 0.1);
  EXPECT_FALSE(apart.packed);
  EXPECT_EQ(wake_up_words(apart),
            "after a pause a helper thread starts 60 us late, on its waker's core in 2 of 12 rounds");
  EXPECT_FALSE(summarise_wake_ups(rounds(12, 0, 2100), 2000, 0.1).packed) << "it was moved at once";
  EXPECT_FALSE(summarise_wake_ups({{.late_us = 60, .both_us = 4900, .on_wakers_core = false}}, 2000, 0.1).packed)
      << "two cores of one busy machine";
  EXPECT_THROW(summarise_wake_ups({}, 2000, 0), Error);
}

TEST(WakeUp, OnABusyMachineNothingIsSaidOfTheScheduler) {
  const WakeUpSummary busy = summarise_wake_ups(rounds(9, 3, 4900), 2000, 1.26);
  EXPECT_FALSE(busy.packed);
  EXPECT_NE(wake_up_words(busy).find("other programs kept 1.3 cores busy: ask again"), std::string::npos);
  EXPECT_TRUE(summarise_wake_ups(rounds(9, 3, 4900), 2000, -1).packed) << "where nobody knows";
}

TEST(WakeUp, IsMeasuredWhereThereAreTwoCores) {
  const std::optional<WakeUpSummary> here = measure_wake_ups();
  ASSERT_EQ(here.has_value(), hardware_threads() >= 2);
  if (!here) return;
  EXPECT_EQ(here->rounds, 12);
  EXPECT_GT(here->late_us, 0);
  EXPECT_GT(here->alone_us, 0);
  EXPECT_GE(here->both_us, here->late_us);
}

}  // namespace
}  // namespace flashcore
