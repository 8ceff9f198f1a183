// The regression gate on a fake device.

#include "lab/compare/regression.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/hash.h"
#include "device/cpu/code_identity.h"
#include "kernels/source_hash.h"
#include "lab/fake.h"

namespace flashcore {
namespace {

bool mentions(const std::string& text, const std::string& word) { return text.find(word) != std::string::npos; }

class RegressionTest : public ::testing::Test {
 protected:
  RegressionTest() {
    options_.device = "fake";
    options_.worker_executable = FLASHCORE_WORKER_HELPER;
    problem_.name = "small";
    problem_.problem.dtype = DType::kF32;
    problem_.problem.seqlen_q = problem_.problem.seqlen_kv = 33;
    problem_.problem.head_dim = problem_.problem.head_dim_v = 16;
  }
  ~RegressionTest() override { std::filesystem::remove(file_); }

  BaselineEntry recorded(const std::string& candidate) {
    GateOptions options = options_;
    options.candidate = candidate;
    return record_baseline({problem_}, options).front().entry.value();
  }
  GateRow judge(const BaselineEntry& entry, const std::string& candidate) {
    options_.candidate = candidate;
    return gate({entry}, options_).front();
  }
  std::filesystem::path write(const std::string& text) {
    std::ofstream(file_) << text;
    return file_;
  }

  test::AllFakeFamilies families_;
  GateOptions options_;
  NamedProblem problem_;
  std::filesystem::path file_ =
      std::filesystem::temp_directory_path() / ("flashcore-baseline-" + std::to_string(getpid()));
};

TEST_F(RegressionTest, ABaselineRoundTripsThroughItsFile) {
  const BaselineEntry entry = recorded("fake_none");
  EXPECT_EQ(entry.device_key, "fake");
  EXPECT_EQ(entry.process_p50_us.size(), 3u);
  ASSERT_EQ(entry.machine.size(), 3u) << "how busy the machine was";
  EXPECT_GT(entry.machine.front().cores, 0);
  const auto read = load_baseline(write(baseline_json({entry}).dump()));
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(baseline_json(read).at("results"), baseline_json({entry}).at("results"));
}

TEST_F(RegressionTest, TheSameCodePassesWithoutTiming) {
  const GateRow row = judge(recorded("fake_none"), "fake_none");
  EXPECT_EQ(row.verdict, SpeedVerdict::kSame) << row.sentence;
  EXPECT_TRUE(row.same_code);
  EXPECT_FALSE(row.interleaved) << "nothing was timed";
  EXPECT_EQ(gate_exit_code({row}), 0);
}

TEST_F(RegressionTest, ThreePercentSlowerThanTheBaselineTripsIt) {
  const GateRow row = judge(recorded("fake_none"), "fake_slower_3");
  EXPECT_EQ(row.verdict, SpeedVerdict::kSlower) << row.sentence;
  EXPECT_TRUE(row.interleaved);
  EXPECT_EQ(gate_exit_code({row}), 1);
  ASSERT_EQ(row.machine.size(), 3u) << "how busy the machine was";
  EXPECT_GT(gate_json({row}, options_)["results"][0]["machine"][2]["cores"], 0);
  const GateRow better = judge(recorded("fake_slower_3"), "fake_none");
  EXPECT_EQ(better.verdict, SpeedVerdict::kFaster) << "faster is never a regression: " << better.sentence;
  EXPECT_EQ(gate_exit_code({better}), 0);
}

TEST_F(RegressionTest, AWrongCandidateFailsAndARedBaselineJudgesNothing) {
  const BaselineEntry good = recorded("fake_none");
  EXPECT_EQ(judge(good, "fake_wrong_tail").verdict, SpeedVerdict::kWrong);
  BaselineEntry red = good;
  red.candidate = "fake_wrong_tail:block=16,unroll=1,spread=0";
  const GateRow row = judge(red, "fake_none");
  EXPECT_EQ(row.verdict, SpeedVerdict::kNotJudged);
  EXPECT_EQ(gate_exit_code({row}), 2);
}

TEST_F(RegressionTest, ABaselineKeepsWhatItHasWhateverTheOtherProblemsDo) {
  NamedProblem empty = problem_, second = problem_;
  empty.name = "empty";
  empty.problem.seqlen_q = 0;
  second.name = "second";
  options_.candidate = "fake_none";
  options_.processes = 1;
  std::vector<RecordedProblem> rows = record_baseline({problem_, empty, second}, options_);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[1].ended, Recording::kUnsupported);
  EXPECT_TRUE(mentions(rows[1].why, "no rows")) << rows[1].why;
  EXPECT_EQ(entries_of(rows).size(), 2u);
  EXPECT_EQ(baseline_exit_code(rows), 0);
  // Each is handed out at once, and an interrupt keeps those before it.
  int told = 0;
  const auto count = [&](const RecordedProblem&) { ++told; };
  EXPECT_EQ(record_baseline({problem_, second}, options_, count, [&] { return told == 1; }).size(), 1u);

