#include "lab/gates/evaluate.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "lab/fake.h"
#include "lab/gates/gates.h"
#include "lab/gates/pair.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using test::AllFakeFamilies;
using test::make_fake_device;

PlacedProblem ragged_problem() {
  PlacedProblem p;
  p.dtype = DType::kF32;
  p.heads_q = 2;
  p.heads_kv = 1;
  p.seqlen_q = 37;
  p.seqlen_kv = 71;
  p.head_dim = p.head_dim_v = 16;
  p.mask = Mask::causal();
  return p;
}

EvaluateRequest request_for(const std::string& candidate) {
  EvaluateRequest request;
  request.problem = ragged_problem();
  request.problem_name = "ragged";
  request.suite = "test";
  request.candidate = candidate;
  return request;
}

class EvaluateTest : public ::testing::Test {
 protected:
  Trial run(const EvaluateRequest& request) { return evaluate(*device_, request); }
  Trial run(const std::string& candidate) { return run(request_for(candidate)); }
  // The gate that ended the trial, if one did.
  static std::optional<Gate> stopped_by(const Trial& trial) {
    for (const Verdict& v : trial.gates)
      if (v.status == GateStatus::kFailed || v.status == GateStatus::kError) return v.gate;
    return std::nullopt;
  }

  AllFakeFamilies families_;
  std::unique_ptr<Device> device_ = make_fake_device();
};

// What a profile looks at: it is counted though it fails the resource gate, and ends "resource" all the same.
TEST(PastResources, ACandidateThatFailsTheResourceGateGoesOnWhereAsked) {
  const auto device = open_device("emulator:sm_80");
  // The emulator's compiler reports no spills, so the limit is what is too small. The device is no constant.
  const_cast<DeviceInfo&>(device->info()).limits.max_threads_per_block = 31;
  EvaluateRequest request;
  request.problem = PlacedProblem::parse("b1_h1_s16_d16_fp16");
  request.candidate = "ref_fwd";
  request.phase = Phase::kCheck;
  request.level = GateLevel::kQuick;
  const Trial stopped = evaluate(*device, request);
  EXPECT_EQ(stopped.ended, Ended::kResource) << stopped.message;
  EXPECT_EQ(find_gate(stopped, Gate::kCorrectness), nullptr);
  EXPECT_EQ(find_gate(stopped, Gate::kCounters), nullptr);
  request.past_resources = true;
  const Trial looked_at = evaluate(*device, nlohmann::json(request).get<EvaluateRequest>());
  EXPECT_EQ(looked_at.ended, Ended::kResource) << looked_at.message;
  EXPECT_NE(looked_at.message.find("threads a block; allowed 1 to 31"), std::string::npos) << looked_at.message;
  EXPECT_TRUE(passed_gate(looked_at, Gate::kCorrectness));
  EXPECT_TRUE(passed_gate(looked_at, Gate::kCounters));
  EXPECT_FALSE(is_ranked(looked_at));
}

// Of a pair only the candidate is excused, only where asked, and only from that gate.
TEST(PastResources, OfAPairTheCandidateAloneIsExcused) {
  const auto device = open_device("emulator:sm_80");
  // The device is no constant.
  const_cast<DeviceInfo&>(device->info()).limits.max_threads_per_block = 64;
  PairRequest request;
  request.problem = PlacedProblem::parse("b1_h1_s16_d16_fp16");
  request.candidate = "ref_fwd:num_warps=4";
  request.baseline = "ref_fwd:num_warps=2";
  request.level = GateLevel::kQuick;
  request.time = false;
  const PairOutcome stopped = measure_pair(*device, request);
  EXPECT_EQ(stopped.ended, PairEnded::kCandidateFailed) << stopped.message;
  EXPECT_EQ(stopped.candidate.ended, Ended::kResource);
  EXPECT_EQ(find_gate(stopped.candidate, Gate::kCorrectness), nullptr);
  request.past_resources = true;
  const auto travelled = nlohmann::json(request).get<PairRequest>();
  EXPECT_TRUE(travelled.past_resources);
  const PairOutcome excused = measure_pair(*device, travelled);
  EXPECT_EQ(excused.ended, PairEnded::kNotTimed) << excused.message;
  EXPECT_EQ(excused.candidate.ended, Ended::kResource) << "its trial says so all the same";
  EXPECT_NE(excused.candidate.message.find("threads a block"), std::string::npos) << excused.candidate.message;
  EXPECT_TRUE(passed_gate(excused.candidate, Gate::kCorrectness));
  EXPECT_FALSE(is_ranked(excused.candidate));
  EXPECT_EQ(excused.baseline.ended, Ended::kPassed);
  std::swap(request.candidate, request.baseline);
  const PairOutcome red = measure_pair(*device, request);
  EXPECT_EQ(red.ended, PairEnded::kBaselineFailed) << red.message;
  EXPECT_EQ(red.baseline.ended, Ended::kResource);
}

