#include "lab/campaign/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "core/files.h"
#include "lab/campaign/ranking.h"
#include "lab/campaign/summary.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

using nlohmann::json;

// A campaign whose commands answer what a test says.
class CampaignTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("FLASHCORE_TUNED", (folder_.path() / "tuned.json").c_str(), 1);
    options_.folder = folder_.path() / "campaign";
    std::filesystem::create_directories(options_.folder);
    options_.program = "/bin/flashcore";
    options_.device = open_device("cpu")->info();
    options_.suite = "smoke";
    options_.problems.name = "smoke";
    options_.problems.problems = {{"tiny", PlacedProblem::parse(kProblem)}};
    options_.budget_seconds = 100;
  }
  void TearDown() override { unsetenv("FLASHCORE_TUNED"); }

  CampaignResult go(std::optional<CampaignState> earlier = std::nullopt) {
    return run_campaign(
        options_, std::move(earlier), {}, [this] { return stop_; },
        [this](const auto& argv, const auto&, double seconds, const auto&) {
          ran_.push_back(argv);
          limits_.push_back(seconds);
          return answer_(argv);
        });
  }
  static std::string verb_of(const std::vector<std::string>& argv) { return argv[1] == "-m" ? argv[2] : argv[1]; }
  static void write_json(const std::vector<std::string>& argv, const json& document) {
    for (std::size_t i = 0; i + 1 < argv.size(); ++i)
      if (argv[i] == "--json") write_file_atomically(argv[i + 1], document.dump());
  }
  int times_run(const std::string& verb) const {
    return static_cast<int>(std::count_if(ran_.begin(), ran_.end(), [&](const auto& a) { return verb_of(a) == verb; }));
  }

  static constexpr const char* kProblem = "b1_h1_s64_d64_fp32";
  const test::TemporaryFolder folder_;
  CampaignOptions options_;
  bool stop_ = false;
  std::vector<std::vector<std::string>> ran_;
  std::vector<double> limits_;
  std::function<CommandEnd(const std::vector<std::string>&)> answer_ = [](const auto&) {
    return CommandEnd{.exit_code = 0};
  };
};

TEST(CampaignPlan, SharesAddUpToTheBudget) {
  double sum = 0;
  for (const PhasePlan& plan : campaign_phases()) sum += plan.share;
  EXPECT_NEAR(sum, 1, 1e-9);
}

TEST_F(CampaignTest, RunsEveryPhaseInOrderWithItsVerdict) {
  const CampaignResult r = go();
  std::vector<std::string> verbs;
  for (const auto& argv : ran_) verbs.push_back(verb_of(argv));
  EXPECT_EQ(verbs, (std::vector<std::string>{"doctor", "check", "bench", "gate", "flashcore.peers", "tune", "profile",
                                             "invert", "crosscheck", "gate", "report", "economics"}));
  for (const CampaignPhase& p : r.state.phases) {
    EXPECT_EQ(p.status, PhaseStatus::kDone) << p.name;
    // Nothing was ranked, so nothing could be tried: not a pass.
    EXPECT_EQ(p.verdict, p.name == "trials" ? PhaseVerdict::kNotJudged : PhaseVerdict::kPassed) << p.name;
  }
  for (const char* file : {"campaign.json", "summary.md", "criteria.json", "ledger.json", "tuned_diff.json"})
    EXPECT_TRUE(std::filesystem::exists(options_.folder / file)) << file;
}

TEST_F(CampaignTest, AMissingVerbCouldNotJudgeAndSaysWhatWasLost) {
  answer_ = [](const auto& argv) {
    if (verb_of(argv) != "profile") return CommandEnd{.exit_code = 0};
    return CommandEnd{.exit_code = 3, .said = "flashcore: error: unknown verb 'profile'; the verbs are doctor"};
  };
  const CampaignPhase phase = *go().state.find("profile");
  EXPECT_EQ(phase.verdict, PhaseVerdict::kNotJudged);
  EXPECT_NE(phase.reason.find("has no verb 'profile'; lost: what the bottlenecks are"), std::string::npos)
      << phase.reason;
}

TEST_F(CampaignTest, ExitCodesBecomeVerdicts) {
  const auto verdict_of = [&](CommandEnd end) {
    CampaignCommand command{.argv = {"flashcore", "check"}};
    judge_command(command, end, "correctness");
    return command.verdict;
  };
  EXPECT_EQ(verdict_of({.exit_code = 0}), PhaseVerdict::kPassed);
  EXPECT_EQ(verdict_of({.exit_code = 1}), PhaseVerdict::kFailed);
  for (const int code : {2, 3, 4, 77}) EXPECT_EQ(verdict_of({.exit_code = code}), PhaseVerdict::kNotJudged) << code;
  EXPECT_EQ(verdict_of({.exit_code = -1, .how = "was ended by signal SIGSEGV"}), PhaseVerdict::kNotJudged);
}

