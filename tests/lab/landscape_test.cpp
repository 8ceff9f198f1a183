#include "lab/tune/landscape.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/files.h"
#include "lab/fake.h"
#include "lab/statistics/statistics.h"

namespace flashcore {
namespace {

// A bowl over three fields with a rejected corner.
Landscape bowl() {
  Landscape l{"b1_h1_s64_d64_fp32", "dev", "hash", "bowl", {}, {1, 1, 1}, {}};
  const std::vector<int> values = {1, 2, 3, 4, 5, 6, 7, 8};
  l.space = ConfigSpace({{"a", values}, {"b", values}, {"c", values}});
  for (int a : values)
    for (int b : values)
      for (int c : values) {
        LandscapePoint p{{a, b, c}, Ended::kPassed, std::nullopt};
        if (a + b + c > 20) p.ended = Ended::kResource;
        else p.p50_us = 100 + 4 * (a - 6) * (a - 6) + 2 * (b - 3) * (b - 3) + (c - 5) * (c - 5);
        l.points.push_back(std::move(p));
      }
  return l;
}

double median_regret(const Landscape& l, const std::string& strategy, int budget) {
  std::vector<double> regrets;
  for (std::uint64_t seed = 1; seed <= 31; ++seed)
    regrets.push_back(
        replay(l, {.strategy = strategy, .budget = budget, .seed = seed, .noise = 0.01, .finalists = 5}).regret(l));
  return median(regrets);
}

TEST(Landscape, RoundTripsThroughJson) {
  const Landscape l = bowl();
  const auto back = parse_landscapes(nlohmann::json::parse(landscapes_json({l}).dump()), "here");
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(landscapes_json(back), landscapes_json({l}));
  EXPECT_EQ(back[0].best_us(), 100);
}

TEST(Landscape, WhatIsNoneIsNamed) {
  for (const char* text : {"{}", "[]", R"({"schema":"flashcore.landscape/1","landscapes":[]})",
                           R"({"schema":"flashcore.landscape/1","landscapes":[{"problem":"x"}]})"}) {
    try {
      parse_landscapes(nlohmann::json::parse(text), "file.json");
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("'file.json' is no recorded landscape"), std::string::npos) << e.what();
    }
  }
}

TEST(Replay, IsRepeatableAndWithinItsBudget) {
  const Landscape l = bowl();
  const ReplayOptions options{.strategy = "evolution", .budget = 40, .seed = 3, .noise = 0.01, .finalists = 5};
  const Replay one = replay(l, options), two = replay(l, options);
  EXPECT_EQ(one.trials, 40);
  EXPECT_EQ(one.best_so_far, two.best_so_far);
  EXPECT_EQ(one.found_us, two.found_us);
  EXPECT_GE(one.regret(l), 0);
}

TEST(Replay, TheWholeSpaceWithoutNoiseFindsTheBest) {
  const Landscape l = bowl();
  for (const char* strategy : {"exhaustive", "random", "evolution"})
    EXPECT_EQ(replay(l, {.strategy = strategy, .budget = 512, .seed = 1, .noise = 0, .finalists = 1}).found_us, 100);
}

TEST(Replay, EvolutionBeatsRandomSearchOnABowl) {
  const Landscape l = bowl();
  EXPECT_LT(median_regret(l, "evolution", 60), median_regret(l, "random", 60));
}

TEST(Replay, RecordedLandscapesOfTrialsKeepReasonsAndTwins) {
  const test::AllFakeFamilies families;
  const auto device = test::make_fake_device();
  const auto trial = [&](const std::string& config, Ended ended, double p50) {
    Trial t;
    t.problem = PlacedProblem::parse("b1_h1_s19_d8_fp32");
    t.device = device->info();
    t.family = "fake_none";
    t.config = config;
    t.ended = ended;
    if (p50 > 0) t.timing.emplace().p50_us = p50;
    return t;
  };
  Trial twin = trial("block=64,unroll=1,spread=0", Ended::kPassed, 0);
  twin.comparison = Comparison{"fake_none:block=16,unroll=1,spread=0", 1, 1, 1, SpeedVerdict::kSame, 0};
  Trial heldout = trial("block=64,unroll=2,spread=0", Ended::kPassed, 1);
  heldout.phase = Phase::kHoldout;
  // Raced while the clock was low: half of the default's speed, whatever its own time says.
  Trial raced = trial("block=32,unroll=4,spread=0", Ended::kSlower, 999);
  raced.comparison = Comparison{"fake_none:block=16,unroll=1,spread=0", 0.5, 0.4, 0.6, SpeedVerdict::kSlower, 12};
  const auto recorded = landscapes_of({trial("block=16,unroll=1,spread=0", Ended::kPassed, 160),
                                       trial("block=32,unroll=1,spread=0", Ended::kSlower, 300),
                                       trial("block=32,unroll=2,spread=0", Ended::kIncorrect, 0), twin, raced, heldout},
                                      device->info().limits);
  ASSERT_EQ(recorded.size(), 1u);
  ASSERT_EQ(recorded[0].points.size(), 5u);
  EXPECT_EQ(recorded[0].points[4].p50_us, 320);
  EXPECT_EQ(recorded[0].points[1].p50_us, 300);
  EXPECT_FALSE(recorded[0].points[2].p50_us);
  EXPECT_EQ(recorded[0].points[2].ended, Ended::kIncorrect);
  EXPECT_EQ(recorded[0].points[3].p50_us, 160) << "not timed, for it is the code of another";
}

// The landscapes that ship: evolution must be worth having on them.
TEST(Replay, OnTheRecordedLandscapesEvolutionIsNoWorseThanRandomSearch) {
  const std::string file = FLASHCORE_SOURCE_DIR "/results/landscapes/cpu_fwd.json";
  const auto landscapes = parse_landscapes(nlohmann::json::parse(read_file(file)), file);
  double evolution = 0, random = 0;
  for (const Landscape& l : landscapes) {
    EXPECT_GE(l.points.size(), 50u) << l.problem_id;
    evolution += median_regret(l, "evolution", 40);
    random += median_regret(l, "random", 40);
  }
  EXPECT_LE(evolution, random + 0.002 * static_cast<double>(landscapes.size()));
}

}  // namespace
}  // namespace flashcore
