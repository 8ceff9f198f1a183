// ab, its judgement, A/A repeats, calibration and the regression gate, with workers on a fake device.

#include "lab/compare/ab.h"

#include <gtest/gtest.h>

#include <unistd.h>
#include <cmath>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "lab/compare/aa.h"
#include "lab/compare/calibration.h"
#include "lab/compare/regression.h"
#include "lab/fake.h"
#include "lab/process/worker.h"

namespace flashcore {
namespace {

NamedProblem small_problem() {
  NamedProblem named;
  named.name = "small";
  named.problem.dtype = DType::kF32;
  named.problem.seqlen_q = named.problem.seqlen_kv = 33;
  named.problem.head_dim = named.problem.head_dim_v = 16;
  return named;
}

AbOptions ab_of(const std::string& candidate, const std::string& baseline) {
  AbOptions options;
  options.device = "fake";
  options.problem = small_problem();
  options.candidate = candidate;
  options.baseline = baseline;
  options.worker_executable = FLASHCORE_WORKER_HELPER;
  return options;
}

bool mentions(const std::string& text, const std::string& word) { return text.find(word) != std::string::npos; }

TEST(Ab, ASlowerCandidateIsCalledSoInOneSentence) {
  int told = 0;
  const AbOptions options = ab_of("fake_slower_3", "fake_none");
  const AbResult r = ab(options, [&](int, int total) {
    ++told;
    EXPECT_EQ(total, 3);
  });
  EXPECT_EQ(told, 3);
  EXPECT_EQ(r.verdict, SpeedVerdict::kSlower) << r.sentence;
  EXPECT_EQ(ab_exit_code(r), 1);
  EXPECT_EQ(r.processes.size(), 3u);
  EXPECT_NEAR(r.comparison.speedup, 1 / 1.03, 0.004);
  for (const char* word :
       {"fake_slower_3 is slower than fake_none", "95% interval", "3 processes", "could have detected"})
    EXPECT_TRUE(mentions(r.sentence, word)) << r.sentence;
  EXPECT_EQ(r.sentence.find('\n'), std::string::npos);
  EXPECT_LT(r.comparison.p_value, 0.01);
  EXPECT_GT(r.samples, 3 * 8 * 4 - 1);
  EXPECT_GT(r.cliffs_delta, 0.5) << "its times are the longer ones";
}

TEST(Ab, TheSignHoldsBothWays) {
  EXPECT_EQ(ab(ab_of("fake_none", "fake_slower_3")).verdict, SpeedVerdict::kFaster);
  const AbResult same = ab(ab_of("fake_slower_half", "fake_none"));
  EXPECT_EQ(same.verdict, SpeedVerdict::kSame);
  EXPECT_EQ(ab_exit_code(same), 0);
  EXPECT_LT(same.tost_p, 0.05);
}

TEST(Ab, ProcessesSeeOtherInputs) {
  const AbResult r = ab(ab_of("fake_none", "fake_slower_half"));
  ASSERT_EQ(r.processes.size(), 3u);
  EXPECT_NE(r.processes[0].candidate.seed, r.processes[1].candidate.seed);
}

TEST(Ab, WhatIsNotCorrectGetsNoTime) {
  const AbResult wrong = ab(ab_of("fake_wrong_tail", "fake_none"));
  EXPECT_EQ(wrong.verdict, SpeedVerdict::kNotJudged);
  EXPECT_EQ(ab_exit_code(wrong), 1);
  EXPECT_EQ(wrong.processes.size(), 1u) << "no further process is spent on it";
  EXPECT_TRUE(mentions(wrong.sentence, "did not pass its gates") && mentions(wrong.sentence, "incorrect"))
      << wrong.sentence;
  const AbResult red = ab(ab_of("fake_none", "fake_wrong_tail"));
  EXPECT_EQ(ab_exit_code(red), 2);
  EXPECT_TRUE(mentions(red.sentence, "baseline fake_wrong_tail is red")) << red.sentence;
}

TEST(Ab, ACrashIsAnAnswerAndSaysWhose) {
  const AbResult crashed = ab(ab_of("fake_segfault", "fake_none"));
  EXPECT_EQ(ab_exit_code(crashed), 1);
  EXPECT_TRUE(mentions(crashed.sentence, "fake_segfault") && mentions(crashed.sentence, "SIGSEGV")) << crashed.sentence;
  EXPECT_EQ(ab_exit_code(ab(ab_of("fake_none", "fake_segfault"))), 2);
}

TEST(Ab, AHangIsEnded) {
  Worker worker("fake", FLASHCORE_WORKER_HELPER);
  PairRequest request;
  request.problem = small_problem().problem;
  request.candidate = "fake_hang";
  request.baseline = "fake_none";
  const PairOutcome outcome = worker.measure_pair(request, 2);
  EXPECT_EQ(outcome.ended, PairEnded::kCandidateFailed);
  EXPECT_EQ(outcome.candidate.ended, Ended::kTimeout);
  request.candidate = "fake_slower_3";
  EXPECT_EQ(worker.measure_pair(request).ended, PairEnded::kMeasured) << "the next request gets a fresh child";
}

TEST(Ab, TheSameCandidateIsSameWithoutTiming) {
  const AbResult r = ab(ab_of("fake_none", "fake_none"));
  EXPECT_EQ(r.verdict, SpeedVerdict::kSame);
  EXPECT_TRUE(r.same_code && r.inert_fields.empty());
  EXPECT_EQ(ab_exit_code(r), 0);
  EXPECT_FALSE(r.processes.front().candidate.timing);
  EXPECT_TRUE(mentions(r.sentence, "by construction")) << r.sentence;
}

TEST(Ab, AMachineThatCannotBeTrustedIsNotJudgedOn) {
  AbOptions options = ab_of("fake_slower_3", "fake_none");
  options.refusal = "false alarms";
  const AbResult refused = ab(options);
  EXPECT_EQ(refused.verdict, SpeedVerdict::kNotJudged);
  EXPECT_EQ(ab_exit_code(refused), 2);
  EXPECT_TRUE(mentions(refused.sentence, "false alarms"));
  options.candidate = "fake_none";
  EXPECT_EQ(ab(options).verdict, SpeedVerdict::kSame) << "identical code needs no clock";
  options.candidate = "fake_wrong_tail";
  EXPECT_EQ(ab_exit_code(ab(options)), 1) << "and a wrong result needs none either";
}

// --- judgement on made-up outcomes ----------------------------------------------------------------------------------

PairOutcome measured(double effect, double noise, std::uint64_t seed, int blocks = 30) {
  PairOutcome outcome;
  outcome.ended = PairEnded::kMeasured;
  outcome.candidate.timing.emplace();
  outcome.baseline.timing.emplace();
  SplitMix random(seed);
  for (int i = 0; i < blocks; ++i) {
    outcome.log_ratios.push_back(effect + noise * random.normal());
    outcome.candidate.timing->samples.push_back({100, 0});
    outcome.baseline.timing->samples.push_back({100 * std::exp(effect), 0});
  }
  return outcome;
}

TEST(JudgeAb, ProcessesThatDisagreeMakeTheIntervalWide) {
  const AbOptions options = ab_of("a", "b");
  const AbResult agree = judge_ab(options, {measured(0.05, 0.01, 1), measured(0.05, 0.01, 2), measured(0.05, 0.01, 3)});
  EXPECT_EQ(agree.verdict, SpeedVerdict::kFaster);
  const AbResult disagree =
      judge_ab(options, {measured(0.10, 0.01, 1), measured(0.05, 0.01, 2), measured(0.0, 0.01, 3)});
  EXPECT_EQ(disagree.verdict, SpeedVerdict::kInconclusive) << disagree.sentence;
  EXPECT_GT(disagree.between_process, 0.03);
  EXPECT_TRUE(mentions(disagree.sentence, "could have detected a change of")) << disagree.sentence;
  EXPECT_EQ(ab_exit_code(disagree), 2);
}

TEST(JudgeAb, OneFailedProcessIsNotOutvoted) {
  PairOutcome crashed;
  crashed.ended = PairEnded::kCrashed;
  crashed.message = "the worker process was ended by signal SIGSEGV in stage performance";
  const AbResult r = judge_ab(ab_of("a", "b"), {measured(0.1, 0.01, 1), measured(0.1, 0.01, 2), crashed});
  EXPECT_EQ(r.verdict, SpeedVerdict::kNotJudged);
  EXPECT_TRUE(mentions(r.sentence, "SIGSEGV"));
}

TEST(JudgeAb, TooFewBlocksSaySo) {
  const AbResult r = judge_ab(ab_of("a", "b"), {measured(0.5, 0.01, 1, 3)});
  EXPECT_EQ(r.verdict, SpeedVerdict::kInconclusive);
  EXPECT_TRUE(mentions(r.sentence, "could have detected nothing")) << r.sentence;
}

TEST(JudgeAb, OneCodeOfTwoConfigsIsAnInertParameter) {
  PairOutcome outcome;
  outcome.ended = PairEnded::kSameCode;
  outcome.candidate.family = outcome.baseline.family = "cpu_fwd";
  outcome.candidate.config = "block_m=96,block_n=64,threads=1,kv_split=1";
  outcome.baseline.config = "block_m=96,block_n=128,threads=1,kv_split=1";
  outcome.candidate.artifact.emplace().code_hash = outcome.baseline.artifact.emplace().code_hash = "0123456789abcdef";
  const AbResult r = judge_ab(ab_of("cpu_fwd:block_n=64", "cpu_fwd:block_n=128"), {outcome});
  EXPECT_EQ(r.verdict, SpeedVerdict::kSame);
  EXPECT_EQ(r.inert_fields, std::vector<std::string>{"block_n"});
  EXPECT_TRUE(mentions(r.sentence, "BUG of family cpu_fwd") && mentions(r.sentence, "block_n")) << r.sentence;
  EXPECT_EQ(ab_exit_code(r), 1) << "a knob that does nothing must not pass unseen";
}

TEST(JudgeAb, TheJsonHoldsEveryRawSample) {
  const AbOptions options = ab_of("fake_slower_3", "fake_none");
  const nlohmann::json j = ab_json(options, ab(options));
  EXPECT_EQ(j.at("verdict"), "SLOWER");
  ASSERT_EQ(j.at("processes").size(), 3u);
  const auto& process = j.at("processes")[0];
  EXPECT_EQ(process.at("candidate").at("samples_us").size(), 2 * process.at("log_ratios").size());
  EXPECT_EQ(j.at("p_value").size(), 4u);
}

// --- A/A ------------------------------------------------------------------------------------------------------------

AaOptions aa_of(int permille) {
  AaOptions options;
  options.device = "fake";
  options.problem = small_problem();
  options.candidate = "fake_none";
  options.repeats = 12;
  options.per_process = 6;
  options.planted_permille = permille;
  options.worker_executable = FLASHCORE_WORKER_HELPER;
  return options;
}

TEST(Aa, ACandidateIsTheSameAsItself) {
  const AaResult r = repeat_aa(aa_of(0));
  EXPECT_EQ(r.repeats, 12) << r.failure;
  EXPECT_EQ(r.same, 12);
  EXPECT_LE(r.alarms, 3);
  EXPECT_EQ(r.device_key, "fake");
  EXPECT_EQ(r.effects.size(), 12u);
}

TEST(Aa, PlantedWorkIsSeen) {
  const AaResult r = repeat_aa(aa_of(500));
  EXPECT_EQ(r.slower, 12) << r.failure;
  EXPECT_NEAR(median(r.effects), 1 / 1.5, 0.01);
}

// On an H200 a sample had 148 launches where every 200th was to be done twice: nothing was planted, and it passed.
TEST(Aa, WhatIsPlantedIsCountedAndMeasured) {
  const AaResult half = repeat_aa(aa_of(5));
  EXPECT_EQ(half.launches_per_sample % 200, 0);
  EXPECT_NEAR(half.planted, 0.005, 1e-12);
  EXPECT_NEAR(half.measured(), 0.005, 0.002);
  EXPECT_EQ(half.why_not_planted(0.005), "");
  EXPECT_TRUE(mentions(half.why_not_planted(0.03), "3.00% of extra work was to be planted and 0.50% was"));

  AaResult none = half;
  none.launches_per_sample = 148;
  none.planted = 0;
  EXPECT_TRUE(mentions(none.why_not_planted(0.005), "0.00% was: a sample has 148 launches"));
  AaResult unseen = half;
  unseen.effects.assign(12, 1.0);
  EXPECT_TRUE(mentions(unseen.why_not_planted(0.005), "the races found 0.00%")) << unseen.why_not_planted(0.005);
  unseen.effects.assign(12, 1 / 1.01);
  EXPECT_TRUE(mentions(unseen.why_not_planted(0.005), "the races found 1.00%"));
}

TEST(Aa, AFailureEndsItAndIsTold) {
  AaOptions options = aa_of(0);
  options.candidate = "fake_wrong_tail";
  const AaResult r = repeat_aa(options);
  EXPECT_EQ(r.repeats, 0);
  EXPECT_TRUE(mentions(r.failure, "baseline_failed")) << r.failure;
}

class CalibrationTest : public ::testing::Test {
 protected:
  CalibrationTest() {
    std::filesystem::remove_all(folder_);
    calibration_.device_key = "h200";
    calibration_.problem = "p";
    calibration_.candidate = "c";
    calibration_.repeats = 100;
  }
  ~CalibrationTest() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("flashcore-calibration-" + std::to_string(getpid()));
  std::filesystem::path file_ = calibration_file(folder_ / "trials.db");
  Calibration calibration_;
};

TEST_F(CalibrationTest, TwiceAlphaIsTheLimit) {
  calibration_.alarms = 10;
  EXPECT_TRUE(calibration_.trusted());
  EXPECT_EQ(calibration_.why_not_trusted(), "");
  calibration_.alarms = 11;
  EXPECT_FALSE(calibration_.trusted());
  EXPECT_TRUE(mentions(calibration_.why_not_trusted(), "11")) << calibration_.why_not_trusted();
  EXPECT_FALSE(Calibration{}.trusted()) << "nothing measured is no calibration";
}

TEST_F(CalibrationTest, FewRacesAreNone) {
  calibration_.repeats = 1;
  EXPECT_FALSE(calibration_.trusted());
  EXPECT_TRUE(mentions(calibration_.why_not_trusted(), "had 1 races, and 100 are needed"))
      << calibration_.why_not_trusted();
  EXPECT_TRUE(mentions(save_calibration(file_, calibration_), "--repeats 100 or more"));
  EXPECT_FALSE(find_calibration(file_, "h200", Regime::kGraph, Condition::kBurst));
}

TEST_F(CalibrationTest, FewerRacesDoNotLiftARefusal) {
  calibration_.repeats = 200, calibration_.alarms = 29;
  EXPECT_EQ(save_calibration(file_, calibration_), "");
  const auto found = [&] { return find_calibration(file_, "h200", Regime::kGraph, Condition::kBurst)->alarms; };
  calibration_.repeats = 199, calibration_.alarms = 0;
  const std::string why = save_calibration(file_, calibration_);
  EXPECT_TRUE(mentions(why, "--repeats 200 or more")) << why;
  EXPECT_EQ(found(), 29);
  calibration_.repeats = 200, calibration_.alarms = 8;
  EXPECT_EQ(save_calibration(file_, calibration_), "");
  EXPECT_EQ(found(), 8);
  // One that is trusted gives way to any.
  calibration_.repeats = 100, calibration_.alarms = 12;
  EXPECT_EQ(save_calibration(file_, calibration_), "");
  EXPECT_EQ(found(), 12);
}

TEST(JudgeAa, FewRacesAreNotJudged) {
  AaOptions options;
  AaResult r;
  for (options.repeats = 1; options.repeats <= kLeastRaces; ++options.repeats) {
    count_race({1, 0.999, 1.001}, 0.03, r);
    const AaJudgement judgement = judge_aa(options, r, kLeastRaces);
    EXPECT_EQ(judgement.judged, options.repeats == kLeastRaces) << judgement.sentence;
    EXPECT_EQ(judgement.passed, judgement.judged);
  }
}

TEST_F(CalibrationTest, TheLatestOfEachPlaceIsKept) {
  EXPECT_FALSE(find_calibration(file_, "h200", Regime::kGraph, Condition::kBurst));
  EXPECT_EQ(save_calibration(file_, calibration_), "");
  calibration_.alarms = 30;
  calibration_.machine.cores = 7;
  EXPECT_EQ(save_calibration(file_, calibration_), "");
  EXPECT_EQ(find_calibration(file_, "h200", Regime::kGraph, Condition::kBurst)->machine.cores, 7);
  calibration_.regime = Regime::kCold;
  calibration_.alarms = 1;
  EXPECT_EQ(save_calibration(file_, calibration_), "");
  EXPECT_EQ(find_calibration(file_, "h200", Regime::kGraph, Condition::kBurst)->alarms, 30);
  EXPECT_EQ(find_calibration(file_, "h200", Regime::kCold, Condition::kBurst)->alarms, 1);
  EXPECT_FALSE(find_calibration(file_, "a100", Regime::kGraph, Condition::kBurst));
  std::ofstream(file_) << "{";
  EXPECT_THROW(find_calibration(file_, "h200", Regime::kGraph, Condition::kBurst), Error);
}

}  // namespace
}  // namespace flashcore