  options_.candidate = "fake_wrong_tail";
  rows.push_back(record_baseline({problem_}, options_).front());
  EXPECT_EQ(rows.back().ended, Recording::kFailed);
  EXPECT_FALSE(rows.back().entry);
  EXPECT_EQ(baseline_exit_code(rows), 1);
  options_.candidate = "fake_segfault";
  EXPECT_EQ(record_baseline({problem_}, options_).front().ended, Recording::kFailed);
  options_.candidate = "no_such_fwd";
  EXPECT_EQ(record_baseline({problem_}, options_).front().ended, Recording::kUnsupported);

  const auto code = [&](std::vector<Recording> ends) {
    std::vector<RecordedProblem> some;
    for (const Recording ended : ends) some.push_back({problem_, ended, "", {}});
    return baseline_exit_code(some);
  };
  EXPECT_EQ(code({Recording::kUnsupported}), 2) << "skipped is never passed";
  EXPECT_EQ(code({}), 2);
  EXPECT_EQ(code({Recording::kRecorded, Recording::kUnjudged}), 2);
  EXPECT_EQ(code({Recording::kRecorded, Recording::kLacking, Recording::kUnjudged}), 4);
  EXPECT_EQ(code({Recording::kFailed, Recording::kLacking}), 1);
}

TEST_F(RegressionTest, ChangedCodeIsComparedWithTheRecordedTimeAndSaysSo) {
  BaselineEntry entry = recorded("fake_none");
  entry.code_hash = "another";
  GateRow row = judge(entry, "fake_none");
  EXPECT_FALSE(row.interleaved);
  EXPECT_TRUE(mentions(row.sentence, "not interleaved") && mentions(row.sentence, "changed since")) << row.sentence;
  EXPECT_NE(row.verdict, SpeedVerdict::kSlower) << row.sentence;
  BaselineEntry relaunched = recorded("fake_none");
  relaunched.launch_hash = "of another grid";
  const GateRow other_launches = judge(relaunched, "fake_none");
  EXPECT_FALSE(other_launches.interleaved) << "both sides would have the new launches";
  EXPECT_TRUE(mentions(other_launches.sentence, "launched otherwise since")) << other_launches.sentence;
  entry.p50_us *= 0.5;
  for (double& us : entry.process_p50_us) us *= 0.5;
  row = judge(entry, "fake_none");
  EXPECT_EQ(row.verdict, SpeedVerdict::kSlower) << row.sentence;
  entry.candidate = "gone_fwd:block=1";
  EXPECT_TRUE(mentions(judge(entry, "fake_none").sentence, "no longer one"));
}

// A build of the same sources that took 4107 us for 201 passed as identical code: what is compared with the baseline
// covers the build and the threads, so that another build is timed (the test above).
TEST_F(RegressionTest, TheCodeOfACpuCandidateIsOfThisBuildAndItsThreads) {
  const PlacedProblem problem = PlacedProblem::parse("b1_h1_s16_d64_fp32");
  const DeviceLimits limits = open_device("cpu")->info().limits;
  const Candidate candidate = parse_candidate("cpu_fwd", problem, limits);
  const auto code_hash = [&] { return compile_candidate(candidate, problem, limits).code_hash; };
  const std::string source = source_hash(candidate, problem, limits);
  EXPECT_EQ(code_hash(), Hasher().add(source).add(cpu_code_identity()).hex());
  EXPECT_NE(code_hash(), source) << "all that two builds of one source share";
}

TEST_F(RegressionTest, AnotherMachinesBaselineJudgesNothing) {
  BaselineEntry entry = recorded("fake_none");
  entry.device_key = "h200";
  const GateRow row = judge(entry, "fake_none");
  EXPECT_EQ(row.verdict, SpeedVerdict::kNotJudged);
  EXPECT_TRUE(mentions(row.sentence, "h200") && mentions(row.sentence, "fake")) << row.sentence;
}

TEST_F(RegressionTest, AMachineThatRaisesFalseAlarmsIsNotJudgedOn) {
  const BaselineEntry entry = recorded("fake_none");
  options_.refusal = [](const std::string& key, Regime, Condition) { return key == "fake" ? "too many alarms" : ""; };
  const GateRow row = judge(entry, "fake_slower_3");
  EXPECT_EQ(row.verdict, SpeedVerdict::kNotJudged);
  EXPECT_TRUE(mentions(row.sentence, "too many alarms"));
}

TEST_F(RegressionTest, RecordedTimesAreJudgedWithTheSpreadBetweenProcesses) {
  BaselineEntry entry;
  entry.p50_us = 100;
  const auto verdict = [&](const std::vector<double>& now) {
    return judge_recorded(entry, now, 100, false, 0.02).verdict;
  };
  EXPECT_EQ(verdict({100.1, 100.0, 99.9}), SpeedVerdict::kSame);
  EXPECT_EQ(verdict({110.1, 110.0, 109.9}), SpeedVerdict::kSlower);
  EXPECT_EQ(verdict({90.1, 90.0, 89.9}), SpeedVerdict::kFaster);
  EXPECT_EQ(verdict({100, 110, 120}), SpeedVerdict::kInconclusive);
  EXPECT_EQ(verdict({102.0, 102.1, 101.9}), SpeedVerdict::kInconclusive) << "at the margin itself nothing can be said";
  EXPECT_EQ(verdict({150}), SpeedVerdict::kInconclusive) << "one process says nothing of what processes differ by";
  entry.process_p50_us = {80, 100, 120};
  EXPECT_EQ(verdict({110.1, 110.0, 109.9}), SpeedVerdict::kInconclusive) << "then they differed by more";
}

TEST_F(RegressionTest, JUnitNamesFailuresErrorsAndNothingSkipped) {
  GateRow same, slower, unknown;
  same.baseline.problem.name = "a";
  same.verdict = SpeedVerdict::kSame;
  slower.baseline.problem.name = "b<&\">";
  slower.verdict = SpeedVerdict::kSlower;
  slower.sentence = "x < y & \"z\"";
  unknown.baseline.problem.name = "c";
  unknown.verdict = SpeedVerdict::kInconclusive;
  const std::string xml = gate_junit({same, slower, unknown});
  EXPECT_TRUE(mentions(xml, "tests=\"3\" failures=\"1\" errors=\"1\" skipped=\"0\"")) << xml;
  EXPECT_TRUE(mentions(xml, "<failure type=\"SLOWER\" message=\"x &lt; y &amp; &quot;z&quot;\"/>")) << xml;
  EXPECT_TRUE(mentions(xml, "<error type=\"INCONCLUSIVE\"")) << xml;
  EXPECT_EQ(gate_exit_code({same, slower, unknown}), 1);
  EXPECT_EQ(gate_exit_code({same, unknown}), 2);
  EXPECT_EQ(gate_exit_code({}), 2) << "nothing judged is not passed";
}

TEST_F(RegressionTest, ResultsInTheRepositoryAreBaselines) {
  for (const char* file : {"h200/canonical.json", "h200/canonical_sustained.json", "h100/canonical.json"}) {
    const auto entries = load_baseline(std::filesystem::path(FLASHCORE_SOURCE_DIR) / "results" / file);
    EXPECT_GE(entries.size(), 20u) << file;
    for (const BaselineEntry& entry : entries)
      EXPECT_NO_THROW((void)parse_candidate(entry.candidate, entry.problem.problem, limits_of_arch("sm_90"))) << file;
  }
}

TEST_F(RegressionTest, FilesThatAreNoBaselineAreRefused) {
  EXPECT_THROW(load_baseline(write("{")), Error);
  EXPECT_THROW(load_baseline(write(R"({"schema":"flashcore.tune/1","results":[]})")), Error);
  EXPECT_THROW(load_baseline(write(R"({"schema":"flashcore.bench/1","results":[]})")), Error);
  EXPECT_THROW(load_baseline(write(R"({"schema":"flashcore.bench/1","results":[{"time_us":{"p50":1}}]})")), Error);
}

}  // namespace
}  // namespace flashcore
