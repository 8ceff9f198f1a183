#include "lab/campaign/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <tuple>

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

TEST_F(CampaignTest, AMissingPythonPackageIsSkippedAndSaysHowToGetIt) {
  const auto judged = [](CommandEnd end, std::vector<std::string> argv = {"python3", "-m", "flashcore.peers"}) {
    CampaignCommand command{.argv = std::move(argv)};
    judge_command(command, end, "baselines", end.said == "it is slower" ? json::object() : json());
    return command;
  };
  for (const auto& [code, said, package, how] :
       {std::tuple{1,
                   "python3: Error while finding module specification for 'flashcore.peers' (ModuleNotFoundError: No "
                   "module named 'flashcore')",
                   "flashcore", "pip wheel"},
        std::tuple{1, "/usr/bin/python3: No module named flashcore.peers", "flashcore", "PYTHONPATH"},
        std::tuple{4, "flashcore: error: the peer python3 cannot join: ModuleNotFoundError: No module named 'torch'",
                   "torch", "python3 -m pip install torch"}}) {
    const CampaignCommand command = judged({.exit_code = code, .said = said});
    EXPECT_EQ(command.verdict, PhaseVerdict::kNotJudged) << said;
    EXPECT_TRUE(command.reason.starts_with(std::string("skipped: the Python package ") + package + " is missing"))
        << command.reason;
    EXPECT_NE(command.reason.find(how), std::string::npos) << command.reason;
    EXPECT_EQ(command.reason.find("PYTHONPATH") != std::string::npos,
              command.reason.find("FLASHCORE_LIBRARY") != std::string::npos)
        << command.reason;
    EXPECT_TRUE(command.lacked);
    EXPECT_TRUE(command.reason.ends_with("; --resume tries it again")) << command.reason;
  }
  // Of another program these words are its own, and a failure without them stays one.
  EXPECT_EQ(judged({.exit_code = 1, .said = "No module named x"}, {"flashcore", "check"}).verdict,
            PhaseVerdict::kFailed);
  EXPECT_EQ(judged({.exit_code = 1, .said = "it is slower"}).verdict, PhaseVerdict::kFailed);
  // A Python that ends before it has written anything has judged nothing.
  const CampaignCommand died = judged({.exit_code = 1, .said = "SyntaxError: invalid syntax"});
  EXPECT_EQ(died.verdict, PhaseVerdict::kNotJudged);
  EXPECT_NE(died.reason.find("python3 ended with 1 before it judged anything"), std::string::npos) << died.reason;
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

TEST_F(CampaignTest, AReasonOfAPhaseThatPassedSaysWhatWasLeftOpen) {
  CampaignPhase trials{.name = "trials", .commands = std::vector<CampaignCommand>(3)};
  trials.commands[0].verdict = PhaseVerdict::kPassed;
  trials.commands[0].answer = "SLOWER";
  trials.commands[1].reason = trials.commands[2].reason = "INCONCLUSIVE  a sentence of 300 bytes";
  trials.commands[1].answer = trials.commands[2].answer = "INCONCLUSIVE";
  judge_phase(trials);
  EXPECT_EQ(trials.verdict, PhaseVerdict::kPassed);
  EXPECT_EQ(trials.reason, "3 trials: 0 faster, 2 inconclusive, 1 slower; details in ledger.json");
  trials.commands[1] = {.verdict = PhaseVerdict::kFailed, .reason = "it judged, and failed: wrong"};
  trials.commands[2].answer = "";
  judge_phase(trials);
  EXPECT_EQ(trials.reason,
            "3 trials: 0 faster, 1 slower, 1 without an answer, 1 failed; details in ledger.json; of those that failed "
            "the first: it judged, and failed: wrong");
}

TEST_F(CampaignTest, AReasonDoesNotRepeatItsVerdict) {
  CampaignCommand command{.argv = {"flashcore", "crosscheck"}};
  judge_command(command, {.exit_code = 2, .said = "no other tool is here"}, "crosscheck");
  EXPECT_EQ(command.reason, "no other tool is here");
  judge_command(command, {.exit_code = 2}, "crosscheck");
  EXPECT_EQ(command.reason, "it ended with 2");
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

TEST_F(CampaignTest, AnEmulatedGpuRecordsATimelineAndMakesThePageWithoutATrial) {
  options_.device = open_device("emulator")->info();
  options_.problems.problems = {{"big", PlacedProblem::parse("b1_h8_s4096_d64_fp16")}};
  answer_ = [](const auto& argv) {
    if (verb_of(argv) == "profile")
      write_json(argv, {{"results", {{{"indicators", {{{"name", "SM busy"}, {"value", 80}, {"met", true}}}}}}}});
    return CommandEnd{.exit_code = 0};
  };
  const CampaignResult r = go();
  EXPECT_EQ(times_run("timeline"), 1);
  const auto timeline =
      std::find_if(ran_.begin(), ran_.end(), [](const auto& argv) { return verb_of(argv) == "timeline"; });
  ASSERT_NE(timeline, ran_.end());
  // The emulator would take minutes for the problem itself.
  EXPECT_EQ(std::count(timeline->begin(), timeline->end(), "b1_h8_s4096_d64_fp16"), 0);
  EXPECT_EQ(r.state.find("artefacts")->verdict, PhaseVerdict::kPassed);
  EXPECT_EQ(times_run("report"), 1);
  EXPECT_EQ(times_run("economics"), 0);
  // A timeline is no profile that lacks a metric.
  EXPECT_EQ(r.criteria[3].verdict, CriterionVerdict::kMet) << r.criteria[3].evidence;
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
  EXPECT_GE(after.seconds, before.commands[0].seconds + before.commands[1].seconds);
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

// The evolution entered its winner. What is of the time before it must not be measured with it.
TEST_F(CampaignTest, BaselinesAreOfWhatDispatchChoseBeforeTheEvolution) {
  const auto file = folder_.path() / "tuned.json";
  const json before = {{"cpu", {{"old", "cpu_fwd:"}}}}, after = {{"cpu", {{"old", "cpu_fwd:block_m=2"}}}};
  write_file_atomically(file, before.dump());
  std::vector<std::pair<std::string, json>> seen;  // each command's verb, and the table that it finds
  bool cut = true;
  answer_ = [&](const auto& argv) {
    const Variables& own = variables_.back();
    const auto named = own.find("FLASHCORE_TUNED");
    seen.emplace_back(verb_of(argv), json::parse(read_file(named == own.end() ? file.string() : named->second)));
    if (verb_of(argv) == "tune") write_file_atomically(file, after.dump());
    const bool late = verb_of(argv) == "bench" || verb_of(argv) == "flashcore.peers" ||
                      std::count(argv.begin(), argv.end(), "--write-baseline") > 0;
    if (late && cut) return CommandEnd{.how = "was still running", .out_of_time = true};
    write_results(argv);
    return CommandEnd{.exit_code = 0};
  };
  go();
  cut = false;
  const std::size_t first = seen.size();
  const CampaignState again = go(load_state(options_.folder)).state;
  int gates = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const auto& [verb, table] = seen[i];
    const bool of_before = verb == "bench" || verb == "flashcore.peers" || verb == "check" || verb == "doctor" ||
                           verb == "tune" || (verb == "gate" && ++gates == 1) ||
                           (verb == "gate" && i >= first && gates == 2);
    EXPECT_EQ(table, of_before ? before : after) << i << " " << verb;
  }
  EXPECT_EQ(gates, 3) << "two attempts to record a baseline, and the gate";
  EXPECT_EQ(again.find("baselines")->commands.front().variables.at("FLASHCORE_TUNED"),
            (options_.folder / "tuned_before.json").string());
  // Without the table nothing tells what dispatch chose.
  std::filesystem::remove(options_.folder / "03_baselines.json");
  std::filesystem::remove(options_.folder / "tuned_before.json");
  ran_.clear();
  const CampaignPhase lost = *go(load_state(options_.folder)).state.find("baselines");
  EXPECT_EQ(times_run("bench") + times_run("flashcore.peers"), 0);
  EXPECT_EQ(lost.verdict, PhaseVerdict::kNotJudged);
  EXPECT_NE(lost.reason.find("tuned_before.json is gone or damaged"), std::string::npos) << lost.reason;
}

TEST_F(CampaignTest, AGateWithoutABaselineSaysWhyThereIsNone) {
  bool cut = true;
  answer_ = [&](const auto& argv) {
    if (std::count(argv.begin(), argv.end(), "--write-baseline") > 0 && cut)
      return CommandEnd{.exit_code = 2, .said = "the machine was busy"};
    write_results(argv);
    return CommandEnd{.exit_code = 0};
  };
  const CampaignPhase gate = *go().state.find("gate");
  EXPECT_EQ(gate.verdict, PhaseVerdict::kNotJudged);
  EXPECT_NE(gate.reason.find("the baselines phase recorded none (the machine was busy); --resume tries it again"),
            std::string::npos)
      << gate.reason;
  cut = false;
  ran_.clear();
  const CampaignState again = go(load_state(options_.folder)).state;
  EXPECT_EQ(times_run("gate"), 2);
  EXPECT_EQ(times_run("bench"), 0);
  EXPECT_EQ(again.find("gate")->verdict, PhaseVerdict::kPassed) << again.find("gate")->reason;
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

TEST_F(CampaignTest, TheSummarySaysEachProblemsIdOnceAndItsNameElsewhere) {
  answer_ = [](const auto& argv) {
    if (verb_of(argv) == "invert") write_json(argv, {{"results", {{{"answer", "fewer loads would help most"}}}}});
    return CommandEnd{.exit_code = 0};
  };
  go();
  const std::string summary = read_file(options_.folder / "summary.md");
  EXPECT_NE(summary.find("Problems: tiny (b1\\_h1\\_s64\\_d64\\_fp32)."), std::string::npos) << summary;
  EXPECT_NE(summary.find("inversion of tiny: fewer loads"), std::string::npos) << summary;
  EXPECT_EQ(summary.find("inversion of b1"), std::string::npos) << summary;
}

TEST_F(CampaignTest, FilesThatAreGoneAreNamedWithThePhasesThatWroteThem) {
  const CampaignState state = go().state;
  EXPECT_TRUE(missing_files(options_.folder, state).empty());
  std::filesystem::remove(options_.folder / "trials.db");
  std::filesystem::remove(options_.folder / "05_profile.json");
  const auto missing = missing_files(options_.folder, state);
  ASSERT_EQ(missing.size(), 2u);
  EXPECT_EQ(missing[0].name, "trials.db");
  EXPECT_EQ(missing[0].phases.front(), "baselines");
  EXPECT_EQ(missing[1].name, "05_profile.json");
  EXPECT_EQ(missing[1].phases, std::vector<std::string>{"profile"});
  // What could not judge has written nothing that could be missed.
  again();
  answer_ = [](const auto&) { return CommandEnd{.exit_code = 2}; };
  EXPECT_TRUE(missing_files(options_.folder, go().state).empty());
}

TEST_F(CampaignTest, TuneIsGivenALedgerThatIsThere) {
  const auto ledger_of_tune = [&] {
    const auto argv = commands_of("evolution", options_, {}, 90).front().argv;
    const auto at = std::find(argv.begin(), argv.end(), "--ledger");
    return at == argv.end() ? "" : at[1];
  };
  options_.ledger = folder_.path() / "nowhere";
  EXPECT_EQ(ledger_of_tune(), "");
  options_.ledger = folder_.path();
  EXPECT_EQ(ledger_of_tune(), folder_.path());
}

TEST_F(CampaignTest, StateSurvivesJson) {
  options_.argv = {"flashcore", "campaign", "--budget", "100s"};
  go();
  const CampaignState state = *load_state(options_.folder);
  EXPECT_EQ(state.argv, options_.argv);
  EXPECT_EQ(state.names, std::vector<std::string>{"tiny"});
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
  return run_command({"/bin/sh", "-c", text}, {}, log, seconds, stop);
}

TEST(RunCommand, EndsAreToldApart) {
  const test::TemporaryFolder folder;
  const auto log = folder.path() / "log";
  EXPECT_EQ(shell(log, "echo hello; echo oops >&2; exit 4").exit_code, 4);
  EXPECT_EQ(read_file(log), "hello\noops\n");
  EXPECT_EQ(run_command({"/bin/sh", "-c", "exit $CODE"}, {{"CODE", "5"}}, log, 20, {}).exit_code, 5);
  EXPECT_EQ(shell(log, "echo one >&2; echo two >&2; exit 3").said, "two");
  // A warning is no verdict, and says something only where nothing else does.
  EXPECT_EQ(shell(log, "echo INCONCLUSIVE x; echo '  warning: others were busy'; exit 2").said, "INCONCLUSIVE x");
  EXPECT_EQ(shell(log, "echo SLOWER; echo 'flashcore: warning: passed over' >&2; exit 1").said, "SLOWER");
  EXPECT_EQ(shell(log, "echo 'warning: busy'; exit 2").said, "warning: busy");
  EXPECT_EQ(shell(log, "exit 2").said, "");
  EXPECT_EQ(shell(log, "kill -SEGV $$").exit_code, -1);
  EXPECT_NE(shell(log, "kill -SEGV $$").how.find("SIGSEGV"), std::string::npos);
  const CommandEnd late = shell(log, "sleep 60", 0.3);
  EXPECT_NE(late.how.find("still running"), std::string::npos);
  EXPECT_TRUE(late.out_of_time);
  EXPECT_FALSE(shell(log, "exit 2").out_of_time);
  EXPECT_TRUE(shell(log, "sleep 60", 20, [] { return true; }).cancelled);
  // A child that saves what it has may do so; one that does not is killed.
  const auto once_ready = [&] { return std::filesystem::exists(folder.path() / "ready"); };
  const std::string ready = "; touch " + (folder.path() / "ready").string() + "; sleep 60";
  const CommandEnd saved = shell(log, "trap 'echo saved; exit 2' INT" + ready, 20, once_ready);
  EXPECT_TRUE(saved.cancelled);
  EXPECT_EQ(saved.exit_code, 2);
  EXPECT_EQ(read_file(log), "saved\n");
  std::filesystem::remove(folder.path() / "ready");
  const CommandEnd deaf = shell(log, "trap '' INT" + ready, 20, once_ready);
  EXPECT_TRUE(deaf.cancelled);
  EXPECT_NE(deaf.how.find("was killed"), std::string::npos) << deaf.how;
  // Out of time, too.
  shell(log, "trap 'echo saved; exit 2' INT; sleep 60", 1);
  EXPECT_EQ(read_file(log), "saved\n");
  const CommandEnd none = run_command({"no-such-program"}, {}, log, 5, {});
  EXPECT_NE(none.how.find("not on PATH"), std::string::npos);
  EXPECT_TRUE(none.no_program);
}

}  // namespace
}  // namespace flashcore
