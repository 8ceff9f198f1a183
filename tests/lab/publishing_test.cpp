// A candidate that is wrong on one data pattern only, which a search's quick gate does not try, gets no published
// number: not from bench, ab, an experiment, the finalists of tune, or beside somebody else's kernel.

#include <gtest/gtest.h>

#include <sstream>

#include "core/json_text.h"
#include "lab/compare/ab.h"
#include "lab/compare/bench.h"
#include "lab/experiment/run.h"
#include "lab/fake.h"
#include "lab/gates/evaluate.h"
#include "lab/process/timer_server.h"
#include "lab/tune_fixture.h"

namespace flashcore {
namespace {

// Halves o in rows whose largest logit is above 40.
constexpr const char* kWrong = "fake_halves_large_logits";

NamedProblem named_problem() { return {"small", PlacedProblem::parse("b1_h2_s19_d8_fp32")}; }

class PublishingTest : public test::TuneTest {};

TEST_F(PublishingTest, AQuickGateSaysSoAndAFullOneFindsIt) {
  const auto device = test::make_fake_device();
  EvaluateRequest request;
  request.problem = named_problem().problem;
  request.candidate = kWrong;
  request.time = false;
  ask_quick_gate(request);
  const Trial quick = evaluate(*device, request);
  EXPECT_EQ(quick.ended, Ended::kPassed) << quick.message;
  EXPECT_EQ(gate_level(quick), GateLevel::kQuick);
  ask_full_gate(request);
  const Trial full = evaluate(*device, request);
  EXPECT_EQ(full.ended, Ended::kIncorrect);
  EXPECT_EQ(gate_level(full), std::nullopt);
  request.candidate = "fake_none";
  EXPECT_EQ(gate_level(evaluate(*device, request)), GateLevel::kFull);
  request.patterns.pop_back();
  EXPECT_EQ(gate_level(evaluate(*device, request)), GateLevel::kQuick) << "one pattern short of full";
}

TEST_F(PublishingTest, BenchRefusesIt) {
  BenchOptions options;
  options.device = "fake";
  options.suite.name = "test";
  options.suite.problems = {named_problem()};
  options.candidate = kWrong;
  options.worker_executable = FLASHCORE_WORKER_HELPER;
  const BenchResult wrong = bench(options, nullptr, {}, {});
  ASSERT_EQ(wrong.trials.size(), 1u);
  EXPECT_EQ(wrong.trials[0].ended, Ended::kIncorrect);
  EXPECT_FALSE(wrong.trials[0].timing);
  options.candidate = "fake_none";
  const BenchResult right = bench(options, nullptr, {}, {});
  ASSERT_EQ(right.trials[0].ended, Ended::kPassed) << right.trials[0].message;
  EXPECT_EQ(gate_level(right.trials[0]), GateLevel::kFull);
}

TEST(BenchRow, SaysWhereRowsWereSampled) {
  Trial trial;
  trial.error.emplace();
  trial.bound.emplace();
  const auto level = [&](const char* patterns) {
    trial.gates = {{Gate::kCorrectness,
                    GateStatus::kPassed,
                    "",
                    {{"level", "full"}, {"patterns", nlohmann::json::parse(patterns)}}}};
    return bench_row(trial).at("correct").at("level").get<std::string>();
  };
  EXPECT_EQ(level(R"([{"all_rows": true}, {"all_rows": true}])"), "full");
  EXPECT_EQ(level(R"([{"all_rows": false, "every_element_against": "ref_fwd"}])"), "full");
  EXPECT_EQ(level(R"([{"all_rows": true}, {"all_rows": false}])"), "full, rows sampled");
}

TEST(BenchRow, SaysWhereInputsWereNotChecked) {
  Trial trial;
  trial.error.emplace();
  trial.bound.emplace();
  const auto level = [&](bool inputs_checked, bool all_rows) {
    trial.gates = {{Gate::kCorrectness,
                    GateStatus::kPassed,
                    "",
                    {{"level", "full"},
                     {"inputs_checked", inputs_checked},
                     {"patterns", nlohmann::json::array({{{"all_rows", all_rows}}})}}}};
    return bench_row(trial).at("correct").at("level").get<std::string>();
  };
  EXPECT_EQ(level(true, true), "full");
  EXPECT_EQ(level(false, true), "full, inputs unchecked");
  EXPECT_EQ(level(false, false), "full, rows sampled, inputs unchecked");
}

TEST_F(PublishingTest, AbRefusesItOnEitherSideAndGatesEveryProcess) {
  AbOptions options;
  options.device = "fake";
  options.problem = named_problem();
  options.candidate = kWrong;
  options.baseline = "fake_none";
  options.worker_executable = FLASHCORE_WORKER_HELPER;
  EXPECT_EQ(ab(options).ended, PairEnded::kCandidateFailed);
  std::swap(options.candidate, options.baseline);
  EXPECT_EQ(ab(options).ended, PairEnded::kBaselineFailed);
  options.baseline = "fake_slower_3";
  const AbResult honest = ab(options);
  ASSERT_EQ(honest.processes.size(), 3u) << honest.sentence;
  for (const PairOutcome& process : honest.processes) {
    EXPECT_EQ(gate_level(process.candidate), GateLevel::kFull);
    EXPECT_EQ(gate_level(process.baseline), GateLevel::kFull);
    EXPECT_GE(process.candidate.machine.load_before, 0) << "how busy the machine was is recorded";
  }
}

TEST_F(PublishingTest, AnExperimentRefusesIt) {
  Experiment experiment;
  experiment.name = "large_logits";
  experiment.control = {"right", "fake_none", std::nullopt, {}};
  experiment.candidates = {{"wrong", kWrong, std::nullopt, {1.05, 1.2}}};
  experiment.problems = {named_problem()};
  ExperimentRunOptions options;
  options.device = "fake";
  options.worker_executable = FLASHCORE_WORKER_HELPER;
  const auto results = run_experiments({experiment}, options, {}, {});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].failed_gates, 1);
  EXPECT_EQ(results[0].verdict, HypothesisVerdict::kInconclusive);
}

TEST_F(PublishingTest, TuneHasNoFinalistOfIt) {
  TuneOptions options = options_for(kWrong, 4);
  options.suite.problems[0].problem = named_problem().problem;
  Store store(file());
  const TuneResult result = run(options, store);
  for (const Trial& trial : store.query({})) {
    if (trial.phase == Phase::kHoldout) EXPECT_NE(trial.ended, Ended::kPassed) << trial.candidate();
    else EXPECT_EQ(gate_level(trial).value_or(GateLevel::kQuick), GateLevel::kQuick);
  }
  ASSERT_EQ(result.entries.size(), 1u);
  EXPECT_FALSE(result.entries[0].winner);
}

TEST_F(PublishingTest, TheTimerServerRefusesIt) {
  std::ostringstream out;
  std::istringstream in(R"({"op": "judge", "problem": "b1_h2_s19_d8_fp32", "candidate": ")" + std::string(kWrong) +
                        "\"}\n");
  EXPECT_EQ(timer_server_main("cpu", in, out), 0);
  const nlohmann::json answer = parse_json(out.str(), "the timer server");
  ASSERT_TRUE(answer.contains("trial")) << answer;
  EXPECT_EQ(answer.at("trial").at("ended"), "incorrect") << answer.at("trial").at("message");
  EXPECT_FALSE(answer.contains("handle"));
}

}  // namespace
}  // namespace flashcore
