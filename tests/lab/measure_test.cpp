// The measurement engine on a simulated device, whose true times are known.

#include "lab/measure/engine.h"
#include "lab/measure/slowdown.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "core/error.h"
#include "lab/fake.h"
#include "lab/gates/pair.h"

namespace flashcore {
namespace {

class MeasureTest : public ::testing::Test {
 protected:
  MeasureTest() {
    problem_.dtype = DType::kF32;
    problem_.seqlen_q = problem_.seqlen_kv = 4;
    problem_.head_dim = problem_.head_dim_v = 4;
    oracle_ = shared_oracles().get(problem_, Pattern::kNormal, 5, 1e9);
  }

  CompiledCandidate compiled(const std::string& text) {
    const DeviceLimits limits;  // a CPU; making a device here would put another in the place of the test's
    CompiledCandidate c;
    c.candidate = parse_candidate(text, problem_, limits);
    c.artifact = compile_candidate(c.candidate, problem_, limits);
    return c;
  }

  Measurement race_of(const test::FakeDeviceOptions& machine, const std::string& candidate, const std::string& baseline,
                      MeasureOptions options = {}) {
    const auto device = test::make_fake_device(machine);
    const CompiledCandidate theirs = compiled(baseline);
    if (options.order_seed == 0) options.order_seed = machine.seed;
    return measure(*device, problem_, *oracle_, compiled(candidate), &theirs, options);
  }

  test::AllFakeFamilies families_;
  PlacedProblem problem_;
  std::shared_ptr<const Oracle> oracle_;
};

// What `ab` asks of each process: enough blocks to be sure.
MeasureOptions thorough() {
  MeasureOptions options;
  options.min_blocks = 16;
  options.max_blocks = 400;
  options.max_seconds = 60;
  options.target_half_width = 0.2;
  return options;
}

constexpr int kRepeats = 200;
constexpr double kAlpha = 0.05;

TEST_F(MeasureTest, ACandidateAgainstItselfRaisesFewFalseAlarms) {
  int alarms = 0, verdicts = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto machine = test::realistic_device(1000 + static_cast<std::uint64_t>(repeat));
    const Comparison c = race_of(machine, "fake_none", "fake_none", thorough()).race.comparison;
    alarms += c.ci95_low > 1 || c.ci95_high < 1;
    verdicts += c.verdict == SpeedVerdict::kFaster || c.verdict == SpeedVerdict::kSlower;
  }
  RecordProperty("alarms", alarms);
  EXPECT_LE(alarms, 2 * kAlpha * kRepeats);
  EXPECT_GT(alarms, 0) << "intervals that never exclude 1 are too wide to say anything";
  EXPECT_EQ(verdicts, 0) << "the margin keeps what alarms there are from becoming verdicts";
}

// Why the verdict is not Mann and Whitney's: the same machines, one run after the other.
TEST_F(MeasureTest, IndependentSamplesOfACandidateAndItselfRaiseManyFalseAlarms) {
  int alarms = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto device = test::make_fake_device(test::realistic_device(1000 + static_cast<std::uint64_t>(repeat)));
    std::vector<double> runs[2];
    for (std::vector<double>& run : runs) {
      const Measurement alone = measure(*device, problem_, *oracle_, compiled("fake_none"), nullptr, {});
      for (const Sample& s : alone.candidate.samples) run.push_back(s.time_us);
    }
    alarms += mann_whitney(runs[0], runs[1]).p_value < kAlpha;
  }
  EXPECT_GT(alarms, kRepeats / 2);
}

TEST_F(MeasureTest, APlantedSlowdownIsCalledWhatItIs) {
  int three = 0, half = 0, faster = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto machine = test::realistic_device(5000 + static_cast<std::uint64_t>(repeat));
    three +=
        race_of(machine, "fake_slower_3", "fake_none", thorough()).race.comparison.verdict == SpeedVerdict::kSlower;
    faster +=
        race_of(machine, "fake_none", "fake_slower_3", thorough()).race.comparison.verdict == SpeedVerdict::kFaster;
    half +=
        race_of(machine, "fake_slower_half", "fake_none", thorough()).race.comparison.verdict == SpeedVerdict::kSlower;
  }
  EXPECT_GE(three, 0.95 * kRepeats);
  EXPECT_GE(faster, 0.95 * kRepeats);
  EXPECT_EQ(half, 0);
}

