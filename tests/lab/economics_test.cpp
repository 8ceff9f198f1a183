#include "lab/economics/account.h"

#include <gtest/gtest.h>

#include <thread>

#include "lab/fake.h"
#include "lab/record/json_io.h"
#include "lab/record/store.h"
#include "lab/report/report.h"
#include "lab/sample_trial.h"
#include "lab/tune/facts.h"
#include "lab/tune/preflight.h"
#include "lab/tune_fixture.h"

namespace flashcore {
namespace {

Trial trial_of(Phase phase, Ended ended, double device, double host) {
  Trial t = test::sample_trial();
  t.phase = phase;
  t.ended = ended;
  t.seconds = TrialSeconds{device, host};
  t.comparison.reset();
  t.gates = {{Gate::kCorrectness, GateStatus::kPassed, "", nullptr}};
  return t;
}

Trial heldout(const std::string& run, const std::string& config, double speedup, double low) {
  Trial t = trial_of(Phase::kHoldout, Ended::kPassed, 30, 0);
  t.run = run;
  t.config = config;
  t.comparison = Comparison{"f:base", speedup, low,    speedup + 0.05, SpeedVerdict::kFaster,
                            20,       0.03,    0.0001, 0.005,          kWinnerProcesses};
  return t;
}

TEST(TrialSeconds, SurviveJsonAndAreAbsentInOlderTrials) {
  Trial trial = trial_of(Phase::kSearch, Ended::kPassed, 1.5, 0.25);
  nlohmann::json json = nlohmann::json::parse(dump_line(trial));
  EXPECT_EQ(json.get<Trial>().seconds->device, 1.5);
  EXPECT_EQ(json.get<Trial>().seconds->host, 0.25);
  json.erase("seconds");
  EXPECT_FALSE(json.get<Trial>().seconds);
}

TEST(GateClock, TellsGatesThatUseTheDeviceFromOthers) {
  GateClock clock;
  EXPECT_EQ(clock.read().total(), 0);
  clock.enter(Gate::kCompile);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  clock.enter(Gate::kCorrectness);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const TrialSeconds read = clock.read();
  EXPECT_GE(read.host, 0.02);
  EXPECT_GE(read.device, 0.01);
}

class TrialSecondsOfTune : public test::TuneTest {};

// Every gate that uses the device is in it, a crash and a race too.
TEST_F(TrialSecondsOfTune, EveryStoredTrialHasThem) {
  Store store(file());
  run(options_for("fake_none", 6), store);
  run(options_for("fake_segfault", 2), store);
  int timed = 0;
  for (const Trial& t : store.query({})) {
    ASSERT_TRUE(t.seconds) << t.candidate();
    EXPECT_GE(t.seconds->host, 0);
    if (find_gate(t, Gate::kCorrectness)) {
      EXPECT_GT(t.seconds->device, 0) << t.candidate();
    }
    timed += t.timing ? 1 : 0;
  }
  EXPECT_GT(timed, 0);
}

// Somebody else's kernel that the compiler's stage stopped took the host's time.
TEST(TrialSecondsOfPreflight, AStoppedPatchHasThem) {
  EvaluateRequest request;
  request.problem = PlacedProblem::parse("b1_h1_s64_d64_fp16");
  request.candidate = "sm80_fwd:block_m=3";
  DeviceInfo device;
  device.limits = limits_of_arch("sm_90");
  const Preflight preflight = compile_only(request, device.limits, {});
  ASSERT_TRUE(preflight.stopped());
  const Trial trial = stopped_trial(device, request, preflight);
  ASSERT_TRUE(trial.seconds);
  EXPECT_GT(trial.seconds->host, 0);
  EXPECT_EQ(trial.seconds->device, 0);
}

TEST(Economics, SumsByPhaseAndVerdict) {
  const auto accounts =
      accounts_of({trial_of(Phase::kSearch, Ended::kSlower, 60, 6), trial_of(Phase::kSearch, Ended::kPassed, 120, 12),
                   trial_of(Phase::kBench, Ended::kPassed, 600, 0)});
  ASSERT_EQ(accounts.size(), 1u);
  const Account& a = accounts.front();
  EXPECT_EQ(a.total.trials, 3);
  EXPECT_DOUBLE_EQ(a.total.device_minutes(), 13);
  EXPECT_DOUBLE_EQ(a.by_phase.at(Phase::kSearch).device_minutes(), 3);
  EXPECT_DOUBLE_EQ(a.by_end.at(Ended::kPassed).device_minutes(), 12);
  EXPECT_DOUBLE_EQ(a.search.seconds.total(), 198);  // bench looks for nothing
  EXPECT_DOUBLE_EQ(a.total.money(36), (780 + 18) / 3600.0 * 36);
}

TEST(Economics, PercentGainedIsOfTheBestHeldOutCandidateOfTheLatestRun) {
  const std::vector<Trial> trials = {heldout("one", "a", 1.30, 1.2), heldout("two", "a", 1.08, 1.05),
                                     heldout("two", "b", 1.10, 1.06), heldout("two", "c", 1.20, 0.99)};
  const Account a = accounts_of(trials).front();
  ASSERT_EQ(a.gains.size(), 1u);
  EXPECT_EQ(a.gains[0].candidate, "sm80_fwd:b");
  EXPECT_NEAR(a.gained_percent(), 10, 1e-9);
  EXPECT_NEAR(*a.seconds_per_percent(), 12, 1e-9);
}

// As tune chooses its winner: after all processes, and by Holm over all finalists.
TEST(Economics, AFinalistThatWasNotCrownedIsNoGain) {
  Trial ahead = heldout("one", "a", 1.2, 1.1);
  ASSERT_EQ(accounts_of({ahead}).front().gains.size(), 1u);
  ahead.comparison->processes = kWinnerProcesses - 1;
  EXPECT_TRUE(accounts_of({ahead}).front().gains.empty());
  ahead.comparison->processes = kWinnerProcesses;
  ahead.comparison->p_value = 0.04;
  EXPECT_EQ(accounts_of({ahead}).front().gains.size(), 1u);
  Trial other = heldout("one", "b", 0.9, 0.8);
  other.comparison->p_value = 0.9;
  EXPECT_TRUE(accounts_of({ahead, other}).front().gains.empty());
}

TEST(Economics, WhatWasJudgedTheSameIsNoGain) {
  Trial same = heldout("one", "a", 1.01, 1.005);
  same.comparison->verdict = SpeedVerdict::kSame;
  EXPECT_TRUE(accounts_of({same}).front().gains.empty());
}

TEST(Economics, NothingGainedHasNoPriceOfAPercent) {
  const Account a = accounts_of({heldout("one", "a", 1.01, 0.99)}).front();
  EXPECT_FALSE(a.seconds_per_percent());
  EXPECT_TRUE(account_json(a, 3.0)["money_per_percent"].is_null());
  EXPECT_NE(cost_sentence(a).find("no percent has a cost"), std::string::npos);
}

TEST(Economics, OlderTrialsAreCountedAndNamed) {
  Trial old = trial_of(Phase::kSearch, Ended::kPassed, 0, 0);
  old.seconds.reset();
  const Account a = accounts_of({old, trial_of(Phase::kSearch, Ended::kPassed, 6, 0)}).front();
  EXPECT_EQ(a.total.unknown, 1);
  EXPECT_NE(cost_sentence(a).find("1 of 2 trials do not say their seconds"), std::string::npos);
}

TEST(Economics, DevicesHaveAccountsOfTheirOwn) {
  Trial other = trial_of(Phase::kSearch, Ended::kPassed, 1, 0);
  other.device.key = "a100";
  const auto accounts = accounts_of({trial_of(Phase::kSearch, Ended::kPassed, 2, 0), other});
  ASSERT_EQ(accounts.size(), 2u);
  EXPECT_EQ(accounts[1].device_key, "a100");
  EXPECT_EQ(accounts[1].total.seconds.device, 1);
}

// The sums of `economics`, and its money.
TEST(Economics, ReportHasItsSumsAndMoney) {
  const std::vector<Trial> trials = {trial_of(Phase::kSearch, Ended::kSlower, 60, 12),
                                     trial_of(Phase::kBench, Ended::kPassed, 120, 0)};
  const std::string priced = report_markdown(trials, is_current, 100), plain = report_markdown(trials);
  EXPECT_NE(priced.find("| host minutes | money, at 100 an hour |"), std::string::npos) << priced;
  EXPECT_NE(priced.find("| phase | search | 1 | 1.00 | 0.20 | 2 |\n"), std::string::npos) << priced;
  EXPECT_NE(priced.find("| total | all | 2 | 3.00 | 0.20 | 5.333 |\n"), std::string::npos) << priced;
  EXPECT_NE(plain.find("| total | all | 2 | 3.00 | 0.20 |\n"), std::string::npos) << plain;
  EXPECT_NE(plain.find("| verdict | "), std::string::npos) << plain;
  EXPECT_EQ(plain.find("money"), std::string::npos);
  const std::string page = report_html(trials, is_current, {}, 100);
  EXPECT_NE(page.find(">5.333</td>"), std::string::npos);
  EXPECT_NE(page.find("An hour of the machine costs 100."), std::string::npos);
  EXPECT_EQ(report_html(trials).find("An hour of the machine costs"), std::string::npos);
  EXPECT_NEAR(report_json(trials, is_current, 100)["economics"][0]["total"]["money"].get<double>(), 192 / 36.0, 1e-9);
  EXPECT_TRUE(report_json(trials)["economics"][0]["total"]["money"].is_null());
}

TEST(Economics, ReportHasASectionOfIt) {
  const std::vector<Trial> trials = {trial_of(Phase::kSearch, Ended::kPassed, 90, 30), heldout("two", "b", 1.10, 1.06)};
  EXPECT_NE(report_html(trials).find("What it cost"), std::string::npos);
  EXPECT_NE(report_markdown(trials).find("What it cost on"), std::string::npos);
  EXPECT_EQ(report_json(trials)["economics"][0]["total"]["trials"], 2);
  Trial old = trials[0];
  old.seconds.reset();
  EXPECT_EQ(report_html({old}).find("What it cost"), std::string::npos);
}

}  // namespace
}  // namespace flashcore
