#include "lab/tune/stop_loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/random.h"
#include "lab/statistics/statistics.h"
#include "lab/tune/landscape.h"

namespace flashcore {
namespace {

// As of a search that meets nothing new: equal configs, told apart by noise alone.
SearchHistory flat(int trials, double seconds, std::uint64_t seed = 1) {
  SplitMix random(seed);
  SearchHistory history;
  for (int i = 0; i < trials; ++i) history.add(0.01 * random.normal(), seconds);
  return history;
}

TEST(StopLoss, SaysNothingBeforeAWindowOfTrials) {
  EXPECT_FALSE(flat(kStopLossWindow - 1, 1).next());
  EXPECT_TRUE(flat(kStopLossWindow, 1).next());
}

TEST(StopLoss, WithoutARecordTheProbabilityIsThatOfEqualChances) {
  SearchHistory history;
  history.add(1.0, 2);  // the best comes first, and stays
  for (int i = 0; i < 39; ++i) history.add(0.001 * i, 2);
  const auto gain = history.next();
  ASSERT_TRUE(gain);
  EXPECT_EQ(gain->window, 20);
  EXPECT_EQ(gain->records, 0);
  EXPECT_DOUBLE_EQ(gain->probability, 1.0 / 22);
  EXPECT_DOUBLE_EQ(gain->trial_seconds, 2);
}

TEST(StopLoss, SizeIsTheMeanOfTheRecords) {
  SearchHistory history;
  for (int i = 0; i < 32; ++i) history.add(i % 8 == 7 ? 0.05 * (i / 8 + 1) : 0.0, 1);
  const auto gain = history.next();
  ASSERT_TRUE(gain);
  EXPECT_EQ(gain->records, 2);  // of the last 16 trials
  EXPECT_NEAR(gain->size_percent, 100 * std::expm1(0.1), 3.6);
  EXPECT_DOUBLE_EQ(gain->probability, 3.0 / 18);
}

TEST(StopLoss, FailuresLowerTheChanceAndStillCost) {
  SearchHistory few, many;
  for (int i = 0; i < 40; ++i) {
    few.add(i % 2 == 0 ? std::optional(0.0) : std::nullopt, i % 2 == 0 ? 1 : 3);
    many.add(0.0, 1);
  }
  ASSERT_TRUE(few.next() && many.next());
  EXPECT_EQ(few.next()->percent(), 0);
  EXPECT_TRUE(few.next()->is_loss({1e9}));
  EXPECT_DOUBLE_EQ(few.next()->trial_seconds, 2);
  EXPECT_DOUBLE_EQ(many.next()->trial_seconds, 1);
}

// Of a spread that nobody has seen, and a cost that nobody has said, there is no verdict.
TEST(StopLoss, NothingIsSaidOfAFewPassedTrialsOrWithoutSeconds) {
  SearchHistory failing, without_seconds;
  for (int i = 0; i < 40; ++i) {
    failing.add(i % 16 == 0 ? std::optional(0.01 * i) : std::nullopt, 3);
    without_seconds.add(0.0, std::nullopt);
  }
  EXPECT_FALSE(failing.next());
  EXPECT_FALSE(without_seconds.next());
}

TEST(StopLoss, MoneyAndTimeAreOneRule) {
  // A percent is worth 20, an hour costs 4: five hours a percent.
  EXPECT_DOUBLE_EQ(stop_loss_of_money(20, 4).seconds_per_percent, 5 * 3600);
}

TEST(StopLoss, TrialsThatDoNotSayTheirSecondsAreLeftOutOfTheCost) {
  SearchHistory history;
  for (int i = 0; i < 20; ++i) history.add(0.0, i % 2 == 0 ? std::optional(4.0) : std::nullopt);
  EXPECT_DOUBLE_EQ(history.next()->trial_seconds, 4);
}

// Drift is no gain: what was raced has its incumbent's speed times its speed-up, whatever the clock said.
TEST(StopLoss, RacedTrialsAreRelativeToTheirIncumbent) {
  SearchHistory history;
  const auto trial = [](int number, double p50, double speedup) {
    Trial t;
    t.family = "f";
    t.config = std::to_string(number);
    t.gates = {{Gate::kCorrectness, GateStatus::kPassed, "", nullptr}};
    t.timing.emplace().p50_us = p50;
    if (speedup > 0) t.comparison = Comparison{"f:0", speedup, 1, 1, SpeedVerdict::kSame, 10};
    t.seconds = TrialSeconds{1, 0};
    return t;
  };
  history.add(trial(0, 100, 0));
  // The machine speeds up by half in the meantime, and no config is faster than the first.
  for (int i = 1; i < 40; ++i) history.add(trial(i, 100 - i, 0.99));
  const auto gain = history.next();
  ASSERT_TRUE(gain);
  EXPECT_EQ(gain->records, 0);
}

TEST(StopLoss, SentenceNamesGainWorthAndCost) {
  const std::string text = flat(40, 2).next()->sentence({30});
  for (const char* part : {"40 trials", "of the last 20", "probability", "worth", "a trial costs 2 s"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

// --- simulated searches ---------------------------------------------------------------------------------------------

// `better_each`: every so many points are 3% faster than all before them.
Landscape stairs(int points, int better_each) {
  Landscape l{"b1_h1_s64_d64_fp32", "dev", "hash", "stairs", {}, {0}, {}};
  std::vector<int> values;
  for (int i = 0; i < points; ++i) values.push_back(i);
  l.space = ConfigSpace({{"a", values}});
  double best = 100;
  for (int i = 0; i < points; ++i) {
    const bool step = i % better_each == better_each - 1;
    if (step) best /= 1.03;
    l.points.push_back({{i}, Ended::kPassed, step ? best : best * 1.2});
  }
  return l;
}

Replay replayed_with(const Landscape& l, const std::string& strategy, std::uint64_t seed, double seconds_per_percent,
                     double noise = 0.01) {
  return replay(l, {.strategy = strategy,
                    .budget = static_cast<int>(l.points.size()),
                    .seed = seed,
                    .noise = noise,
                    .finalists = 5,
                    .stop_loss = StopLoss{seconds_per_percent},
                    .trial_seconds = 1});
}

TEST(StopLossReplay, DoesNotStopWhileClearGainsCome) {
  // A gain of 3% every five trials of a second, and a percent is worth 10 s: 6 s a trial.
  const Landscape l = stairs(200, 5);
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    const Replay run = replayed_with(l, "exhaustive", seed, 10);
    EXPECT_FALSE(run.stopped_at_loss) << seed;
    EXPECT_EQ(run.trials, 200);
  }
}

TEST(StopLossReplay, StopsWhereTheSameGainsAreWorthLessThanTheyCost) {
  // The same landscape; now a percent is worth half a second: 0.3 s a trial that costs one. The points between the
  // steps lie 20% apart from them, and the rule counts that as spread: it errs on going on, and not to the end.
  const Replay run = replayed_with(stairs(200, 5), "exhaustive", 1, 0.5);
  EXPECT_TRUE(run.stopped_at_loss);
  EXPECT_LT(run.trials, 100);
}

TEST(StopLossReplay, StopsOnAPlainBeforeItsBudget) {
  Landscape l = stairs(400, 1000);  // never a better one
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    const Replay run = replayed_with(l, "random", seed, 10);
    EXPECT_TRUE(run.stopped_at_loss) << seed;
    EXPECT_LT(run.trials, 200) << seed;
    EXPECT_GE(run.trials, kStopLossWindow);
  }
}

TEST(StopLossReplay, GoesOnWhenGainsComeLate) {
  // Nothing for 40 trials, then 3% every five: with a percent worth five minutes, 40 trials of a second are no reason
  // yet.
  Landscape l = stairs(300, 5);
  for (int i = 0; i < 40; ++i) l.points[static_cast<std::size_t>(i)].p50_us = 110;
  for (std::uint64_t seed = 1; seed <= 10; ++seed)
    EXPECT_FALSE(replayed_with(l, "exhaustive", seed, 300).stopped_at_loss) << seed;
}

// What the rule saves and what it gives away, over searches of a bowl: less is paid in all than without it.
TEST(StopLossReplay, PaysOnABowl) {
  Landscape l{"b1_h1_s64_d64_fp32", "dev", "hash", "bowl", {}, {1, 1, 1}, {}};
  const std::vector<int> values = {1, 2, 3, 4, 5, 6, 7, 8};
  l.space = ConfigSpace({{"a", values}, {"b", values}, {"c", values}});
  for (int a : values)
    for (int b : values)
      for (int c : values)
        l.points.push_back(
            {{a, b, c}, Ended::kPassed, 100.0 + 4 * (a - 6) * (a - 6) + 2 * (b - 3) * (b - 3) + (c - 5) * (c - 5)});
  constexpr double kWorth = 20;  // seconds a percent; a trial takes one
  std::vector<double> with, without;
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    const auto loss = [&](const Replay& run) { return run.trials + kWorth * 100 * run.regret(l); };
    with.push_back(loss(replayed_with(l, "evolution", seed, kWorth)));
    without.push_back(loss(replay(l, {.strategy = "evolution", .budget = 512, .seed = seed, .noise = 0.01})));
  }
  EXPECT_LT(median(with), median(without));
}

}  // namespace
}  // namespace flashcore
