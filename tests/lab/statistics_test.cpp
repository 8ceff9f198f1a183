#include "lab/statistics/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "lab/measure/race.h"

namespace flashcore {
namespace {

TEST(Statistics, QuantilesAreNumPysDefault) {
  const std::vector<double> values = {7, 1, 3, 2};
  EXPECT_DOUBLE_EQ(quantile(values, 0), 1);
  EXPECT_DOUBLE_EQ(quantile(values, 1), 7);
  EXPECT_DOUBLE_EQ(quantile(values, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile(values, 0.1), 1.3);  // numpy.quantile([7, 1, 3, 2], 0.1)
  EXPECT_DOUBLE_EQ(quantile(values, 0.9), 5.8);
  EXPECT_DOUBLE_EQ(median(values), 2.5);
  EXPECT_DOUBLE_EQ(median(std::vector<double>{5}), 5);
  EXPECT_DOUBLE_EQ(median(std::vector<double>{3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(geometric_mean(std::vector<double>{1, 4, 16}), 4);
  EXPECT_THROW(median(std::vector<double>{}), Error);
  EXPECT_THROW(geometric_mean(std::vector<double>{1, 0}), Error);
}

TEST(Statistics, VerdictFollowsTheDocumentedRule) {
  const double m = 0.03;
  EXPECT_EQ(verdict_of({1.10, 1.05, 1.15}, m), SpeedVerdict::kFaster);
  EXPECT_EQ(verdict_of({1.04, 1.001, 1.08}, m), SpeedVerdict::kInconclusive);  // as good as nothing is not excluded
  EXPECT_EQ(verdict_of({1.03, 1.016, 1.045}, m), SpeedVerdict::kFaster);
  EXPECT_EQ(verdict_of({1.02, 1.01, 1.035}, m),
            SpeedVerdict::kInconclusive);                                  // perhaps by less than half of the margin
  EXPECT_EQ(verdict_of({1.022, 1.016, 1.029}, m), SpeedVerdict::kFaster);  // more than half of the margin for certain
  EXPECT_EQ(verdict_of({0.97, 0.955, 0.984}, m), SpeedVerdict::kSlower);
  EXPECT_EQ(verdict_of({1.02, 1.01, 1.025}, m), SpeedVerdict::kSame);
  EXPECT_EQ(verdict_of({1.00, 0.99, 1.01}, m), SpeedVerdict::kSame);
  EXPECT_EQ(verdict_of({1.00, 0.90, 1.10}, m), SpeedVerdict::kInconclusive);
  EXPECT_EQ(verdict_of({1.10, 0.99, 1.15}, m), SpeedVerdict::kInconclusive);
  EXPECT_EQ(verdict_of({0.90, 0.85, 0.95}, m), SpeedVerdict::kSlower);
  EXPECT_EQ(verdict_of({0.98, 0.96, 0.99}, m), SpeedVerdict::kInconclusive);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(verdict_of({2, 0, infinity}, m), SpeedVerdict::kInconclusive);
  EXPECT_EQ(verdict_of({std::nan(""), 1.1, 1.2}, m), SpeedVerdict::kInconclusive);
}

// The sign of a verdict was once inverted in a gate of this kind: faster printed REGRESSION.
TEST(Statistics, ExchangingTheCandidatesExchangesTheVerdict) {
  SplitMix random(3);
  for (int i = 0; i < 2000; ++i) {
    const double estimate = std::exp(0.1 * (random.uniform() - 0.5));
    const double low = estimate * std::exp(-0.05 * random.uniform()),
                 high = estimate * std::exp(0.05 * random.uniform());
    const SpeedVerdict one = verdict_of({estimate, low, high}, 0.03),
                       other = verdict_of({1 / estimate, 1 / high, 1 / low}, 0.03);
    const SpeedVerdict expected = one == SpeedVerdict::kFaster   ? SpeedVerdict::kSlower
                                  : one == SpeedVerdict::kSlower ? SpeedVerdict::kFaster
                                                                 : one;
    ASSERT_EQ(other, expected) << estimate << " " << low << " " << high;
  }
}

TEST(Statistics, IntervalHoldsTheEstimateAndRepeats) {
  SplitMix random(1);
  std::vector<double> values(12);
  for (double& v : values) v = 1 + 0.1 * random.normal();
  const Interval one = bootstrap_median(values, 5), again = bootstrap_median(values, 5);
  EXPECT_LE(one.low, one.estimate);
  EXPECT_GE(one.high, one.estimate);
  EXPECT_EQ(one.low, again.low);
  EXPECT_EQ(one.high, again.high);
  EXPECT_GE(one.low, *std::min_element(values.begin(), values.end()));
  EXPECT_LE(one.high, *std::max_element(values.begin(), values.end()));
}

TEST(Statistics, EqualValuesGiveAPoint) {
  const Interval interval = bootstrap_median(std::vector<double>(9, 0.25), 1);
  EXPECT_EQ(interval.low, 0.25);
  EXPECT_EQ(interval.high, 0.25);
}

TEST(Statistics, TooFewBlocksHaveNoInterval) {
  const Interval interval = bootstrap_median(std::vector<double>(kMinBlocks - 1, 1.0), 1);
  EXPECT_TRUE(std::isinf(interval.low) && std::isinf(interval.high));
  EXPECT_EQ(compare_blocks(std::vector<double>(kMinBlocks - 1, 0.5), 0.03, 1).verdict, SpeedVerdict::kInconclusive);
}

// --- coverage: 95% must mean 95% -------------------------------------------------------------------------------------

enum class Shape { kNormal, kSkewed, kInterrupted };

// Of median 0. The last is what a timer sees: now and then a sample is interrupted.
double draw(SplitMix& random, Shape shape) {
  switch (shape) {
    case Shape::kNormal: return random.normal();
    case Shape::kSkewed: return -std::log(1 - random.uniform()) - std::log(2.0);
    case Shape::kInterrupted: break;
  }
  const double quiet = random.normal();
  return random.uniform() < 0.1 ? 20 * random.normal() : quiet;
}

double coverage_of_medians(int count, Shape shape, int runs) {
  SplitMix random(static_cast<std::uint64_t>(count) * 4 + static_cast<std::uint64_t>(shape));
  int covered = 0;
  std::vector<double> values(static_cast<std::size_t>(count));
  for (int run = 0; run < runs; ++run) {
    for (double& v : values) v = draw(random, shape);
    const Interval interval = bootstrap_median(values, static_cast<std::uint64_t>(run), 400);
    covered += interval.low <= 0 && interval.high >= 0;
  }
  return static_cast<double>(covered) / runs;
}

TEST(Coverage, OfTheBlockBootstrapIsNinetyFivePercent) {
  for (const int count : {12, 16, 30, 100}) {
    for (const Shape shape : {Shape::kNormal, Shape::kSkewed, Shape::kInterrupted}) {
      const double coverage = coverage_of_medians(count, shape, count > 30 ? 1000 : 2500);  // +-0.7% and +-0.45%
      EXPECT_GT(coverage, 0.93) << count << " values, shape " << static_cast<int>(shape);
      EXPECT_LT(coverage, 0.97) << count << " values, shape " << static_cast<int>(shape);
    }
  }
}

// The fewest there are: the range of 6 values itself covers no more than 96.9%, and percentiles move in large steps.
TEST(Coverage, OfTheFewestBlocksIsNearIt) {
  for (const int count : {6, 7, 8}) {
    const double coverage = coverage_of_medians(count, Shape::kNormal, 3000);
    EXPECT_GT(coverage, 0.92) << count;
    EXPECT_LT(coverage, 0.975) << count;
  }
}

// `between`: how much processes differ, in standard deviations of one process's median.
double coverage_of_processes(std::size_t processes, double between, int runs) {
  SplitMix random(static_cast<std::uint64_t>(100 * between) + processes);
  int covered = 0;
  constexpr std::size_t kBlocks = 16;
  const double median_deviation = 1.2533 / std::sqrt(static_cast<double>(kBlocks));
  std::vector<std::vector<double>> all(processes, std::vector<double>(kBlocks));
  for (int run = 0; run < runs; ++run) {
    for (auto& blocks : all) {
      const double offset = between * median_deviation * random.normal();
      for (double& v : blocks) v = offset + random.normal();
    }
    const Interval interval = hierarchical_bootstrap_median(all, static_cast<std::uint64_t>(run), 200).interval;
    covered += interval.low <= 0 && interval.high >= 0;
  }
  return static_cast<double>(covered) / runs;
}

// Where processes hardly differ three of them cannot show it, and the interval is wider than it need be, never
// narrower.
TEST(Coverage, OfTheHierarchicalBootstrap) {
  for (const std::size_t processes : {3u, 5u}) {
    for (const double between : {0.0, 1.0, 2.0, 5.0}) {
      const double coverage = coverage_of_processes(processes, between, 1500);
      EXPECT_GT(coverage, 0.93) << processes << " processes, between " << between;
      EXPECT_LT(coverage, between >= 1 ? 0.975 : 0.992) << processes << " processes, between " << between;
    }
  }
}

// Two say even less of how much processes differ: too wide an interval where they hardly do, and never too narrow.
TEST(Coverage, OfTheHierarchicalBootstrapOfTwo) {
  for (const double between : {0.0, 1.0, 2.0, 3.0, 5.0, 10.0}) {
    const double coverage = coverage_of_processes(2, between, 1500);
    EXPECT_GT(coverage, 0.93) << "between " << between;
    EXPECT_LE(coverage, between >= 2 ? 0.995 : 1) << "between " << between;
  }
}

TEST(Hierarchical, OneProcessIsTheBlockBootstrap) {
  SplitMix random(1);
  std::vector<std::vector<double>> one(1, std::vector<double>(20));
  for (double& v : one[0]) v = random.normal();
  const Interval a = hierarchical_bootstrap_median(one, 3).interval, b = bootstrap_median(one[0], 3);
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
}

TEST(Hierarchical, TellsWhatProcessesDifferByFromWhatBlocksDo) {
  SplitMix random(1);
  std::vector<std::vector<double>> all(3, std::vector<double>(400));
  for (std::size_t p = 0; p < all.size(); ++p)
    for (double& v : all[p]) v = static_cast<double>(p) + 0.1 * random.normal();
  const HierarchicalInterval h = hierarchical_bootstrap_median(all, 1);
  EXPECT_NEAR(h.between, 1, 0.05);
  EXPECT_NEAR(h.within, 0.1 * 1.2533 / 20, 0.003);
  EXPECT_NEAR(h.interval.estimate, 1, 0.05);
  EXPECT_LT(h.interval.low, 0) << "three processes this far apart say little of a fourth";
  all[1].resize(kMinBlocks - 1);
  EXPECT_TRUE(std::isinf(hierarchical_bootstrap_median(all, 1).interval.low));
}

// --- equivalence and power -------------------------------------------------------------------------------------------

TEST(Equivalence, AnEffectAtTheMarginIsSeldomCalledEquivalent) {
  SplitMix random(7);
  int wrong = 0, right = 0;
  constexpr int kRuns = 2000;
  std::vector<double> values(20);
  for (int run = 0; run < kRuns; ++run) {
    for (double& v : values) v = 0.03 + 0.03 * random.normal();
    wrong += tost_signed_rank(values, 0.03) < 0.05;
    for (double& v : values) v -= 0.03;
    right += tost_signed_rank(values, 0.03) < 0.05;
  }
  EXPECT_LT(static_cast<double>(wrong) / kRuns, 0.065);
  EXPECT_GT(static_cast<double>(right) / kRuns, 0.95);
}

TEST(Equivalence, WithoutNoiseEveryEffectIsDetectable) { EXPECT_EQ(minimum_detectable_effect(0, 10), 0); }

// What a run is said to be able to detect, it detects four times in five.
TEST(Power, TheDetectableChangeIsDetectedInFourOfFiveRuns) {
  SplitMix random(11);
  constexpr double kNoise = 0.02;
  constexpr int kRuns = 600;
  std::vector<double> values(24);
  double detectable = 0;
  for (int run = 0; run < 50; ++run) {
    for (double& v : values) v = kNoise * random.normal();
    detectable +=
        std::log1p(detectable_change(bootstrap_median(values, static_cast<std::uint64_t>(run), 500), 24)) / 50;
  }
  int found = 0;
  for (int run = 0; run < kRuns; ++run) {
    for (double& v : values) v = detectable + kNoise * random.normal();
    found += bootstrap_median(values, static_cast<std::uint64_t>(run), 500).low > 0;
  }
  EXPECT_GT(static_cast<double>(found) / kRuns, 0.72);
  EXPECT_LT(static_cast<double>(found) / kRuns, 0.92);
}

// The promise of verdict_of, whatever the noise: a change of the margin is hardly ever called SAME, and half of the
// margin hardly ever more than that.
TEST(Verdict, KeepsItsErrorRatesHoweverLoudTheMachine) {
  constexpr double kMargin = 0.03;
  constexpr int kRuns = 500;
  for (const double noise : {0.005, 0.02, 0.06}) {
    SplitMix random(static_cast<std::uint64_t>(1000 * noise));
    int same = 0, beyond = 0, called = 0;
    std::vector<double> values(24);
    for (int run = 0; run < kRuns; ++run) {
      const auto verdict_at = [&](double effect) {
        for (double& v : values) v = effect + noise * random.normal();
        const Interval log = bootstrap_median(values, static_cast<std::uint64_t>(run), 400);
        return verdict_of({std::exp(log.estimate), std::exp(log.low), std::exp(log.high)}, kMargin);
      };
      const SpeedVerdict at_margin = verdict_at(std::log1p(kMargin)), at_half = verdict_at(0.5 * std::log1p(kMargin));
      same += at_margin == SpeedVerdict::kSame;
      called += at_margin == SpeedVerdict::kFaster;
      beyond += at_half == SpeedVerdict::kFaster || at_half == SpeedVerdict::kSlower;
    }
    EXPECT_LT(same, 0.045 * kRuns) << noise;
    EXPECT_LT(beyond, 0.045 * kRuns) << noise;
    if (noise < 0.01) {
      EXPECT_GT(called, 0.94 * kRuns) << "narrow intervals call a change of the margin what it is";
    }
  }
}

TEST(Statistics, WilcoxonKnownValues) {
  // All six positive: 2 of the 2^6 sign patterns are as extreme.
  EXPECT_NEAR(wilcoxon_signed_rank(std::vector<double>{1, 2, 3, 4, 5, 6}), 2.0 / 64, 1e-12);
  // The negatives have ranks 1 and 2: {}, {1}, {2}, {3} and {1, 2} are the subsets of the ranks that sum to 3 or less.
  EXPECT_NEAR(wilcoxon_signed_rank(std::vector<double>{1.1, -0.4, 2.3, 0.9, 1.7, -0.2, 3.1, 0.8}), 2 * 5.0 / 256,
              1e-12);
  EXPECT_EQ(wilcoxon_signed_rank(std::vector<double>{0, 0, 0}), 1);
  EXPECT_EQ(wilcoxon_signed_rank(std::vector<double>{1, -1}), 1);
  std::vector<double> many(40);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<double>(i) - 19.5;
  EXPECT_GT(wilcoxon_signed_rank(many), 0.9);
  for (double& v : many) v += 15;
  EXPECT_LT(wilcoxon_signed_rank(many), 1e-4);
}

TEST(Statistics, HolmKnownValues) {
  const std::vector<double> adjusted = holm(std::vector<double>{0.01, 0.04, 0.03, 0.005});
  const std::vector<double> expected = {0.03, 0.06, 0.06, 0.02};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(adjusted[i], expected[i], 1e-12);
  EXPECT_EQ(holm(std::vector<double>{0.9, 0.8})[0], 1);
}

// --- drift: why races interleave -------------------------------------------------------------------------------------

// One machine: its clock wanders as a slow random walk plus a steady warming, and each sample has its own noise.
class DriftingMachine {
 public:
  explicit DriftingMachine(std::uint64_t seed) : random_(seed), slope_(0.0002 * random_.normal()) {}
  Sample run(double true_time_us) {
    drift_ += slope_ + 0.001 * random_.normal();
    return {true_time_us * std::exp(drift_ + 0.004 * random_.normal()), 0};
  }

 private:
  SplitMix random_;
  double slope_, drift_ = 0;
};

RaceResult race_on_drifting_machine(std::uint64_t seed, double candidate_us, double incumbent_us) {
  DriftingMachine machine(seed);
  RaceOptions options;
  options.seed = seed;
  options.min_blocks = options.max_blocks = 16;
  options.early_drop = false;
  options.max_seconds = 60;
  return race([&] { return machine.run(candidate_us); }, [&] { return machine.run(incumbent_us); }, options);
}

TEST(Drift, InterleavedBlocksOfIdenticalCandidatesKeepTheirFalseAlarmRate) {
  constexpr int kRuns = 300;
  int alarms = 0, verdicts = 0;
  for (int run = 0; run < kRuns; ++run) {
    const Comparison c = race_on_drifting_machine(1000 + static_cast<std::uint64_t>(run), 100, 100).comparison;
    alarms += c.ci95_low > 1 || c.ci95_high < 1;
    verdicts += c.verdict == SpeedVerdict::kFaster || c.verdict == SpeedVerdict::kSlower;
  }
  EXPECT_LT(static_cast<double>(alarms) / kRuns, 0.085);
  EXPECT_EQ(verdicts, 0) << "the margin keeps what alarms there are from becoming verdicts";
}

TEST(Drift, TwoSequentialRunsOfIdenticalCandidatesRaiseFalseAlarms) {
  constexpr int kRuns = 300;
  int alarms = 0;
  for (int run = 0; run < kRuns; ++run) {
    DriftingMachine machine(1000 + static_cast<std::uint64_t>(run));
    std::vector<double> first, second;
    for (int i = 0; i < 32; ++i) first.push_back(machine.run(100).time_us);
    for (int i = 0; i < 32; ++i) second.push_back(machine.run(100).time_us);
    alarms += mann_whitney(first, second).p_value < 0.05;
  }
  EXPECT_GT(static_cast<double>(alarms) / kRuns, 0.5);
}

TEST(Drift, ARealDifferenceIsSeenThroughTheDrift) {
  int faster = 0, slower = 0, same = 0;
  for (int run = 0; run < 50; ++run) {
    faster +=
        race_on_drifting_machine(static_cast<std::uint64_t>(run), 100, 105).comparison.verdict == SpeedVerdict::kFaster;
    slower +=
        race_on_drifting_machine(static_cast<std::uint64_t>(run), 105, 100).comparison.verdict == SpeedVerdict::kSlower;
    same +=
        race_on_drifting_machine(static_cast<std::uint64_t>(run), 100, 100.5).comparison.verdict == SpeedVerdict::kSame;
  }
  EXPECT_GE(faster, 48);
  EXPECT_GE(slower, 48);
  EXPECT_GE(same, 48);
}

TEST(Race, ThreeTimesSlowerIsDroppedAfterTwoBlocks) {
  int samples = 0;
  const auto fixed = [&](double us) { return [&samples, us] { return ++samples, Sample{us, 0}; }; };
  const RaceResult result = race(fixed(350), fixed(100), {});
  EXPECT_TRUE(result.dropped);
  EXPECT_EQ(result.comparison.verdict, SpeedVerdict::kSlower);
  EXPECT_EQ(samples, 8);
}

TEST(Race, ClearlySlowerIsDroppedOnceTheIntervalSaysSo) {
  SplitMix random(2);
  const auto noisy = [&](double us) {
    return [&random, us] { return Sample{us * std::exp(0.002 * random.normal()), 0}; };
  };
  RaceOptions options;
  options.min_blocks = options.max_blocks = 40;
  const RaceResult result = race(noisy(120), noisy(100), options);
  EXPECT_TRUE(result.dropped);
  EXPECT_LT(result.comparison.blocks, 10);
}

TEST(Race, StopsWhenTheIntervalIsNarrowAndNotBefore) {
  SplitMix random(2);
  const auto noisy = [&](double sigma) {
    return [&random, sigma] { return Sample{100 * std::exp(sigma * random.normal()), 0}; };
  };
  EXPECT_EQ(race(noisy(0.001), noisy(0.001), {}).comparison.blocks, RaceOptions{}.min_blocks);
  const RaceResult loud = race(noisy(0.2), noisy(0.2), {});
  EXPECT_EQ(loud.comparison.blocks, RaceOptions{}.max_blocks);
  EXPECT_EQ(loud.comparison.verdict, SpeedVerdict::kInconclusive);
  EXPECT_GT(loud.comparison.detectable, 0.03);
}

TEST(Race, LaunchesTooSlowForTheTimeEndInconclusive) {
  RaceOptions options;
  options.max_seconds = 1e-9;
  const auto fixed = [](double us) { return [us] { return Sample{us, 0}; }; };
  const RaceResult result = race(fixed(100), fixed(110), options);
  EXPECT_EQ(result.comparison.blocks, 1);
  EXPECT_EQ(result.comparison.verdict, SpeedVerdict::kInconclusive);
}

TEST(Race, ATimerThatReturnsNothingIsNotBelieved) {
  const auto fixed = [](double us) { return [us] { return Sample{us, 0}; }; };
  EXPECT_THROW(race(fixed(0), fixed(100), {}), Error);
  EXPECT_THROW(race(fixed(std::nan("")), fixed(100), {}), Error);
}

}  // namespace
}  // namespace flashcore