TEST_F(EvaluateTest, ASoundCandidatePassesEveryGateInOrder) {
  std::string stages;
  EvaluateRequest request = request_for("fake_none:block=32");
  request.patterns = all_patterns();
  const Trial trial = evaluate(*device_, request, [&](Gate gate) { stages += word_of(gate) + " "; });
  EXPECT_EQ(trial.ended, Ended::kPassed) << trial.message;
  EXPECT_EQ(stages, "valid compile resource correctness performance ");
  EXPECT_EQ(trial.config, "block=32,unroll=1,spread=0");
  ASSERT_TRUE(trial.timing && trial.error && trial.bound);
  EXPECT_NEAR(trial.timing->p50_us, test::fake_cost_us({32, 1, 0}), 5);
  EXPECT_GT(trial.timing->samples.size(), 8u);
  EXPECT_LE(trial.error->rel, trial.bound->rel);
  EXPECT_FALSE(trial.source_hash.empty());
  // The lines of the report's roofline.
  const auto ceilings = find_gate(trial, Gate::kPerformance)->evidence.at("ceilings").get<Ceilings>();
  EXPECT_EQ(ceilings.read_gbps, device_->ceilings().read_gbps);
  EXPECT_EQ(trial.problem_name, "ragged");
}

// Checks of normal data, and of what is judged first, run whatever the order.
TEST_F(EvaluateTest, NormalDataAreJudgedFirst) {
  EvaluateRequest request = request_for("fake_none:block=32");
  request.patterns = all_patterns();
  std::ranges::reverse(request.patterns);
  const Trial trial = run(request);
  const Verdict* verdict = find_gate(trial, Gate::kCorrectness);
  ASSERT_NE(verdict, nullptr) << trial.message;
  EXPECT_EQ(verdict->evidence.at("patterns").at(0).at("pattern"), "normal");
  EXPECT_EQ(verdict->evidence.at("patterns").size(), request.patterns.size());
}

TEST_F(EvaluateTest, EveryDtypeAndLayoutPasses) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
    for (const Layout layout : {Layout::kBhsd, Layout::kBshd, Layout::kStrided}) {
      EvaluateRequest request = request_for("fake_none");
      request.problem.dtype = dtype;
      request.problem.layout = layout;
      request.time = false;
      const Trial trial = run(request);
      EXPECT_EQ(trial.ended, Ended::kPassed) << request.problem.id() << ": " << trial.message;
      EXPECT_FALSE(trial.timing);
    }
}

TEST_F(EvaluateTest, DegenerateProblemsPassWithoutATime) {
  for (const auto& [rows, keys] : {std::pair{0, 5}, {5, 0}, {0, 0}}) {
    EvaluateRequest request = request_for("fake_none");
    request.problem.seqlen_q = rows;
    request.problem.seqlen_kv = keys;
    const Trial trial = run(request);
    EXPECT_EQ(trial.ended, Ended::kPassed) << trial.message;
    EXPECT_EQ(trial.timing.has_value(), rows > 0);
  }
}

struct Planted {
  const char* candidate;
  Gate gate;
  Ended ended;
  const char* word;  // in the reason
};

