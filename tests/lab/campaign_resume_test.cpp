// Campaigns that were stopped, killed or cut for time, gone on with.
#include "lab/campaign/run.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <tuple>

#include "core/error.h"
#include "core/files.h"
#include "lab/campaign_fixture.h"

namespace flashcore {
namespace {

using nlohmann::json;
using test::CampaignTest;

TEST_F(CampaignTest, GoesOnAfterTheLastPhaseThatIsDone) {
  answer_ = [this](const auto& argv) {
    stop_ = verb_of(argv) == "tune";
    return CommandEnd{.exit_code = stop_ ? -1 : 0, .cancelled = stop_};
  };
  const CampaignResult broken = go();
  EXPECT_TRUE(broken.state.interrupted);
  EXPECT_EQ(broken.state.find("baselines")->status, PhaseStatus::kDone);
  EXPECT_EQ(broken.state.find("evolution")->status, PhaseStatus::kInterrupted);
  EXPECT_EQ(load_state(options_.folder)->find("evolution")->status, PhaseStatus::kInterrupted);
  stop_ = false;
  ran_.clear();
  answer_ = [](const auto&) { return CommandEnd{.exit_code = 0}; };
  const CampaignResult r = go(load_state(options_.folder));
  EXPECT_FALSE(r.state.interrupted);
  EXPECT_EQ(times_run("check"), 0);
  EXPECT_EQ(times_run("tune"), 1);
}

class ResumedInBaselines : public CampaignTest {
 protected:
  // bench judged and failed, the baseline was recorded, and the peers were interrupted.
  CampaignState broken() {
    answer_ = [this](const auto& argv) {
      write_results(argv);
      stop_ = verb_of(argv) == "flashcore.peers";
      return CommandEnd{.exit_code = verb_of(argv) == "bench" ? 1 : 0, .cancelled = stop_};
    };
    go();
    stop_ = false;
    ran_.clear();
    answer_ = [this](const auto& argv) {
      write_results(argv);
      return CommandEnd{.exit_code = 0};
    };
    return *load_state(options_.folder);
  }
  int gates_run() const { return times_run("gate") - 1; }  // but that of the phase `gate`
};

TEST_F(ResumedInBaselines, CommandsThatJudgedAreNotRunAgain) {
  const CampaignState state = broken();
  const CampaignPhase before = *state.find("baselines");
  const CampaignPhase after = *go(state).state.find("baselines");
  EXPECT_EQ(times_run("bench"), 0);
  EXPECT_EQ(gates_run(), 0);
  EXPECT_EQ(times_run("flashcore.peers"), 1) << "an interrupted one is, whatever it ended with";
  ASSERT_EQ(after.commands.size(), 3u);
  EXPECT_EQ(after.commands[0].started_at, before.commands[0].started_at);
  EXPECT_EQ(after.verdict, PhaseVerdict::kFailed) << "what failed has failed";
  EXPECT_GE(after.seconds, before.seconds) << "the machine was held for the interrupted one, too";
}

TEST_F(ResumedInBaselines, AKilledCampaignKeepsThemToo) {
  CampaignState state = broken();
  for (CampaignPhase& phase : state.phases)
    if (phase.status == PhaseStatus::kInterrupted) phase.status = PhaseStatus::kRunning;
  go(state);
  EXPECT_EQ(times_run("bench") + gates_run(), 0);
}

TEST_F(ResumedInBaselines, WithoutItsFilesACommandRunsAgain) {
  for (const auto& [file, benches, gates] :
       {std::tuple{"03_baselines.json", 1, 0}, std::tuple{"03_baselines.log", 1, 0},
        std::tuple{"03_baselines_2.log", 0, 1}, std::tuple{"baseline.json", 0, 1}, std::tuple{"trials.db", 1, 1}}) {
    again();
    const CampaignState state = broken();
    std::filesystem::remove(options_.folder / file);
    go(state);
    EXPECT_EQ(times_run("bench"), benches) << file;
    EXPECT_EQ(gates_run(), gates) << file;
  }
  again();
  const CampaignState state = broken();
  write_file_atomically(options_.folder / "03_baselines.json", "{\"results\": [");
  go(state);
  EXPECT_EQ(times_run("bench"), 1) << "cut short";
}

TEST_F(ResumedInBaselines, OtherArgumentsAreAnotherCommand) {
  const CampaignState state = broken();
  options_.program = "/opt/flashcore";
  go(state);
  EXPECT_EQ(times_run("bench"), 1);
  EXPECT_EQ(gates_run(), 1);
}

TEST_F(ResumedInBaselines, WhatCouldNotJudgeRunsAgain) {
  CampaignState state = broken();
  for (CampaignPhase& phase : state.phases)
    for (CampaignCommand& command : phase.commands) {
      if (phase.name != "baselines") continue;
      command.exit_code = 2;
      command.verdict = PhaseVerdict::kNotJudged;
    }
  go(state);
  EXPECT_EQ(times_run("bench"), 1);
}

// What had its time and was ended is tried again, with what reads its results; what judged beside it is kept.
TEST_F(CampaignTest, WhatWasCutForTimeIsTriedAgain) {
  const CommandEnd cut = {.how = "was still running after 5 s and was ended", .out_of_time = true};
  answer_ = [&](const auto& argv) {
    if (verb_of(argv) == "flashcore.peers" || verb_of(argv) == "invert") return cut;
    write_results(argv);
    return CommandEnd{.exit_code = 0};
  };
  const CampaignState first = go().state;
  for (const char* phase : {"baselines", "inversion"}) {
    EXPECT_EQ(first.find(phase)->verdict, PhaseVerdict::kNotJudged) << phase;
    EXPECT_EQ(first.find(phase)->status, PhaseStatus::kDone) << phase;
    EXPECT_NE(first.find(phase)->reason.find("--resume tries it again"), std::string::npos)
        << first.find(phase)->reason;
  }
  ran_.clear();
  answer_ = [this](const auto& argv) {
    write_results(argv);
    return CommandEnd{.exit_code = 0};
  };
  const CampaignState again = go(load_state(options_.folder)).state;
  std::vector<std::string> verbs;
  for (const auto& argv : ran_) verbs.push_back(verb_of(argv));
  EXPECT_EQ(verbs, (std::vector<std::string>{"flashcore.peers", "invert", "gate", "report", "economics"}));
  for (const CampaignPhase& p : again.phases) {
    EXPECT_EQ(p.status, PhaseStatus::kDone) << p.name;
    EXPECT_EQ(p.verdict, p.name == "trials" ? PhaseVerdict::kNotJudged : PhaseVerdict::kPassed) << p.name;
    EXPECT_EQ(p.reason.find("--resume"), std::string::npos) << p.reason;
  }
  ran_.clear();
  go(load_state(options_.folder));
  EXPECT_TRUE(ran_.empty()) << "a whole campaign has nothing left to do";
}

// A package was missing, and was installed: --resume notices. While it is missing nothing else runs again.
TEST_F(CampaignTest, WhatLackedSomethingIsTriedAgain) {
  const json no_tools = {{"results",
                          {{{"methods",
                             {{{"method", "loop"}, {"in_process", true}, {"time_us", {{"p50", 1}}}},
                              {{"method", "profiler"}, {"in_process", false}, {"time_us", nullptr}}}}}}}};
  bool repaired = false;
  answer_ = [&](const auto& argv) {
    if (verb_of(argv) == "flashcore.peers" && !repaired)
      return CommandEnd{.exit_code = 4, .said = "No module named 'torch'"};
    if (verb_of(argv) == "crosscheck" && !repaired) {
      write_json(argv, no_tools);
      return CommandEnd{.exit_code = 2, .said = "no other tool is here"};
    }
    write_results(argv);
    return CommandEnd{.exit_code = 0};
  };
  const CampaignState first = go().state;
  EXPECT_EQ(first.find("crosscheck")->reason.find("no other tool is here; --resume tries it again"), 0u)
      << first.find("crosscheck")->reason;
  ran_.clear();
  const CampaignState still = go(load_state(options_.folder)).state;
  std::vector<std::string> verbs;
  for (const auto& argv : ran_) verbs.push_back(verb_of(argv));
  EXPECT_EQ(verbs, (std::vector<std::string>{"flashcore.peers", "crosscheck"}));
  EXPECT_EQ(still.find("gate")->started_at, first.find("gate")->started_at);
  EXPECT_EQ(still.find("gate")->verdict, PhaseVerdict::kPassed);
  repaired = true;
  ran_.clear();
  const CampaignState again = go(load_state(options_.folder)).state;
  verbs.clear();
  for (const auto& argv : ran_) verbs.push_back(verb_of(argv));
  EXPECT_EQ(verbs, (std::vector<std::string>{"flashcore.peers", "crosscheck", "gate", "report", "economics"}));
  EXPECT_EQ(again.find("baselines")->verdict, PhaseVerdict::kPassed);
  EXPECT_EQ(again.find("crosscheck")->verdict, PhaseVerdict::kPassed);
}

// A quiet machine may judge what a busy one could not. Only others' cores of a CPU account for it.
TEST_F(CampaignTest, WhatABusyMachineKeptFromJudgingIsTriedAgain) {
  double others = 1.25;
  std::string device = "cpu";
  answer_ = [&](const auto& argv) {
    write_results(argv);
    if (verb_of(argv) != "crosscheck") return CommandEnd{.exit_code = 0};
    const json loop = {{"method", "loop"}, {"in_process", true}, {"time_us", {{"p50", 1}}}};
    const json profiler = {
        {"method", "profiler"}, {"in_process", false}, {"time_us", {{"p50", 1}}}, {"others_busy", others}};
    write_json(argv, {{"results", {{{"device", {{"id", device}}}, {"methods", {loop, profiler}}}}}});
    return CommandEnd{.exit_code = others >= 0 ? 2 : 0, .said = "1 not judged"};
  };
  const auto crosscheck = [&] {
    ran_.clear();
    return *go(load_state(options_.folder)).state.find("crosscheck");
  };
  CampaignPhase phase = crosscheck();
  EXPECT_TRUE(phase.commands.front().busy);
  EXPECT_EQ(phase.reason.find("1 not judged; the machine was busy: other programs kept up to 1.2 cores busy; --resume "
                              "tries it again; lost: "),
            0u)
      << phase.reason;
  crosscheck();
  EXPECT_EQ(times_run("crosscheck"), 1) << "busy still";
  EXPECT_EQ(times_run("bench"), 0);
  others = -1;
  phase = crosscheck();
  EXPECT_EQ(times_run("crosscheck"), 1);
  EXPECT_EQ(phase.verdict, PhaseVerdict::kPassed) << phase.reason;
  crosscheck();
  EXPECT_TRUE(ran_.empty()) << "it has judged";
  // Below a quarter of a core, and on a GPU, something else is the matter.
  for (const auto& [busy, id] : {std::pair{0.1, "cpu"}, std::pair{1.25, "cuda"}}) {
    again();
    others = busy;
    device = id;
    EXPECT_FALSE(crosscheck().commands.front().busy) << id;
    crosscheck();
    EXPECT_TRUE(ran_.empty()) << id;
  }
}

TEST_F(CampaignTest, ATrialThatABusyMachineLeftOpenSaysSo) {
  CampaignCommand command{.argv = {"flashcore", "ab"}};
  const json result = {
      {"device", {{"id", "cpu"}}},
      {"verdict", "INCONCLUSIVE"},
      {"processes", {{{"machine", {{"others_busy", nullptr}}}}, {{"machine", {{"others_busy", 0.5}}}}}}};
  judge_command(command, {.exit_code = 2, .said = "INCONCLUSIVE"}, "trials", {{"results", {result}}});
  EXPECT_TRUE(command.busy);
  EXPECT_NE(command.reason.find("kept up to 0.5 cores busy"), std::string::npos) << command.reason;
  CampaignPhase trials{.name = "trials", .commands = {command, command}};
  judge_phase(trials);
  EXPECT_EQ(trials.reason.find("2 trials: 0 faster, 2 inconclusive; the machine was busy during 2 of them (--resume "
                               "tries it again); details in ledger.json"),
            0u)
      << trials.reason;
  // What was judged was judged, busy or not.
  judge_command(command, {.exit_code = 0}, "trials", {{"results", {result}}});
  EXPECT_FALSE(command.busy);
}

// One problem was left open, which a quiet machine would judge. What was judged beside it says nothing of why.
TEST_F(CampaignTest, AGateThatABusyMachineKeptFromJudgingIsTriedAgain) {
  double others_of_open = 1.25;
  std::string device = "cpu_epyc_2c";
  answer_ = [&](const auto& argv) {
    write_results(argv);
    if (verb_of(argv) != "gate" || std::count(argv.begin(), argv.end(), "--write-baseline") > 0)
      return CommandEnd{.exit_code = 0};
    const auto row = [&](const char* verdict, double others) {
      const json readings = {{{"others_busy", nullptr}}, {{"others_busy", others}}};
      return json{{"device", device}, {"verdict", verdict}, {"machine", readings}};
    };
    const bool is_open = others_of_open >= 0;
    write_json(argv, {{"results", {row("SAME", 1.9), row(is_open ? "INCONCLUSIVE" : "SAME", others_of_open)}}});
    return CommandEnd{.exit_code = is_open ? 2 : 0, .said = "1 passed, 0 failed, 1 not judged"};
  };
  const auto gate = [&] {
    ran_.clear();
    return *go(load_state(options_.folder)).state.find("gate");
  };
  CampaignPhase phase = gate();
  EXPECT_TRUE(phase.commands.front().busy);
  EXPECT_NE(
      phase.reason.find("the machine was busy: other programs kept up to 1.2 cores busy; --resume tries it again"),
      std::string::npos)
      << phase.reason;
  others_of_open = -1;
  phase = gate();
  EXPECT_EQ(times_run("gate"), 1) << "the baseline stays";
  EXPECT_EQ(phase.verdict, PhaseVerdict::kPassed) << phase.reason;
  gate();
  EXPECT_TRUE(ran_.empty()) << "it has judged";
  for (const auto& [busy, key] : {std::pair{0.1, "cpu_epyc_2c"}, std::pair{1.25, "h200"}}) {
    again();
    others_of_open = busy;
    device = key;
    EXPECT_FALSE(gate().commands.front().busy) << key;
    gate();
    EXPECT_TRUE(ran_.empty()) << key;
  }
}

// What a finished phase says must still be there, and be an answer to what is asked.
TEST_F(CampaignTest, APhaseWhoseFilesAreGoneOrWhoseCommandsChangedIsTriedAgain) {
  go();
  const auto resumed = [&] {
    ran_.clear();
    go(load_state(options_.folder));
    return ran_.size();
  };
  EXPECT_EQ(resumed(), 0u) << (ran_.empty() ? "" : verb_of(ran_.front()));
  std::filesystem::remove(options_.folder / "02_correctness.json");
  resumed();
  EXPECT_EQ(times_run("check"), 1);
  EXPECT_EQ(times_run("doctor"), 0);
  options_.python = "another";
  resumed();
  EXPECT_EQ(times_run("flashcore.peers"), 1);
  EXPECT_EQ(times_run("crosscheck"), 1);
  EXPECT_EQ(times_run("bench"), 0);
}

TEST_F(CampaignTest, WhatIsCutAgainIsTriedAgain) {
  answer_ = [&](const auto& argv) {
    if (verb_of(argv) == "tune") return CommandEnd{.how = "was still running", .out_of_time = true};
    write_results(argv);
    return CommandEnd{.exit_code = 0};
  };
  go();
  for (int attempt = 0; attempt < 2; ++attempt) {
    ran_.clear();
    const CampaignState state = go(load_state(options_.folder)).state;
    EXPECT_EQ(times_run("tune"), 1);
    EXPECT_EQ(times_run("doctor"), 0);
    EXPECT_EQ(state.find("evolution")->verdict, PhaseVerdict::kNotJudged);
  }
}

// Stopped before it comes to the phase that was cut: the next attempt still knows of it.
TEST_F(CampaignTest, ACutPhaseIsNotForgottenByAResumeThatIsStopped) {
  answer_ = [&](const auto& argv) {
    if (verb_of(argv) == "tune" || verb_of(argv) == "check")
      return CommandEnd{.how = "was still running", .out_of_time = true};
    write_results(argv);
    return CommandEnd{.exit_code = 0};
  };
  go();
  answer_ = [this](const auto& argv) {
    stop_ = verb_of(argv) == "check";
    return CommandEnd{.exit_code = 0, .cancelled = stop_};
  };
  EXPECT_TRUE(go(load_state(options_.folder)).state.interrupted);
  stop_ = false;
  ran_.clear();
  answer_ = [this](const auto& argv) {
    write_results(argv);
    return CommandEnd{.exit_code = 0};
  };
  const CampaignState state = go(load_state(options_.folder)).state;
  EXPECT_EQ(times_run("check"), 1);
  EXPECT_EQ(times_run("tune"), 1);
  EXPECT_EQ(times_run("bench"), 0);
  EXPECT_EQ(state.find("evolution")->verdict, PhaseVerdict::kPassed);
}

// Its share of the new budget is another, and what was raced for three seconds was judged.
TEST_F(CampaignTest, AnotherAmountOfTimeIsTheSameCommand) {
  answer_ = [this](const auto& argv) {
    write_results(argv);
    stop_ = verb_of(argv) == "tune";
    return CommandEnd{.exit_code = 0};
  };
  go();
  stop_ = false;
  CampaignState state = *load_state(options_.folder);
  for (CampaignPhase& phase : state.phases) {
    if (phase.name != "evolution") continue;
    EXPECT_EQ(phase.commands.front().argv[2], "--budget");
    phase.status = PhaseStatus::kRunning;  // killed between the command and the phase's end
  }
  options_.budget_seconds = 1000;
  ran_.clear();
  go(state);
  EXPECT_EQ(times_run("tune"), 0);
}

// However long it took so far.
TEST_F(CampaignTest, AResumedCampaignSharesOutANewBudgetOverWhatIsStillToDo) {
  answer_ = [this](const auto& argv) {
    stop_ = verb_of(argv) == "tune";
    return CommandEnd{.exit_code = 0, .cancelled = stop_};
  };
  go();
  CampaignState state = *load_state(options_.folder);
  for (CampaignPhase& phase : state.phases) phase.seconds = 1e4;
  stop_ = false;
  limits_.clear();
  options_.budget_seconds = 1000;
  answer_ = [](const auto&) { return CommandEnd{.exit_code = 0}; };
  const CampaignState after = go(state).state;
  double shares = 0;
  for (const CampaignPhase& phase : after.phases)
    if (state.find(phase.name)->status != PhaseStatus::kDone) shares += phase_plan(phase.name).share;
  EXPECT_NEAR(after.find("evolution")->budget_seconds, 1000 * phase_plan("evolution").share / shares, 1);
  EXPECT_NEAR(limits_.front(), 2 * after.find("evolution")->budget_seconds, 1);
  EXPECT_EQ(after.budget_seconds, 1000);
  EXPECT_GE(after.find("evolution")->seconds, 1e4) << "what it took before stays in its cost";
}

// A killed campaign leaves its state as it was at the last step: what had not ended is run again.
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

// What ran is only known from all lines: the second may have another budget.
TEST_F(CampaignTest, EachSessionLeavesItsOwnLine) {
  options_.argv = {"flashcore", "campaign", "--budget", "30s"};
  go();
  const std::vector<std::string> first = options_.argv;
  options_.argv = {"flashcore", "campaign", "--resume", "--budget", "3m"};
  go(load_state(options_.folder));
  const CampaignState state = *load_state(options_.folder);
  ASSERT_EQ(state.sessions.size(), 2u);
  EXPECT_EQ(state.sessions[0].argv, first);
  EXPECT_EQ(state.sessions[1].argv, options_.argv);
  EXPECT_FALSE(state.sessions[1].began_at.empty());
  // A state of an earlier version has the first line, or none.
  json older = state_json(state);
  older.erase("sessions");
  EXPECT_TRUE(parse_state(older.dump(), "here").sessions.at(0).argv.empty());
  older["argv"] = first;
  EXPECT_EQ(parse_state(older.dump(), "here").sessions.at(0).argv, first);
  go(parse_state(older.dump(), "here"));
  EXPECT_EQ(load_state(options_.folder)->sessions.size(), 2u);
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

TEST_F(CampaignTest, AnotherSourceOfTheKernelsIsNotGoneOnWith) {
  go();
  CampaignState state = *load_state(options_.folder);
  EXPECT_NO_THROW(go(state));
  for (const char* other : {"", "0123456789abcdef"}) {
    state.source_hash = other;
    EXPECT_THROW(go(state), Error) << other;
  }
}

TEST_F(CampaignTest, AFolderIsOfOneCampaignAtATime) {
  auto lock = lock_campaign_folder(options_.folder);
  EXPECT_THROW(lock_campaign_folder(options_.folder), Error);
  lock.reset();
  EXPECT_NO_THROW(lock_campaign_folder(options_.folder));
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

}  // namespace
}  // namespace flashcore
