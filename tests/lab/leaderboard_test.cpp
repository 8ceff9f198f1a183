#include "lab/record/leaderboard.h"

#include <gtest/gtest.h>

namespace flashcore {
namespace {

const IsCurrent kNow = [](const Trial& t) { return t.source_hash == "now"; };
const IsCurrent kLater = [](const Trial& t) { return t.source_hash == "later"; };

// A held-out trial of config `config`; speed-up against "fam:base" unless it is that.
Trial heldout(const std::string& config, double p50, double speedup = 1, double half_width = 0.01) {
  Trial t;
  t.phase = Phase::kHoldout;
  t.device.key = "dev";
  t.family = "fam";
  t.config = config;
  t.source_hash = "now";
  t.ended = Ended::kPassed;
  t.gates = {{Gate::kCorrectness, GateStatus::kPassed, "", nullptr}};
  t.timing.emplace();
  t.timing->p10_us = p50 * 0.99;
  t.timing->p50_us = p50;
  t.timing->p90_us = p50 * 1.01;
  if (config != "base")
    t.comparison =
        Comparison{"fam:base", speedup, speedup - half_width, speedup + half_width, SpeedVerdict::kFaster, 12};
  return t;
}

std::string order_of(const LeaderboardRow& row) {
  std::string order;
  for (const Trial& t : row.standing) order += t.config + " ";
  return order;
}

TEST(Leaderboard, RanksByHeldOutSpeedUp) {
  // The clock was lower when "b" ran: its raw time is worse, its race better.
  const auto rows = leaderboard({heldout("base", 100), heldout("a", 80, 1.2), heldout("b", 85, 1.3)}, kNow);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(order_of(rows[0]), "b a base ");
  EXPECT_EQ(rows[0].ties, 0);
  EXPECT_FALSE(rows[0].stale);
}

TEST(Leaderboard, OverlappingIntervalsAreTies) {
  const auto rows = leaderboard(
      {heldout("base", 100), heldout("a", 80, 1.20, 0.02), heldout("b", 80, 1.23, 0.02), heldout("c", 90, 1.05)}, kNow);
  EXPECT_EQ(order_of(rows[0]), "b a c base ");
  EXPECT_EQ(rows[0].ties, 1);
}

TEST(Leaderboard, WhoOverlapsTheWinnerTiesWhereverItStands) {
  const auto rows = leaderboard(
      {heldout("base", 100), heldout("a", 80, 1.30, 0.02), heldout("b", 80, 1.25, 0.02), heldout("c", 90, 1.20, 0.10)},
      kNow);
  EXPECT_EQ(order_of(rows[0]), "a c b base ") << "those that tie stand together";
  EXPECT_EQ(rows[0].ties, 1);
  // Of median times too.
  Trial other = heldout("b", 85), wide = heldout("c", 90);
  other.comparison->against = "fam:else";
  wide.timing->p10_us = 70;
  const auto timed = leaderboard({heldout("a", 80), other, wide}, kNow);
  EXPECT_EQ(order_of(timed[0]), "a c b ");
  EXPECT_EQ(timed[0].ties, 1);
}

TEST(Leaderboard, WithoutACommonBaselineMedianTimesRank) {
  Trial other = heldout("b", 85, 1.3);
  other.comparison->against = "fam:else";
  const auto rows = leaderboard({heldout("a", 80, 1.2), other}, kNow);
  EXPECT_EQ(order_of(rows[0]), "a b ");
  EXPECT_EQ(rows[0].ties, 0);
}

TEST(Leaderboard, OnlyCorrectHeldOutTrialsWithATimeCount) {
  Trial search = heldout("search", 1, 9);
  search.phase = Phase::kSearch;
  Trial wrong = heldout("wrong", 1, 9);
  wrong.gates[0].status = GateStatus::kFailed;
  Trial untimed = heldout("untimed", 1, 9);
  untimed.timing.reset();
  const auto rows = leaderboard({search, wrong, untimed, heldout("base", 100)}, kNow);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(order_of(rows[0]), "base ");
  EXPECT_TRUE(leaderboard({search, wrong, untimed}, kNow).empty());
}

TEST(Leaderboard, TheLatestTrialOfACandidateStands) {
  const auto rows = leaderboard({heldout("a", 10, 5), heldout("base", 100), heldout("a", 95, 1.05)}, kNow);
  EXPECT_EQ(rows[0].standing.size(), 2u);
  EXPECT_EQ(rows[0].standing[0].timing->p50_us, 95);
}

TEST(Leaderboard, OldSourceIsStaleAndNeverMixedWithNew) {
  const auto old_only = leaderboard({heldout("base", 100), heldout("a", 80, 1.2)}, kLater);
  ASSERT_EQ(old_only.size(), 1u);
  EXPECT_TRUE(old_only[0].stale);
  Trial fresh = heldout("base", 120);
  fresh.source_hash = "later";
  const auto mixed = leaderboard({heldout("base", 100), heldout("a", 80, 1.2), fresh}, kLater);
  EXPECT_FALSE(mixed[0].stale);
  EXPECT_EQ(order_of(mixed[0]), "base ");
}

TEST(Leaderboard, OneRowPerDeviceAndProblem) {
  Trial elsewhere = heldout("base", 5);
  elsewhere.device.key = "another";
  Trial larger = heldout("base", 500);
  larger.problem.batch = 2;
  const auto rows = leaderboard({heldout("base", 100), larger, elsewhere}, kNow);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].device_key, "another");
  EXPECT_NE(rows[1].problem_id, rows[2].problem_id);
}

}  // namespace
}  // namespace flashcore