TEST_F(CampaignTest, OneFailureFailsItsPhaseWhateverTheOthersSay) {
  answer_ = [](const auto& argv) {
    return CommandEnd{.exit_code = verb_of(argv) == "bench" ? 1 : verb_of(argv) == "flashcore.peers" ? 4 : 0};
  };
  EXPECT_EQ(go().state.find("baselines")->verdict, PhaseVerdict::kFailed);
}

TEST_F(CampaignTest, AnEmulatedGpuHasNoTimeSoThosePhasesAreNotRun) {
  options_.device.limits.emulated = true;
  const CampaignResult r = go();
  for (const char* verb : {"tune", "crosscheck", "flashcore.peers", "gate"}) EXPECT_EQ(times_run(verb), 0) << verb;
  for (const char* name : {"evolution", "trials", "crosscheck", "gate"}) {
    EXPECT_EQ(r.state.find(name)->verdict, PhaseVerdict::kNotJudged) << name;
    EXPECT_NE(r.state.find(name)->reason.find("no time"), std::string::npos) << name;
  }
}

TEST_F(CampaignTest, GoesOnAfterTheLastPhaseThatIsDone) {
  answer_ = [this](const auto& argv) {
    stop_ = verb_of(argv) == "tune";
    return CommandEnd{.exit_code = stop_ ? -1 : 0, .cancelled = stop_};
  };
  const CampaignResult broken = go();
  EXPECT_TRUE(broken.state.interrupted);
  EXPECT_EQ(broken.state.find("baselines")->status, PhaseStatus::kDone);
  EXPECT_NE(broken.state.find("evolution")->status, PhaseStatus::kDone);
  stop_ = false;
  ran_.clear();
  answer_ = [](const auto&) { return CommandEnd{.exit_code = 0}; };
  const CampaignResult r = go(load_state(options_.folder));
  EXPECT_FALSE(r.state.interrupted);
  EXPECT_EQ(times_run("check"), 0);
  EXPECT_EQ(times_run("tune"), 1);
}

// A killed campaign leaves its state as it was at the last step: the phase in flight alone is run again.
TEST_F(CampaignTest, AKillLosesThePhaseInFlightAlone) {
  struct Killed {};
  answer_ = [](const auto& argv) -> CommandEnd {
    if (verb_of(argv) == "tune") throw Killed();
    return CommandEnd{.exit_code = 0};
  };
  EXPECT_THROW(go(), Killed);
  const auto state = load_state(options_.folder);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->find("baselines")->status, PhaseStatus::kDone);
  EXPECT_EQ(state->find("evolution")->status, PhaseStatus::kRunning);
  EXPECT_EQ(state->find("profile")->status, PhaseStatus::kWaiting);
}

TEST_F(CampaignTest, AnotherSuiteOrDeviceIsNotGoneOnWith) {
  go();
  CampaignState state = *load_state(options_.folder);
  options_.suite = "quick";
  EXPECT_THROW(go(state), Error);
  options_.suite = "smoke";
  options_.device.key = "another";
  EXPECT_THROW(go(state), Error);
}

TEST_F(CampaignTest, ADamagedStateIsNamedWithWhatToDo) {
  for (const char* text : {"", "{", "[]", "{\"schema\": \"flashcore.campaign/1\"}", "{\"schema\": 7}",
                           "{\"schema\": \"flashcore.tune/1\"}"}) {
    write_file_atomically(options_.folder / kCampaignFile, text);
    try {
      load_state(options_.folder);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kBadInput) << text;
      EXPECT_NE(std::string(e.what()).find("another folder"), std::string::npos) << e.what();
    }
  }
}

TEST_F(CampaignTest, StateSurvivesJson) {
  go();
  const CampaignState state = *load_state(options_.folder);
  EXPECT_EQ(state_json(parse_state(state_json(state).dump(), "here")), state_json(state));
}

TEST_F(CampaignTest, TheBudgetIsSharedOutOverWhatIsStillToCome) {
  CampaignState state;
  for (const PhasePlan& plan : campaign_phases()) state.phases.emplace_back().name = plan.name;
  EXPECT_NEAR(seconds_for(state, "evolution", 1500), 480, 1);
  for (CampaignPhase& p : state.phases)
    if (p.name == "environment" || p.name == "correctness" || p.name == "baselines") p.status = PhaseStatus::kDone;
  // What those left over goes to the others.
  EXPECT_GT(seconds_for(state, "evolution", 1500), 700);
  EXPECT_GT(seconds_for(state, "evolution", -10), 0);
}

