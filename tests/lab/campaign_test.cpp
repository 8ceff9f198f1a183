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

TEST_F(CampaignTest, AGateThatPassedSaysWhatItDidNotTime) {
  bool same = true;
  answer_ = [&](const auto& argv) {
    const json results = {json{{"same_code", same}}, json{{"same_code", false}}};
    if (verb_of(argv) == "gate") write_json(argv, json{{"results", results}});
    return CommandEnd{.exit_code = 0};
  };
  const CampaignPhase some = *go().state.find("gate");
  EXPECT_EQ(some.verdict, PhaseVerdict::kPassed);
  EXPECT_EQ(some.reason, "1 of 2 problems not timed: dispatch's choice is the baseline's machine code");
  again();
  same = false;
  EXPECT_EQ(go().state.find("gate")->reason, "");
}

TEST_F(CampaignTest, AReasonDoesNotRepeatItsVerdict) {
  CampaignCommand command{.argv = {"flashcore", "crosscheck"}};
  judge_command(command, {.exit_code = 2, .said = "no other tool is here"}, "crosscheck");
  EXPECT_EQ(command.reason, "no other tool is here");
  judge_command(command, {.exit_code = 2}, "crosscheck");
  EXPECT_EQ(command.reason, "it ended with 2");
}

// A third of the crosscheck's share, which --patience does not change.
TEST_F(CampaignTest, AToolThatWasCutNamesTheBudget) {
  const json methods = {{{"method", "profiler"}, {"in_process", false}, {"time_us", nullptr}, {"out_of_time", true}}};
  CampaignCommand command{.argv = {"flashcore", "crosscheck"}};
  judge_command(command, {.exit_code = 2, .said = "no other tool gave a time"}, "crosscheck",
                {{"results", {{{"methods", methods}}}}});
  EXPECT_TRUE(command.lacked);
  EXPECT_EQ(
      command.reason,
      "no other tool gave a time; --resume tries it again, and a larger --budget gives it longer (--tool-time is a "
      "third of the phase's share)");
}

