#include "lab/tune/search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "core/error.h"

namespace flashcore {
namespace {

// Five fields, 3600 points, a third of them infeasible; a bowl with one optimum and a ripple across it.
ConfigSpace landscape_space() {
  return ConfigSpace({{"block_m", {16, 32, 48, 64, 96, 128}},
                      {"block_n", {16, 32, 48, 64, 96}},
                      {"num_warps", {1, 2, 4, 8}},
                      {"num_stages", {1, 2, 3, 4, 5}},
                      {"layout", {0, 1, 2, 3, 4, 5}}});
}

bool feasible(const ConfigValues& c) { return c[0] * c[1] * c[3] <= 16384 && (c[0] + c[1]) % 48 != 0; }

double time_of(const ConfigValues& c) {
  const auto off = [](double value, double best) { return std::pow(std::log2(value / best), 2); };
  return 100 + 20 * off(c[0], 64) + 15 * off(c[1], 32) + 10 * off(c[2], 4) + 5 * std::abs(c[3] - 3) +
         3 * std::abs(c[4] - 4) + 2 * ((c[0] / 16 + c[4]) % 3);
}

SearchSpace landscape() {
  SearchSpace space{landscape_space(), {}, {32, 32, 2, 2, 0}};
  for (std::uint64_t i = 0; i < space.space.size(); ++i)
    if (feasible(space.space.at(i))) space.feasible.push_back(space.space.at(i));
  return space;
}

Trial trial_of(const SearchSpace& space, const ConfigValues& config, double time_us) {
  Trial trial;
  trial.family = "fake";
  trial.config = space.space.print(config);
  trial.ended = Ended::kPassed;
  trial.timing.emplace().p50_us = time_us;
  return trial;
}

// Trials until a point within 2% of the optimum has been seen.
int trials_to_optimum(const std::string& strategy, std::uint64_t seed, double optimum) {
  const SearchSpace space = landscape();
  const auto search = make_search(strategy, space, seed);
  for (int trials = 1;; ++trials) {
    const auto config = search->propose();
    if (!config) return trials;
    const double time = time_of(*config);
    if (time <= 1.02 * optimum) return trials;
    search->observe(trial_of(space, *config, time));
  }
}

class EveryStrategy : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Search, EveryStrategy, ::testing::Values("exhaustive", "random", "evolution"));

TEST_P(EveryStrategy, ProposesEveryFeasiblePointOnceAndNoOther) {
  const SearchSpace space = landscape();
  const auto search = make_search(GetParam(), space, 7);
  std::set<ConfigValues> seen;
  while (const auto config = search->propose()) {
    ASSERT_TRUE(feasible(*config)) << space.space.print(*config);
    ASSERT_TRUE(seen.insert(*config).second) << "proposed twice: " << space.space.print(*config);
    search->observe(trial_of(space, *config, time_of(*config)));
  }
  EXPECT_EQ(seen.size(), space.feasible.size());
  EXPECT_EQ(search->untried(), 0u);
  EXPECT_FALSE(search->propose());
}

TEST_P(EveryStrategy, StartsWithTheDefault) {
  EXPECT_EQ(make_search(GetParam(), landscape(), 3)->propose(), landscape().first);
}

TEST_P(EveryStrategy, AnInfeasibleDefaultIsNotProposed) {
  SearchSpace space = landscape();
  space.first = {32, 16, 1, 1, 0};  // 48: infeasible
  ASSERT_FALSE(feasible(space.first));
  EXPECT_NE(make_search(GetParam(), space, 3)->propose(), space.first);
}

TEST_P(EveryStrategy, WhatTheStoreAlreadyHoldsIsNotProposedAgain) {
  const SearchSpace space = landscape();
  const auto search = make_search(GetParam(), space, 5);
  for (std::size_t i = 0; i < space.feasible.size(); ++i)
    if (i != 17) search->observe(trial_of(space, space.feasible[i], time_of(space.feasible[i])));
  EXPECT_EQ(search->propose(), space.feasible[17]);
  EXPECT_FALSE(search->propose());
}

TEST_P(EveryStrategy, AnEmptySpaceEndsAtOnce) {
  SearchSpace space = landscape();
  space.feasible.clear();
  EXPECT_FALSE(make_search(GetParam(), space, 1)->propose());
}

TEST_P(EveryStrategy, SurvivesWhenEverythingFails) {
  const SearchSpace space = landscape();
  const auto search = make_search(GetParam(), space, 1);
  std::size_t proposed = 0;
  while (const auto config = search->propose()) {
    Trial trial = trial_of(space, *config, 0);
    trial.timing.reset();
    trial.ended = Ended::kCrashed;
    search->observe(trial);
    ++proposed;
  }
  EXPECT_EQ(proposed, space.feasible.size());
}

TEST_P(EveryStrategy, TrialsOfAnotherSpaceAreIgnored) {
  const auto search = make_search(GetParam(), landscape(), 1);
  Trial trial;
  trial.config = "no_such_field=3";
  trial.ended = Ended::kPassed;
  search->observe(trial);
  EXPECT_EQ(search->untried(), landscape().feasible.size());
}

TEST(Search, EvolutionNeedsFewerTrialsThanRandom) {
  double optimum = std::numeric_limits<double>::infinity();
  for (const auto& config : landscape().feasible) optimum = std::min(optimum, time_of(config));
  double evolution = 0, random = 0;
  constexpr int kRuns = 20;
  for (std::uint64_t seed = 0; seed < kRuns; ++seed) {
    evolution += trials_to_optimum("evolution", seed, optimum);
    random += trials_to_optimum("random", seed, optimum);
  }
  EXPECT_LT(evolution, 0.5 * random) << evolution / kRuns << " against " << random / kRuns << " trials";
}

TEST(Search, SameSeedSameProposals) {
  for (const char* strategy : {"random", "evolution"}) {
    const auto one = make_search(strategy, landscape(), 9), two = make_search(strategy, landscape(), 9),
               other = make_search(strategy, landscape(), 10);
    bool differs = false;
    for (int i = 0; i < 30; ++i) {
      const auto config = one->propose();
      EXPECT_EQ(config, two->propose());
      differs |= config != other->propose();
    }
    EXPECT_TRUE(differs);
  }
}

TEST(Search, CostTellsFailureFromIgnorance) {
  Trial trial;
  trial.ended = Ended::kIncorrect;
  EXPECT_TRUE(std::isinf(cost_of(trial).value()));
  trial.ended = Ended::kPassed;  // SAME by construction: not timed
  EXPECT_FALSE(cost_of(trial));
  trial.timing.emplace().p50_us = 5;
  EXPECT_EQ(cost_of(trial), 5);
}

TEST(Search, UnknownStrategyIsBadInput) { EXPECT_THROW(make_search("annealing", landscape(), 1), Error); }

}  // namespace
}  // namespace flashcore