// The trials of a ranking: neighbours of the present config in a field that the cause has to do with.
TEST_F(CampaignTest, ARankingIsTried) {
  answer_ = [](const auto& argv) {
    if (verb_of(argv) == "invert")
      write_json(argv, {{"schema", "flashcore.invert/1"},
                        {"results", {{{"sensitivities", {{{"name", "loads from memory"}, {"speedup", 1.4}}}}}}}});
    if (verb_of(argv) == "ab")
      write_json(argv, {{"results", {{{"verdict", "FASTER"}, {"sentence", "b is faster"}, {"speedup", 1.2}}}}});
    return CommandEnd{.exit_code = verb_of(argv) == "ab" ? 1 : 0};  // slower is an answer, too
  };
  const CampaignResult r = go();
  EXPECT_GT(times_run("ab"), 0);
  EXPECT_EQ(r.state.find("trials")->verdict, PhaseVerdict::kPassed) << r.state.find("trials")->reason;
  for (const auto& argv : ran_) {
    if (verb_of(argv) == "ab") {
      EXPECT_NE(argv[2], argv[3]);
    }
  }
  EXPECT_EQ(campaign_ledger(options_.folder, r.state)["trials"][0]["verdict"], "FASTER");
  const std::string summary = read_file(options_.folder / "summary.md");
  EXPECT_NE(summary.find("loads from memory"), std::string::npos) << summary;
  EXPECT_NE(summary.find("b is faster"), std::string::npos);
}

TEST_F(CampaignTest, RankingsOfAnotherShapeAreReadLeniently) {
  for (const json& document : {json(nullptr), json::array(), json{{"results", 3}}, json{{"bottlenecks", {1, 2}}},
                               json{{"ranking", {{{"x", 1}}}}}}) {
    answer_ = [&](const auto& argv) {
      if (verb_of(argv) == "profile") write_json(argv, document);
      return CommandEnd{.exit_code = 0};
    };
    std::filesystem::remove_all(options_.folder);
    std::filesystem::create_directories(options_.folder);
    EXPECT_TRUE(ranking_of(options_.folder, go().state).empty()) << document;
  }
}

// --- criteria -------------------------------------------------------------------------------------------------------

json peer_row(const std::string& name, double speedup, double low, double high, double ours_p90 = 10,
              double peer_p90 = 12) {
  return {
      {"problem", name},
      {"name", name},
      {"time_us", {{"p50", 9}, {"p90", ours_p90}}},
      {"peers",
       {{{"name", "flash"}, {"speedup", speedup}, {"ci95", {low, high}}, {"time_us", {{"p50", 11}, {"p90", peer_p90}}}},
        {{"name", "flex"}, {"speedup", 0.5}, {"ci95", {0.4, 0.6}}, {"time_us", {{"p50", 5}, {"p90", 5}}}}}}};
}

class Criteria : public CampaignTest {
 protected:
  std::vector<Criterion> judge(const json& rows, const json& profile = nullptr, const json& winner = nullptr) {
    answer_ = [=](const auto& argv) {
      if (verb_of(argv) == "flashcore.peers") write_json(argv, {{"results", rows}});
      if (verb_of(argv) == "profile" && !profile.is_null()) write_json(argv, profile);
      if (verb_of(argv) == "tune" && !winner.is_null())
        write_json(argv, {{"results", {{{"name", "x"}, {"winner", winner}}}}});
      return CommandEnd{.exit_code = 0};
    };
    return go().criteria;
  }
};

TEST_F(Criteria, ThreeProblemsAheadMeetTheSpeedUps) {
  const auto c = judge({peer_row("a", 1.3, 1.2, 1.4), peer_row("b", 1.2, 1.12, 1.3), peer_row("c", 1.08, 1.06, 1.09)});
  EXPECT_EQ(c[0].verdict, CriterionVerdict::kMet) << c[0].evidence;
  EXPECT_EQ(c[1].verdict, CriterionVerdict::kMet) << c[1].evidence;
  EXPECT_EQ(c[2].verdict, CriterionVerdict::kMet) << c[2].evidence;
}

TEST_F(Criteria, AnIntervalThatStraddlesJudgesNothingAndOneBelowFails) {
  const auto open = judge({peer_row("a", 1.3, 1.2, 1.4), peer_row("b", 1.12, 1.05, 1.2)});
  EXPECT_EQ(open[0].verdict, CriterionVerdict::kNotJudged);
  EXPECT_EQ(open[1].verdict, CriterionVerdict::kNotMet);  // there is no third
  std::filesystem::remove_all(options_.folder);
  std::filesystem::create_directories(options_.folder);
  EXPECT_EQ(judge({peer_row("a", 1.3, 1.2, 1.4), peer_row("b", 1.0, 0.98, 1.02)})[0].verdict,
            CriterionVerdict::kNotMet);
}