// SIGINT came from the campaign, and the verb cannot know.
TEST_F(CampaignTest, WhatTheCampaignEndedWasNotStoppedByCtrlC) {
  CampaignCommand command{.argv = {"flashcore", "check"}};
  judge_command(command,
                {.how = "was still running after 35 s and was ended by the campaign",
                 .said = "3 passed, 0 failed; stopped by Ctrl-C",
                 .out_of_time = true},
                "correctness");
  EXPECT_EQ(command.verdict, PhaseVerdict::kNotJudged);
  EXPECT_EQ(command.reason,
            "the command was still running after 35 s and was ended by the campaign (--resume tries it again; a larger "
            "--budget or --patience gives it longer): 3 passed, 0 failed");
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
    EXPECT_EQ(r.state.find(name)->budget_seconds, 0) << name;
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

// Which number the peers' file has depends on whether a baseline is recorded before it.
TEST_F(CampaignTest, TheSummaryNamesTheFileThatHoldsThePeers) {
  const json peers = {
      {"results", {{{"problem", kProblem}, {"time_us", {{"p50", 10}}}, {"peers", {{{"name", "flash"}}}}}}}};
  const auto sentence = [&](bool peers_came) {
    answer_ = [&, peers_came](const auto& argv) {
      const bool is_peers = verb_of(argv) == "flashcore.peers";
      if (is_peers && !peers_came) return CommandEnd{.exit_code = 4, .said = "No module named 'torch'"};
      if (is_peers) write_json(argv, peers);
      return CommandEnd{.exit_code = 0};
    };
    again();
    go();
    const std::string summary = read_file(options_.folder / "summary.md");
    const std::size_t at = summary.find(peers_came ? "Intervals are of the sessions in " : "No peer was timed");
    return at == std::string::npos ? "not found in " + summary : summary.substr(at, 60);
  };
  for (const char* baseline : {"", "/elsewhere/baseline.json"}) {
    options_.baseline = baseline;
    const std::string file = *baseline == '\0' ? "03_baselines_3.json" : "03_baselines_2.json";
    EXPECT_NE(sentence(true).find(" " + file + ","), std::string::npos) << sentence(true);
    EXPECT_EQ(json::parse(read_file(options_.folder / file)), peers);
  }
  EXPECT_EQ(sentence(false).find("not found"), std::string::npos) << sentence(false);
}

TEST_F(CampaignTest, TheSummaryHasTheTotalInMinutesAndMoney) {
  const json total = {{"device_seconds", 120}, {"host_seconds", 24}};
  const json account = {{"name", "a <CPU>"}, {"total", total}};
  answer_ = [&](const auto& argv) {
    if (verb_of(argv) == "economics") write_json(argv, {{"results", {account}}});
    return CommandEnd{.exit_code = 0};
  };
  const auto summary = [&] {
    again();
    go();
    return read_file(options_.folder / "summary.md");
  };
  const std::string plain = summary();
  EXPECT_NE(plain.find("## Cost\n\nThe phases took 0.0"), std::string::npos) << plain;
  EXPECT_NE(plain.find("Of these 2.00 device minutes and 0.40 host minutes were of trials on a \\<CPU> "
                       "(10\\_artefacts\\_2.json)."),
            std::string::npos)
      << plain;
  EXPECT_EQ(plain.find("money"), std::string::npos);
  options_.price = "100";
  const std::string priced = summary();
  EXPECT_NE(priced.find(" minutes of the machine, money "), std::string::npos) << priced;
  EXPECT_NE(priced.find("0.40 host minutes, money 4 were of trials"), std::string::npos) << priced;
  EXPECT_EQ(load_state(options_.folder)->price_per_hour, 100);
  for (const auto& argv : ran_) {
    const bool is_account = verb_of(argv) == "report" || verb_of(argv) == "economics";
    EXPECT_EQ(std::count(argv.begin(), argv.end(), "--price"), is_account ? 1 : 0) << verb_of(argv);
  }
}

TEST_F(CampaignTest, ASignalThatComesWithTheLastCommandInterruptsNothing) {
  answer_ = [this](const auto& argv) {
    stop_ = verb_of(argv) == "economics";
    return CommandEnd{.exit_code = 0};
  };
  const CampaignState state = go().state;
  EXPECT_TRUE(stop_);
  EXPECT_FALSE(state.interrupted);
  EXPECT_FALSE(state.ended_at.empty());
  EXPECT_EQ(read_file(options_.folder / "summary.md").find("**Interrupted.**"), std::string::npos);
}

TEST_F(CampaignTest, APhaseThatNobodyWroteCommandsForIsAFault) {
  EXPECT_THROW(commands_of("a new one", options_, {}, 90), Error);
}

TEST_F(CampaignTest, FilesThatAreGoneAreNamedWithThePhasesThatWroteThem) {
  const CampaignState state = go().state;
  EXPECT_TRUE(missing_files(options_.folder, state).empty());
  std::filesystem::remove(options_.folder / "trials.db");
  std::filesystem::remove(options_.folder / "05_profile.json");
  const auto missing = missing_files(options_.folder, state);
  ASSERT_EQ(missing.size(), 2u);
  EXPECT_EQ(missing[0].name, "trials.db");
  EXPECT_EQ(missing[0].phases, (std::vector<std::string>{"baselines", "evolution"})) << "gate and economics add none";
  EXPECT_EQ(missing[1].name, "05_profile.json");
  EXPECT_EQ(missing[1].phases, std::vector<std::string>{"profile"});
  EXPECT_FALSE(missing[1].damaged);
  write_file_atomically(options_.folder / "05_profile.json", "{\"results\": [");
  const auto damaged = missing_files(options_.folder, state);
  ASSERT_EQ(damaged.size(), 2u);
  EXPECT_EQ(damaged[1].name, "05_profile.json");
  EXPECT_TRUE(damaged[1].damaged);
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
  ASSERT_EQ(state.sessions.size(), 1u);
  EXPECT_EQ(state.sessions[0].argv, options_.argv);
  EXPECT_EQ(state.sessions[0].began_at, state.started_at);
  EXPECT_EQ(state.names, std::vector<std::string>{"tiny"});
  EXPECT_EQ(state_json(parse_state(state_json(state).dump(), "here")), state_json(state));
}

TEST_F(CampaignTest, TheBudgetIsSharedOutOverWhatIsStillToCome) {
  CampaignState state;
  for (const PhasePlan& plan : campaign_phases()) state.phases.emplace_back().name = plan.name;
  DeviceInfo device = open_device("cpu")->info();
  const auto seconds = [&](const char* phase, double left) { return seconds_for(state, device, phase, left); };
  EXPECT_NEAR(seconds("evolution", 1500), 480, 1);
  // A phase that an emulated GPU does not run gets nothing, and the others have its share.
  device.limits.emulated = true;
  EXPECT_EQ(seconds("evolution", 1500), 0);
  EXPECT_NEAR(seconds("correctness", 120) + seconds("profile", 120) + seconds("inversion", 120), 120, 6);
  device.limits.emulated = false;
  for (CampaignPhase& p : state.phases)
    if (p.name == "environment" || p.name == "correctness" || p.name == "baselines") p.status = PhaseStatus::kDone;
  // What those left over goes to the others.
  EXPECT_GT(seconds("evolution", 1500), 700);
  EXPECT_GT(seconds("evolution", -10), 0);
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

}  // namespace
}  // namespace flashcore