class PlantedFault : public EvaluateTest, public ::testing::WithParamInterface<Planted> {};
INSTANTIATE_TEST_SUITE_P(
    Evaluate, PlantedFault,
    ::testing::Values(Planted{"fake_wrong_tail", Gate::kCorrectness, Ended::kIncorrect, "exceeds"},
                      Planted{"fake_missing_mask", Gate::kCorrectness, Ended::kIncorrect, "exceeds"},
                      Planted{"fake_missing_rescale", Gate::kCorrectness, Ended::kIncorrect, "exceeds"},
                      Planted{"fake_out_of_bounds", Gate::kCorrectness, Ended::kIncorrect, "red zone around o"},
                      Planted{"fake_leaves_row", Gate::kCorrectness, Ended::kIncorrect, "never written"},
                      Planted{"fake_first_call_only", Gate::kCorrectness, Ended::kIncorrect, "repeated"},
                      Planted{"fake_mutates_input", Gate::kCorrectness, Ended::kIncorrect, "input k"},
                      Planted{"fake_nondeterministic", Gate::kCorrectness, Ended::kIncorrect, "other bits"},
                      Planted{"fake_cached_result", Gate::kCorrectness, Ended::kIncorrect, "doubled"},
                      Planted{"fake_too_fast", Gate::kPerformance, Ended::kError, "faster than the floor"},
                      Planted{"fake_none:block=64,unroll=4", Gate::kValid, Ended::kInvalid, "no room"},
                      Planted{"fake_none:block=17", Gate::kValid, Ended::kInvalid, "block"},
                      Planted{"no_such_family", Gate::kValid, Ended::kInvalid, "known"}),
    [](const auto& parameter) {
      std::string name = parameter.param.candidate;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
      return name;
    });

TEST_P(PlantedFault, IsCaughtByItsGate) {
  const Planted planted = GetParam();
  const Trial trial = run(planted.candidate);
  EXPECT_EQ(stopped_by(trial), planted.gate) << trial.message;
  EXPECT_EQ(trial.ended, planted.ended);
  EXPECT_NE(trial.message.find(planted.word), std::string::npos) << trial.message;
  EXPECT_FALSE(trial.timing) << "a time belongs only to a candidate that passed";
  EXPECT_EQ(trial.gates.back().gate, planted.gate) << "the first failure ends the trial";
}

TEST_F(EvaluateTest, WritingBetweenStridedRowsIsCaught) {
  EvaluateRequest request = request_for("fake_writes_gaps");
  request.problem.layout = Layout::kStrided;
  const Trial trial = run(request);
  EXPECT_EQ(trial.ended, Ended::kIncorrect);
  EXPECT_NE(trial.message.find("between the rows"), std::string::npos) << trial.message;
}

TEST_F(EvaluateTest, ADeviceFaultPassesThrough) { EXPECT_THROW(run("fake_device_fault"), DeviceFault); }

TEST_F(EvaluateTest, ThreePercentSlowerIsFoundSlowerByTheRegressionMargin) {
  EvaluateRequest request = request_for("fake_slower_3");
  request.incumbent = "fake_none";
  request.phase = Phase::kBench;
  request.margin = 0.02;
  const Trial trial = run(request);
  ASSERT_TRUE(trial.comparison) << trial.message;
  EXPECT_EQ(trial.comparison->verdict, SpeedVerdict::kSlower);
  EXPECT_EQ(trial.ended, Ended::kSlower);
  EXPECT_NEAR(trial.comparison->speedup, 1 / 1.03, 0.005);
  EXPECT_LT(trial.comparison->ci95_high, 1);
}

TEST_F(EvaluateTest, ARaceHasTheRightSign) {
  EvaluateRequest request = request_for("fake_none");
  request.incumbent = "fake_slower_100";
  Trial trial = run(request);
  ASSERT_TRUE(trial.comparison) << trial.message;
  EXPECT_NEAR(trial.comparison->speedup, 2, 0.05);
  EXPECT_EQ(trial.comparison->verdict, SpeedVerdict::kFaster);
  EXPECT_EQ(trial.ended, Ended::kPassed);

  request.candidate = "fake_slower_100";
  request.incumbent = "fake_none";
  trial = run(request);
  EXPECT_EQ(trial.comparison->verdict, SpeedVerdict::kSlower);
  EXPECT_EQ(trial.ended, Ended::kSlower);
  EXPECT_EQ(stopped_by(trial), Gate::kPerformance);
  EXPECT_TRUE(trial.timing) << "slower is a result, with its time";
}

TEST_F(EvaluateTest, IdenticalCandidatesAreTheSameByConstruction) {
  EvaluateRequest request = request_for("fake_none");
  request.incumbent = "fake_none";
  const Trial trial = run(request);
  ASSERT_TRUE(trial.comparison);
  EXPECT_EQ(trial.comparison->verdict, SpeedVerdict::kSame);
  EXPECT_EQ(trial.comparison->blocks, 0);
  EXPECT_FALSE(trial.timing);
  EXPECT_NE(trial.gates.back().reason.find("by construction"), std::string::npos);
}

