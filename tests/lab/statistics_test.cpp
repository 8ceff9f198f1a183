#include "lab/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "lab/race.h"

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
  EXPECT_EQ(verdict_of({1.10, 1.05, 1.15}, m), "FASTER");
  EXPECT_EQ(verdict_of({1.04, 1.001, 1.08}, m), "INCONCLUSIVE");  // as good as nothing is not excluded
  EXPECT_EQ(verdict_of({1.03, 1.016, 1.045}, m), "FASTER");
  EXPECT_EQ(verdict_of({1.02, 1.01, 1.035}, m), "INCONCLUSIVE");  // perhaps by less than half of the margin
  EXPECT_EQ(verdict_of({1.022, 1.016, 1.029}, m), "SAME");        // equal for all that the margin cares
  EXPECT_EQ(verdict_of({0.97, 0.955, 0.984}, m), "SLOWER");
  EXPECT_EQ(verdict_of({1.02, 1.01, 1.025}, m), "SAME");
  EXPECT_EQ(verdict_of({1.00, 0.99, 1.01}, m), "SAME");
  EXPECT_EQ(verdict_of({1.00, 0.90, 1.10}, m), "INCONCLUSIVE");
  EXPECT_EQ(verdict_of({1.10, 0.99, 1.15}, m), "INCONCLUSIVE");
  EXPECT_EQ(verdict_of({0.90, 0.85, 0.95}, m), "SLOWER");
  EXPECT_EQ(verdict_of({0.98, 0.96, 0.99}, m), "INCONCLUSIVE");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(verdict_of({2, 0, infinity}, m), "INCONCLUSIVE");
  EXPECT_EQ(verdict_of({std::nan(""), 1.1, 1.2}, m), "INCONCLUSIVE");
}

// The sign of a verdict was once inverted in a gate of this kind: faster printed REGRESSION.
TEST(Statistics, ExchangingTheCandidatesExchangesTheVerdict) {
  SplitMix random(3);
  for (int i = 0; i < 2000; ++i) {
    const double estimate = std::exp(0.1 * (random.uniform() - 0.5));
    const double low = estimate * std::exp(-0.05 * random.uniform()),
                 high = estimate * std::exp(0.05 * random.uniform());
    const std::string one = verdict_of({estimate, low, high}, 0.03),
                      other = verdict_of({1 / estimate, 1 / high, 1 / low}, 0.03);
    const std::string expected = one == "FASTER" ? "SLOWER" : one == "SLOWER" ? "FASTER" : one;
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
  EXPECT_EQ(compare_blocks(std::vector<double>(kMinBlocks - 1, 0.5), 0.03, 1).verdict, "INCONCLUSIVE");
}

// 95% must mean 95%, also for few blocks and for skewed data; 600 simulations put the standard error at 0.9%.
TEST(Statistics, IntervalCoversTheTrueMedian) {
  for (const int count : {6, 7, 12, 30}) {
    for (const bool skewed : {false, true}) {
      SplitMix random(static_cast<std::uint64_t>(count) * 2 + skewed);
      int covered = 0;
      constexpr int kRuns = 600;
      std::vector<double> values(static_cast<std::size_t>(count));
      for (int run = 0; run < kRuns; ++run) {
        for (double& v : values) v = skewed ? -std::log(1 - random.uniform()) - std::log(2.0) : random.normal();
        const Interval interval = bootstrap_median(values, static_cast<std::uint64_t>(run), 400);
        covered += interval.low <= 0 && interval.high >= 0;
      }
      const double coverage = static_cast<double>(covered) / kRuns;
      EXPECT_GT(coverage, 0.915) << count << " values, skewed " << skewed;
      EXPECT_LT(coverage, 0.995) << "an interval that always covers says nothing: " << count << " values, skewed "
                                 << skewed;
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

double mann_whitney_z(const std::vector<double>& a, const std::vector<double>& b) {
  double u = 0;
  for (const double x : a)
    for (const double y : b) u += x < y ? 1 : 0;
  const double n = static_cast<double>(a.size()), m = static_cast<double>(b.size());
  return (u - n * m / 2) / std::sqrt(n * m * (n + m + 1) / 12);
}

TEST(Drift, InterleavedBlocksOfIdenticalCandidatesKeepTheirFalseAlarmRate) {
  constexpr int kRuns = 300;
  int alarms = 0, verdicts = 0;
  for (int run = 0; run < kRuns; ++run) {
    const Comparison c = race_on_drifting_machine(1000 + static_cast<std::uint64_t>(run), 100, 100).comparison;
    alarms += c.ci95_low > 1 || c.ci95_high < 1;
    verdicts += c.verdict == "FASTER" || c.verdict == "SLOWER";
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
    alarms += std::abs(mann_whitney_z(first, second)) > 1.96;
  }
  EXPECT_GT(static_cast<double>(alarms) / kRuns, 0.5);
}

TEST(Drift, ARealDifferenceIsSeenThroughTheDrift) {
  int faster = 0, slower = 0, same = 0;
  for (int run = 0; run < 50; ++run) {
    faster += race_on_drifting_machine(static_cast<std::uint64_t>(run), 100, 105).comparison.verdict == "FASTER";
    slower += race_on_drifting_machine(static_cast<std::uint64_t>(run), 105, 100).comparison.verdict == "SLOWER";
    same += race_on_drifting_machine(static_cast<std::uint64_t>(run), 100, 100.5).comparison.verdict == "SAME";
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
  EXPECT_EQ(result.comparison.verdict, "SLOWER");
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
  EXPECT_EQ(loud.comparison.verdict, "INCONCLUSIVE");
  EXPECT_GT(loud.comparison.detectable, 0.03);
}

TEST(Race, LaunchesTooSlowForTheTimeEndInconclusive) {
  RaceOptions options;
  options.max_seconds = 1e-9;
  const auto fixed = [](double us) { return [us] { return Sample{us, 0}; }; };
  const RaceResult result = race(fixed(100), fixed(110), options);
  EXPECT_EQ(result.comparison.blocks, 1);
  EXPECT_EQ(result.comparison.verdict, "INCONCLUSIVE");
}

TEST(Race, ATimerThatReturnsNothingIsNotBelieved) {
  const auto fixed = [](double us) { return [us] { return Sample{us, 0}; }; };
  EXPECT_THROW(race(fixed(0), fixed(100), {}), Error);
  EXPECT_THROW(race(fixed(std::nan("")), fixed(100), {}), Error);
}

}  // namespace
}  // namespace flashcore
