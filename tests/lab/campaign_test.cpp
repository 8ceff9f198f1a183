#include "lab/campaign/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/files.h"
#include "lab/campaign_fixture.h"
#include "lab/gates/pair.h"

namespace flashcore {
namespace {

using nlohmann::json;
using test::CampaignTest;

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

// ab's 1 is of a slower candidate, of one that failed its gates, and of a parameter that changes nothing.
TEST_F(CampaignTest, InTrialsOnlyAMeasuredPairThatIsSlowerIsAnAnswer) {
  const auto verdict_of = [](const char* ended, const char* verdict, const json& inert) {
    CampaignCommand command{.argv = {"flashcore", "ab"}};
    judge_command(command, {.exit_code = 1}, "trials",
                  {{"results", {{{"ended", ended}, {"verdict", verdict}, {"inert_fields", inert}}}}});
    return command.verdict;
  };
  const std::string measured(to_string(PairEnded::kMeasured)), failed(to_string(PairEnded::kCandidateFailed)),
      same(to_string(PairEnded::kSameCode)), slower(to_string(SpeedVerdict::kSlower));
  EXPECT_EQ(verdict_of(measured.c_str(), slower.c_str(), json::array()), PhaseVerdict::kPassed);
  EXPECT_EQ(verdict_of(failed.c_str(), "could not judge", json::array()), PhaseVerdict::kFailed);
  EXPECT_EQ(verdict_of(same.c_str(), "SAME", {"block_n"}), PhaseVerdict::kFailed);
  EXPECT_EQ(verdict_of(measured.c_str(), slower.c_str(), {"block_n"}), PhaseVerdict::kFailed);
  CampaignCommand silent{.argv = {"flashcore", "ab"}};
  judge_command(silent, {.exit_code = 1}, "trials");
  EXPECT_EQ(silent.verdict, PhaseVerdict::kFailed);
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
  for (const char* verb : {"doctor", "bench", "tune", "crosscheck", "flashcore.peers", "gate"})
    EXPECT_EQ(times_run(verb), 0) << verb;
  for (const char* name : {"environment", "baselines", "evolution", "trials", "crosscheck", "gate"}) {
    EXPECT_EQ(r.state.find(name)->verdict, PhaseVerdict::kNotJudged) << name;
    EXPECT_NE(r.state.find(name)->reason.find("no time"), std::string::npos) << name;
  }
}

// Two tools after the engine's own rounds, so that all three end within the phase.
TEST_F(CampaignTest, AToolOfTheCrosscheckMayTakeAThirdOfItsPhase) {
  const auto commands = commands_of("crosscheck", options_, {}, 90);
  ASSERT_EQ(commands.size(), 1u);
  const auto& argv = commands.front().argv;
  const auto at = std::find(argv.begin(), argv.end(), "--tool-time");
  ASSERT_NE(at, argv.end());
  EXPECT_EQ(at[1], "30s");
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