TEST_F(MeasureTest, ExtraLaunchesArePlantedExactly) {
  test::FakeDeviceOptions quiet;
  quiet.noise = quiet.drift = 0;
  MeasureOptions options;
  options.wrapper = repeat_launches(500);  // two launches a sample: one of them twice
  const Measurement m = race_of(quiet, "fake_none", "fake_none", options);
  EXPECT_NEAR(m.race.comparison.speedup, 1 / 1.5, 1e-9);
  EXPECT_TRUE(m.candidate_wrong.empty() && m.baseline_wrong.empty());
}

// On this machine one buffer is up to 5% slower than another. Each candidate alone shows it; their race must not.
TEST_F(MeasureTest, TradingBuffersCancelsTheirPlaces) {
  test::FakeDeviceOptions placed;
  placed.noise = placed.drift = 0.0002;
  placed.placement = 0.05;
  double worst = 0;
  std::set<double> places;
  for (int repeat = 0; repeat < 20; ++repeat) {
    placed.seed = static_cast<std::uint64_t>(repeat);
    const Measurement m = race_of(placed, "fake_none", "fake_none");
    worst = std::max(worst, std::abs(std::log(m.race.comparison.speedup)));
    for (const Sample& s : m.candidate.samples) places.insert(std::round(s.time_us));
  }
  EXPECT_LT(worst, 0.002);
  EXPECT_GT(places.size(), 1u) << "the machine has no places that matter: this test shows nothing";
}

TEST_F(MeasureTest, TimeLimitsAreKeptByTheDevicesClock) {
  test::FakeDeviceOptions loud;
  loud.noise = 0.3;
  MeasureOptions options;
  options.max_blocks = 100000;
  options.max_seconds = 2;
  options.gap_ms = 10;  // 40 ms a block, and the launches' own 0.8 ms
  const Measurement m = race_of(loud, "fake_none", "fake_none", options);
  EXPECT_NEAR(static_cast<double>(m.race.log_ratios.size()), 49, 3);
  options.condition = Condition::kSustained;  // no gaps
  EXPECT_GT(race_of(loud, "fake_none", "fake_none", options).race.log_ratios.size(), 1000u);
}

TEST_F(MeasureTest, SustainedWarmsUpAndLasts) {
  const auto device = test::make_fake_device();
  MeasureOptions options;
  options.condition = Condition::kSustained;
  options.max_seconds = 0.01;
  const double start = device->now_seconds();
  measure(*device, problem_, *oracle_, compiled("fake_none"), nullptr, options);
  EXPECT_GT(device->now_seconds() - start, 0.3) << "100 ms of warm-up, 200 ms of samples";
}

TEST_F(MeasureTest, AQuietRaceEndsAtTheFewestBlocks) {
  test::FakeDeviceOptions quiet;
  quiet.noise = quiet.drift = 1e-4;
  EXPECT_EQ(race_of(quiet, "fake_none", "fake_none").race.log_ratios.size(), 8u);
}

TEST_F(MeasureTest, PowerAndThrottlingAreNotedWithEachSample) {
  test::FakeDeviceOptions capped;
  capped.throttle_every_us = 8000;
  const Measurement m = race_of(capped, "fake_none", "fake_none", thorough());
  const int throttled = count_throttled(m.candidate.samples);
  EXPECT_GT(throttled, 0);
  EXPECT_LT(throttled, static_cast<int>(m.candidate.samples.size()));
  for (const Sample& s : m.candidate.samples) EXPECT_EQ(s.power_w, s.throttle == "sw_power_cap" ? 700 : 500);
}