TEST_F(Criteria, AWorseP90IsNotMet) {
  const auto c = judge(json::array({peer_row("a", 1.3, 1.2, 1.4, 20, 12)}));
  EXPECT_EQ(c[2].verdict, CriterionVerdict::kNotMet);
  EXPECT_NE(c[2].evidence.find("a 20.00 us against 12.00 us"), std::string::npos) << c[2].evidence;
}

TEST_F(Criteria, WithoutPeersCountersAndGpuNothingIsMet) {
  for (const Criterion& c : judge(json::array())) EXPECT_EQ(c.verdict, CriterionVerdict::kNotJudged) << c.name;
}

TEST_F(Criteria, ProfilesDecideByTheirOwnTargetsOrByOurs) {
  const auto metric = [](const char* name, const json& value, const json& met) {
    return json{{"results", {{{"indicators", {{{"name", name}, {"value", value}, {"met", met}}}}}}}};
  };
  EXPECT_EQ(judge(json::array(), metric("SM busy", 81, nullptr))[3].verdict, CriterionVerdict::kMet);
  const auto again = [&] {
    std::filesystem::remove_all(options_.folder);
    std::filesystem::create_directories(options_.folder);
  };
  again();
  EXPECT_EQ(judge(json::array(), metric("SM busy", 40, nullptr))[3].verdict, CriterionVerdict::kNotMet);
  again();
  EXPECT_EQ(judge(json::array(), metric("bank conflicts", 1.02, true))[5].verdict, CriterionVerdict::kMet);
  again();
  EXPECT_EQ(judge(json::array(), metric("bank conflicts", 4, false))[5].verdict, CriterionVerdict::kNotMet);
  again();
  EXPECT_EQ(judge(json::array(), metric("bank conflicts", nullptr, nullptr))[5].verdict, CriterionVerdict::kNotJudged);
}

TEST_F(Criteria, SpillsOfWinnersAreSeen) {
  const auto spilling = [](int bytes) {
    return json{{"artifact", {{"arch", "sm_90a"}, {"spill_store_bytes", bytes}, {"spill_load_bytes", 0}}}};
  };
  EXPECT_EQ(judge(json::array(), nullptr, spilling(0))[4].verdict, CriterionVerdict::kMet);
  std::filesystem::remove_all(options_.folder);
  std::filesystem::create_directories(options_.folder);
  EXPECT_EQ(judge(json::array(), nullptr, spilling(8))[4].verdict, CriterionVerdict::kNotMet);
}

TEST_F(CampaignTest, AThrottlingMachineIsAFinding) {
  answer_ = [](const auto& argv) {
    if (verb_of(argv) == "bench")
      write_json(argv, {{"results", {{{"environment", {{"throttle_reasons", "sw_power_cap"}}}}}}});
    return CommandEnd{.exit_code = 0};
  };
  const CampaignResult r = go();
  EXPECT_EQ(throttled_phases(options_.folder, r.state), std::vector<std::string>{"baselines"});
  EXPECT_NE(read_file(options_.folder / "summary.md").find("lowered its clocks during baselines"), std::string::npos);
}

TEST_F(CampaignTest, TheDiffOfTunedTablesIsOfWhatTheCampaignEntered) {
  answer_ = [this](const auto& argv) {
    if (verb_of(argv) == "tune") write_file_atomically(folder_.path() / "tuned.json", R"({"cpu": {"p": "cpu_fwd:"}})");
    return CommandEnd{.exit_code = 0};
  };
  go();
  const json diff = json::parse(read_file(options_.folder / "tuned_diff.json"));
  ASSERT_EQ(diff.size(), 1u);
  EXPECT_EQ(diff[0]["op"], "add");
}

// --- child processes ------------------------------------------------------------------------------------------------

CommandEnd shell(const std::filesystem::path& log, const std::string& text, double seconds = 20,
                 const std::function<bool()>& stop = {}) {
  return run_command({"/bin/sh", "-c", text}, log, seconds, stop);
}

TEST(RunCommand, EndsAreToldApart) {
  const test::TemporaryFolder folder;
  const auto log = folder.path() / "log";
  EXPECT_EQ(shell(log, "echo hello; echo oops >&2; exit 4").exit_code, 4);
  EXPECT_EQ(read_file(log), "hello\noops\n");
  EXPECT_EQ(shell(log, "echo one >&2; echo two >&2; exit 3").said, "two");
  EXPECT_EQ(shell(log, "kill -SEGV $$").exit_code, -1);
  EXPECT_NE(shell(log, "kill -SEGV $$").how.find("SIGSEGV"), std::string::npos);
  EXPECT_NE(shell(log, "sleep 60", 0.3).how.find("still running"), std::string::npos);
  EXPECT_TRUE(shell(log, "sleep 60", 20, [] { return true; }).cancelled);
  EXPECT_NE(run_command({"no-such-program"}, log, 5, {}).how.find("not on PATH"), std::string::npos);
}

}  // namespace
}  // namespace flashcore