TEST_F(EvaluateTest, WhatRunsTheSameCodeAsATimedCandidateIsNotTimedAgain) {
  const PlacedProblem problem = ragged_problem();
  const Candidate candidate = parse_candidate("fake_none:block=32", problem, device_->info().limits);
  const std::string identity = execution_identity(
      {candidate, compile_candidate(candidate, problem, device_->info().limits)}, problem, device_->info().limits);
  EvaluateRequest request = request_for("fake_none:block=32");
  request.incumbent = "fake_none";
  request.timed = {{identity, "fake_none:its_twin"}};
  Trial trial = run(request);
  ASSERT_TRUE(trial.comparison) << trial.message;
  EXPECT_EQ(trial.comparison->against, "fake_none:its_twin");
  EXPECT_FALSE(trial.timing);
  request.timed = {{"another", "fake_none:its_twin"}};
  trial = run(request);
  EXPECT_TRUE(trial.timing) << trial.message;
}

TEST_F(EvaluateTest, AWrongIncumbentBlocksTheVerdict) {
  EvaluateRequest request = request_for("fake_none");
  request.incumbent = "fake_missing_mask";
  const Trial trial = run(request);
  EXPECT_EQ(trial.ended, Ended::kError);
  EXPECT_NE(trial.message.find("incumbent"), std::string::npos) << trial.message;
  EXPECT_FALSE(trial.comparison);
}

TEST_F(EvaluateTest, EveryRegimeAndConditionIsTimedAndNamed) {
  for (const Regime regime : {Regime::kGraph, Regime::kCold, Regime::kWarm})
    for (const Condition condition : {Condition::kBurst, Condition::kSustained}) {
      EvaluateRequest request = request_for("fake_none");
      request.problem.seqlen_q = 4;
      request.problem.seqlen_kv = 16;
      request.regime = regime;
      request.condition = condition;
      const Trial trial = run(request);
      ASSERT_TRUE(trial.timing) << trial.message;
      EXPECT_EQ(trial.timing->regime, regime);
      EXPECT_EQ(trial.timing->condition, condition);
      const int copies = find_gate(trial, Gate::kPerformance)->evidence.at("buffer_copies").get<int>();
      EXPECT_EQ(copies > 2, regime == Regime::kCold);
    }
}

TEST_F(EvaluateTest, LargeProblemsAreJudgedOnASampleOfRows) {
  EvaluateRequest request = request_for("fake_none");
  request.max_reference_flops = request.problem.flops() / 4;
  request.time = false;
  const Trial trial = run(request);
  EXPECT_EQ(trial.ended, Ended::kPassed) << trial.message;
  const auto& pattern = find_gate(trial, Gate::kCorrectness)->evidence.at("patterns").at(0);
  EXPECT_FALSE(pattern.at("all_rows").get<bool>());
  EXPECT_LT(pattern.at("rows_judged").get<int>(), 74);
  // What the sample misses, the poison finds.
  request.candidate = "fake_leaves_row";
  EXPECT_EQ(run(request).ended, Ended::kIncorrect);
}

TEST_F(EvaluateTest, NoPatternsIsNoPass) {
  EvaluateRequest request = request_for("fake_none");
  request.patterns.clear();
  EXPECT_EQ(run(request).ended, Ended::kError);
}

TEST(EvaluateRequestJson, RoundTrips) {
  EvaluateRequest request = request_for("fake_none:block=16");
  request.incumbent = "fake_slower_3";
  request.timed = {{"identity", "fake_none:block=32"}};
  request.phase = Phase::kBench;
  request.seed = ~std::uint64_t{0};
  request.patterns = all_patterns();
  request.time = false;
  request.regime = Regime::kCold;
  request.condition = Condition::kSustained;
  request.min_samples = 3;
  request.max_seconds = 0.25;
  request.max_reference_flops = 12345;
  request.margin = 0.5;
  request.use_cache = false;
  const nlohmann::json json = request;
  const auto back = nlohmann::json::parse(dump_line(json)).get<EvaluateRequest>();
  EXPECT_EQ(nlohmann::json(back), json);
  EXPECT_EQ(back.problem, request.problem);
  EXPECT_EQ(back.patterns, request.patterns);
}

}  // namespace
}  // namespace flashcore