TEST_F(MeasureTest, BothOrdersAreRunAndEachBlockHoldsTwoOfEach) {
  const Measurement m = race_of({}, "fake_none", "fake_none", thorough());
  EXPECT_EQ(m.race.candidate.size(), 2 * m.race.log_ratios.size());
  EXPECT_EQ(m.race.incumbent.size(), 2 * m.race.log_ratios.size());
  const auto outside = std::count(m.race.candidate_outside.begin(), m.race.candidate_outside.end(), true);
  EXPECT_GT(outside, 0);
  EXPECT_LT(outside, static_cast<std::ptrdiff_t>(m.race.log_ratios.size()));
}

TEST_F(MeasureTest, OutputsThatAreOnlyOnceWrittenAreSeenOnEitherSide) {
  EXPECT_NE(race_of({}, "fake_first_call_only", "fake_none").candidate_wrong, "");
  EXPECT_NE(race_of({}, "fake_none", "fake_first_call_only").baseline_wrong, "");
  EXPECT_EQ(race_of({}, "fake_none", "fake_first_call_only").candidate_wrong, "");
}

TEST_F(MeasureTest, ATimeBelowTheFloorIsAnError) {
  const auto device = test::make_fake_device();
  const Measurement m = measure(*device, problem_, *oracle_, compiled("fake_too_fast"), nullptr, {});
  ASSERT_TRUE(why_below_floor(m.candidate));
  EXPECT_NE(why_below_floor(m.candidate)->find("faster than the floor"), std::string::npos);
  EXPECT_FALSE(why_below_floor(measure(*device, problem_, *oracle_, compiled("fake_none"), nullptr, {}).candidate));
}

TEST_F(MeasureTest, AnAuditMayLaunchTheCandidateAgain) {
  MeasureOptions options;
  int audits = 0;
  options.audit = [&](PreparedCandidate& prepared, int set) {
    ++audits;
    prepared.launch(set, 0)();
    EXPECT_EQ(prepared.sets(), 2);
  };
  race_of({}, "fake_none", "fake_none", options);
  EXPECT_EQ(audits, 1);
}

// --- pairs: the gates of both, then the race ------------------------------------------------------------------------

PairRequest pair_of(const std::string& candidate, const std::string& baseline) {
  PairRequest request;
  request.problem.dtype = DType::kF32;
  request.problem.seqlen_q = request.problem.seqlen_kv = 33;
  request.problem.head_dim = request.problem.head_dim_v = 16;
  request.problem_name = "small";
  request.candidate = candidate;
  request.baseline = baseline;
  request.measure.max_blocks = 12;
  return request;
}

class PairTest : public ::testing::Test {
 protected:
  PairOutcome outcome(const PairRequest& request) { return measure_pair(*device_, request); }
  test::AllFakeFamilies families_;
  std::unique_ptr<Device> device_ = test::make_fake_device();
};

TEST_F(PairTest, BothPassTheirGatesAndAreTimed) {
  const PairOutcome pair = outcome(pair_of("fake_none:block=32", "fake_none:block=16"));
  EXPECT_EQ(pair.ended, PairEnded::kMeasured) << pair.message;
  EXPECT_TRUE(passed_gate(pair.candidate, Gate::kCorrectness) && passed_gate(pair.baseline, Gate::kCorrectness));
  EXPECT_EQ(pair.candidate.config, "block=32,unroll=1,spread=0");
  ASSERT_TRUE(pair.candidate.timing && pair.baseline.timing);
  EXPECT_LT(pair.candidate.timing->p50_us, pair.baseline.timing->p50_us);
  EXPECT_GT(median(pair.log_ratios), 0.1) << "block=32 is the faster one";
}

TEST_F(PairTest, TheSameCodeIsNotTimedUnlessAsked) {
  PairRequest request = pair_of("fake_none", "fake_none:block=16");
  EXPECT_EQ(outcome(request).ended, PairEnded::kSameCode);
  EXPECT_FALSE(outcome(request).candidate.timing);
  request.same_code = true;
  EXPECT_EQ(outcome(request).ended, PairEnded::kMeasured);
}

