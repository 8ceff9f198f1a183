#include "lab/tune/facts.h"

#include <gtest/gtest.h>

namespace flashcore {
namespace {

TEST(TuneFacts, InertFieldsAreThoseThatNeverChangeTheCode) {
  const ConfigSpace space({{"block", {16, 32}}, {"ignored", {0, 1}}, {"alone", {0, 1}}});
  EXPECT_EQ(inert_fields(space, {{{16, 0, 0}, "x"}, {{16, 1, 0}, "x"}, {{32, 0, 0}, "y"}, {{32, 1, 1}, "z"}}),
            std::vector<std::string>{"ignored"});
  EXPECT_TRUE(inert_fields(space, {{{16, 0, 0}, "x"}, {{32, 1, 0}, "x"}}).empty())
      << "two fields differ: neither is accused";
}

Trial timed(const std::string& config, double p50, double speedup = 0, double low = 0, double p_value = 1) {
  Trial t;
  t.family = "f";
  t.config = config;
  t.gates = {{Gate::kCorrectness, GateStatus::kPassed, "", nullptr}};
  t.timing.emplace().p50_us = p50;
  if (speedup > 0)
    t.comparison = Comparison{"f:base", speedup, low, 2 * speedup - low, SpeedVerdict::kFaster, 12, 0.03, p_value};
  return t;
}

TEST(TuneFacts, FinalistsAreTheFastestCorrectOnesEachOnce) {
  Trial wrong = timed("wrong", 1);
  wrong.gates.clear();
  const auto finalists = choose_finalists(
      {timed("base", 5), timed("a", 9), timed("b", 7), wrong, timed("b", 8), timed("c", 10)}, "f:base", 2);
  ASSERT_EQ(finalists.size(), 2u);
  EXPECT_EQ(finalists[0].config, "b");
  EXPECT_EQ(finalists[1].config, "a");
}

TEST(TuneFacts, LuckDoesNotWin) {
  const Trial base = timed("base", 100);
  // Best by estimate, but its interval holds 1; next best by interval, but not after Holm over the two.
  const Trial wide = timed("wide", 50, 1.5, 0.9, 0.2), lucky = timed("lucky", 80, 1.2, 1.01, 0.04),
              real = timed("real", 90, 1.1, 1.05, 0.001);
  EXPECT_EQ(choose_winner({base, wide, lucky}, "f:base")->config, "base");
  EXPECT_EQ(choose_winner({base, wide, lucky, real}, "f:base")->config, "real");
  EXPECT_FALSE(choose_winner({}, "f:base"));
}

TEST(TuneFacts, ShrinkageIsTheShareLost) {
  EXPECT_NEAR(shrinkage_of({timed("base", 150), timed("a", 100)}, timed("a", 102, 1.47, 1.4), "f:base"), 0.02, 1e-9);
  EXPECT_EQ(shrinkage_of({timed("base", 150)}, timed("base", 150), "f:base"), 0);
}

}  // namespace
}  // namespace flashcore
