#include "lab/tune/facts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/random.h"
#include "lab/measure/race.h"

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
  if (t.comparison) t.comparison->processes = 3;
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

TEST(TuneFacts, FewerThanThreeProcessesCrownNobody) {
  Trial real = timed("real", 90, 1.1, 1.05, 0.001);
  real.comparison->processes = 2;
  EXPECT_EQ(choose_winner({timed("base", 100), real}, "f:base")->config, "base");
}

// Finalists all as fast as the baseline, each process with an offset of its own for each of them: where its tensors and
// code came to lie.
double share_of_false_winners(double between, int processes, int runs) {
  SplitMix random(static_cast<std::uint64_t>(1000 * between) + 5);
  int winners = 0;
  for (int run = 0; run < runs; ++run) {
    std::vector<Trial> heldout = {timed("base", 100)};
    for (int finalist = 0; finalist < 5; ++finalist) {
      std::vector<std::vector<double>> blocks(static_cast<std::size_t>(processes), std::vector<double>(12));
      for (std::vector<double>& of_process : blocks) {
        const double offset = between * random.normal();
        for (double& block : of_process) block = offset + 0.01 * random.normal();
      }
      heldout.push_back(timed(fmt::format("{}", finalist), 100));
      heldout.back().comparison = compare_processes(blocks, 0.03, static_cast<std::uint64_t>(run));
      heldout.back().comparison->against = "f:base";
    }
    winners += choose_winner(heldout, "f:base")->config != "base";
  }
  return static_cast<double>(winners) / runs;
}

TEST(TuneFacts, EqualFinalistsSeldomHaveAFalseWinner) {
  constexpr int kRuns = 400;
  const double by_chance = 3 * std::sqrt(0.05 * 0.95 / kRuns);
  for (const double between : {0.0, 0.005, 0.02}) {
    const double share = share_of_false_winners(between, kFewestProcesses, kRuns);
    RecordProperty(fmt::format("between_{}", between), fmt::format("{}", share));
    EXPECT_LT(share, 0.05 + by_chance) << "offsets of " << between;
  }
}

TEST(TuneFacts, ShrinkageIsTheShareLost) {
  EXPECT_NEAR(shrinkage_of({timed("base", 150), timed("a", 100)}, timed("a", 102, 1.47, 1.4), "f:base"), 0.02, 1e-9);
  EXPECT_EQ(shrinkage_of({timed("base", 150)}, timed("base", 150), "f:base"), 0);
}

}  // namespace
}  // namespace flashcore