TEST_F(PairTest, WhoIsWrongIsNamedAndGetsNoTime) {
  const PairOutcome wrong = outcome(pair_of("fake_wrong_tail", "fake_none"));
  EXPECT_EQ(wrong.ended, PairEnded::kCandidateFailed);
  EXPECT_EQ(wrong.candidate.ended, Ended::kIncorrect);
  EXPECT_FALSE(wrong.candidate.timing || wrong.baseline.timing);
  const PairOutcome red = outcome(pair_of("fake_none", "fake_wrong_tail"));
  EXPECT_EQ(red.ended, PairEnded::kBaselineFailed);
  EXPECT_FALSE(red.candidate.timing);
  EXPECT_EQ(outcome(pair_of("fake_wrong_tail", "fake_wrong_tail:block=32")).ended, PairEnded::kBaselineFailed)
      << "a candidate is not excused by its baseline's failure, nor judged against it";
}

TEST_F(PairTest, ABaselineThatPassedItsGatesIsNotAskedAgain) {
  PairRequest request = pair_of("fake_wrong_tail", "fake_none");
  request.baseline_gates = false;
  const PairOutcome pair = outcome(request);
  EXPECT_EQ(pair.ended, PairEnded::kCandidateFailed) << "the candidate is";
  EXPECT_FALSE(passed_gate(pair.baseline, Gate::kCorrectness));
}

TEST_F(PairTest, ACandidateAgainstItselfPassesItsGatesOnce) {
  const auto gates_of = [&](const PairRequest& request) {
    std::map<std::string, int> entered;
    EXPECT_EQ(measure_pair(*device_, request, [&](const std::string& stage) { ++entered[stage]; }).ended,
              PairEnded::kMeasured);
    return entered;
  };
  PairRequest request = pair_of("fake_none:block=32", "fake_none:block=32");
  request.same_code = true;
  std::map<std::string, int> entered = gates_of(request);
  EXPECT_EQ(entered["correctness of the baseline"], 1);
  EXPECT_EQ(entered["correctness of the candidate"], 0);
  EXPECT_TRUE(passed_gate(outcome(request).candidate, Gate::kCorrectness)) << "and its trial says so";
  // The baseline's were not asked for, so these are the only ones.
  request.baseline_gates = false;
  entered = gates_of(request);
  EXPECT_EQ(entered["correctness of the candidate"], 1);
  EXPECT_EQ(gates_of(pair_of("fake_none:block=32", "fake_none:block=16"))["correctness of the candidate"], 1);
}

TEST_F(PairTest, TimedOutputsAndTheFloorAreJudgedOnBothSides) {
  PairRequest request = pair_of("fake_first_call_only", "fake_none");
  request.gates = false;
  EXPECT_EQ(outcome(request).ended, PairEnded::kCandidateFailed);
  EXPECT_EQ(outcome(pair_of("fake_too_fast", "fake_none")).ended, PairEnded::kCandidateFailed);
  const PairOutcome impossible = outcome(pair_of("fake_none", "fake_too_fast"));
  EXPECT_EQ(impossible.ended, PairEnded::kBaselineFailed);
  EXPECT_EQ(impossible.baseline.ended, Ended::kError);
}

TEST_F(PairTest, ARequestAndItsOutcomeSurviveThePipe) {
  PairRequest request = pair_of("fake_none:block=32", "fake_none");
  request.measure.sample_us = 30;
  request.measure.order_seed = 77;
  request.measure.gap_ms = 0.25;
  request.gates = false;
  const nlohmann::json once = request;
  EXPECT_EQ(nlohmann::json(once.get<PairRequest>()), once);
  const nlohmann::json answered = outcome(request);
  EXPECT_EQ(nlohmann::json(answered.get<PairOutcome>()), answered);
}

}  // namespace
}  // namespace flashcore
