#include "lab/experiment/experiment.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "device/compiler.h"
#include "lab/experiment/run.h"
#include "lab/fake.h"
#include "lab/gates/gates.h"
#include "temporary_folder.h"

namespace flashcore {

void PrintTo(const std::filesystem::path& path, std::ostream* out) { *out << path.filename(); }

namespace {

namespace fs = std::filesystem;

class ExperimentTest : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  std::string message_of(const std::string& text) const {
    try {
      load_experiment(write("bad.yaml", text));
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kBadInput);
      return e.what();
    }
    return "";
  }

  const test::TemporaryFolder own_folder_;
  const fs::path folder_ = own_folder_.path();
  test::AllFakeFamilies families_;
};

std::string yaml(const std::string& candidate, const std::string& predicted, const std::string& more = "") {
  return "name: unroll\nhypothesis: Unrolling helps.\nmechanism: Fewer branches.\nrefuted_by: It does not.\n" + more +
         "control: {name: once, candidate: \"fake_none:block=16,unroll=1,spread=0\"}\n"
         "candidates:\n  - name: other\n    candidate: \"" +
         candidate + "\"\n    predicted: " + predicted +
         "\nproblems: [b1_h1_s19_d8_fp32]\nacceptance: {margin: 0.03, processes: 2, seconds: 0.2}\n";
}

TEST_F(ExperimentTest, EveryBadFileIsNamedWithItsLine) {
  const std::string good = yaml("fake_none:block=16,unroll=2,spread=0", "[1.05, 1.30]");
  EXPECT_EQ(message_of(good), "");
  EXPECT_NE(message_of("nme: x\n" + good).find("bad.yaml:1: unknown key 'nme' in an experiment; allowed keys are name"),
            std::string::npos);
  EXPECT_NE(message_of(yaml("fake_none", "[0.9, 1.1]")).find("agrees with every verdict"), std::string::npos);
  EXPECT_NE(message_of(yaml("fake_none", "fast")).find("range of speed-ups"), std::string::npos);
  const auto with_error = [this](const std::string& error) {
    return message_of(yaml("fake_none", "[1.1, 1.2]\n    predicted_error: " + error));
  };
  EXPECT_NE(with_error("[1, 2]").find("predicted_error"), std::string::npos) << with_error("[1, 2]");
  EXPECT_NE(with_error("{p: [1, 2]}").find("unknown key 'p' in predicted_error"), std::string::npos);
  EXPECT_NE(with_error("{o: [2, 1]}").find("o is not a range of a candidate's error"), std::string::npos);
  EXPECT_EQ(with_error("{o: [1, 2], lse: [0.5, 3]}"), "");
  EXPECT_NE(message_of(yaml("nobody", "[1.1, 1.2]")).find("unknown family 'nobody'"), std::string::npos);
  EXPECT_NE(message_of(yaml("fake_none", "[1.1, 1.2]", "regime: hot\n")).find("regime is 'hot'"), std::string::npos);
  EXPECT_NE(message_of("name: x\n").find("lacks the key 'hypothesis'"), std::string::npos);
  EXPECT_NE(message_of("name: [").find("not YAML"), std::string::npos);
  std::string listed = good;
  listed.replace(listed.find(" [b1_h1_s19_d8_fp32]"), 20, "\n  - b1_h1_s19_d8_fp32\n  - b1_nonsense");
  EXPECT_NE(message_of(listed).find("bad.yaml:12: problem id 'b1_nonsense'"), std::string::npos) << message_of(listed);
  std::string none = good;
  none.replace(none.find("candidates:"), none.find("problems:") - none.find("candidates:"), "candidates: []\n");
  EXPECT_NE(
      message_of(none).find("bad.yaml:6: candidates is empty; give at least one '- {name, candidate, predicted}'"),
      std::string::npos)
      << message_of(none);
}

TEST_F(ExperimentTest, AcceptanceMayBeLeftOut) {
  std::string text = yaml("fake_none:block=16,unroll=2,spread=0", "[1.05, 1.30]");
  text.erase(text.find("acceptance:"));
  const Experiment e = load_experiment(write("e.yaml", text));
  EXPECT_EQ(e.processes, 3);
  EXPECT_EQ(e.max_seconds, 0.5);
  EXPECT_EQ(e.margin, 0.03);
  EXPECT_TRUE(e.every);
}

TEST_F(ExperimentTest, PatchesAreReadFromTheirFolderAndCheckedAgainstTheSource) {
  const auto text = [](const std::string& folder) {
    return "name: p\nhypothesis: h\nmechanism: m\nrefuted_by: r\ncontrol: {name: c, candidate: sm80_fwd}\n"
           "candidates:\n  - {name: a, candidate: sm80_fwd, patch: " +
           folder +
           ", predicted: [1.1, 1.2]}\n"
           "problems: [b1_h1_s64_d64_fp16]\nacceptance: {}\n";
  };
  write("good/patch.yaml",
        "replace:\n  - {file: sm80_fwd/kernel.cuh, from: \"main_loop();\\n    epilogue\", to: \"main_loop();\\n\\n    "
        "epilogue\"}\n");
  const Experiment e = load_experiment(write("e.yaml", text("good")));
  EXPECT_EQ(e.candidates[0].candidate, "sm80_fwd+good");
  ASSERT_EQ(e.patches().size(), 1u);
  // As in an inline patch, kernel.cuh is the family's own.
  write("own/patch.yaml", "replace:\n  - {file: kernel.cuh, from: \"#pragma once\", to: \"#pragma once  // own\"}\n");
  const Experiment own = load_experiment(write("own.yaml", text("own")));
  EXPECT_EQ(own.patches().at(0).replace.at(0).file, "sm80_fwd/kernel.cuh");
  write("both/kernel.cuh", "#pragma once\n");
  write("both/sm80_fwd/kernel.cuh", "#pragma once\n");
  EXPECT_NE(message_of(text("both")).find("one source; keep one of them"), std::string::npos);
  write("gone/patch.yaml", "replace:\n  - {file: sm80_fwd/kernel.cuh, from: \"no such text\", to: x}\n");
  EXPECT_NE(message_of(text("gone")).find("occurs 0 times in sm80_fwd/kernel.cuh"), std::string::npos);
  write("field/patch.yaml", "extend: {block_q: [80]}\n");
  EXPECT_NE(message_of(text("field")).find("'block_q', which is no config field"), std::string::npos);
  EXPECT_NE(message_of(text("nowhere")).find("does not exist"), std::string::npos);
  write("empty/README.md", "nothing\n");
  EXPECT_NE(message_of(text("empty")).find("changes nothing"), std::string::npos);
}

TEST(ExperimentOutcome, FollowsThePredictionAndTheMargin) {
  const Prediction faster{1.05, 1.2}, same{0.99, 1.01}, not_faster{0.7, 1.01};
  constexpr auto c = HypothesisVerdict::kConfirmed, o = HypothesisVerdict::kSizeOutside,
                 r = HypothesisVerdict::kRefuted, i = HypothesisVerdict::kInconclusive;
  const auto outcome = [](const Prediction& predicted, SpeedVerdict verdict, double low, double high) {
    Comparison measured;
    measured.verdict = verdict;
    measured.ci95_low = low;
    measured.ci95_high = high;
    return outcome_of(predicted, measured, 0.03);
  };
  EXPECT_EQ(outcome(faster, SpeedVerdict::kFaster, 1.08, 1.10), c);
  EXPECT_EQ(outcome(faster, SpeedVerdict::kFaster, 1.18, 1.22), c) << "it reaches the range";
  EXPECT_EQ(outcome(faster, SpeedVerdict::kFaster, 1.201, 1.3), o);
  EXPECT_EQ(outcome(faster, SpeedVerdict::kFaster, 1.016, 1.049), o);
  EXPECT_EQ(outcome(faster, SpeedVerdict::kSame, 0.99, 1.01), r);
  EXPECT_EQ(outcome(faster, SpeedVerdict::kSlower, 0.8, 0.9), r);
  EXPECT_EQ(outcome(faster, SpeedVerdict::kInconclusive, 0.9, 1.2), i);
  EXPECT_EQ(outcome(faster, SpeedVerdict::kNotJudged, 0, 0), i);
  EXPECT_EQ(outcome(same, SpeedVerdict::kSame, 0.995, 1.005), c);
  EXPECT_EQ(outcome(same, SpeedVerdict::kSame, 1.012, 1.02), o);
  EXPECT_EQ(outcome(same, SpeedVerdict::kFaster, 1.02, 1.04), r);
  EXPECT_EQ(outcome(not_faster, SpeedVerdict::kSlower, 0.8, 0.9), c);
  EXPECT_EQ(outcome(not_faster, SpeedVerdict::kSlower, 0.6, 0.69), o);
  EXPECT_EQ(outcome(not_faster, SpeedVerdict::kSame, 0.99, 1.005), c);
  EXPECT_EQ(outcome(not_faster, SpeedVerdict::kFaster, 1.02, 1.04), r);
  // experiments/lineage_cp_async.yaml: a half more speed is not four times as much.
  EXPECT_EQ(outcome({4, 40}, SpeedVerdict::kFaster, 1.4, 1.6), o);
  EXPECT_EQ(outcome({4, 40}, SpeedVerdict::kFaster, 5, 6), c);
  EXPECT_EQ(overall_outcome({c, c}, true), c);
  EXPECT_EQ(overall_outcome({c, i}, true), i);
  EXPECT_EQ(overall_outcome({c, i, r}, true), r);
  EXPECT_EQ(overall_outcome({c, c, r}, false), c);
  EXPECT_EQ(overall_outcome({c, r}, false), i);
  EXPECT_EQ(overall_outcome({c, o}, true), o);
  EXPECT_EQ(overall_outcome({c, o, r}, true), r);
  EXPECT_EQ(overall_outcome({o, i}, true), i);
  EXPECT_EQ(overall_outcome({c, c, o}, false), c);
  EXPECT_EQ(overall_outcome({c, o, i}, false), o);
  EXPECT_EQ(overall_outcome({o, r}, false), i);
  EXPECT_EQ(overall_outcome({}, true), i);
}

// The whole way on the device with a clock of its own: 120 us against 140 us.
TEST_F(ExperimentTest, RunsToAVerdictWithPagesSamplesAndALedgerEntry) {
  const Experiment right =
      load_experiment(write("a.yaml", yaml("fake_none:block=16,unroll=2,spread=0", "[1.05, 1.30]")));
  Experiment wrong = right;
  wrong.name = "wrong_prediction";
  wrong.candidates[0].predicted = {0.7, 0.9};
  Experiment broken = right;
  broken.name = "broken_candidate";
  broken.candidates[0].candidate = "fake_wrong_tail";
  ExperimentRunOptions options;
  options.device = "fake";
  options.worker_executable = FLASHCORE_WORKER_HELPER;
  int steps = 0, total = 0;
  const auto results = run_experiments({right, wrong, broken}, options,
                                       [&](int, int of, const std::string&) { ++steps, total = of; }, {});
  EXPECT_EQ(steps, total);
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].verdict, HypothesisVerdict::kConfirmed) << results[0].summary[1];
  EXPECT_EQ(results[1].verdict, HypothesisVerdict::kRefuted) << results[1].summary[1];
  EXPECT_EQ(results[2].verdict, HypothesisVerdict::kInconclusive);
  EXPECT_EQ(results[2].failed_gates, 1);
  EXPECT_NE(results[0].summary[2].find("from a range's middle is"), std::string::npos) << results[0].summary[2];
  EXPECT_NE(results[2].summary[2].find("undecided; nothing was timed."), std::string::npos) << results[2].summary[2];
  ASSERT_EQ(results[0].summary.size(), 3u);
  EXPECT_EQ(results[0].pairs[0].result.processes.size(), 2u);
  EXPECT_NEAR(results[0].pairs[0].result.comparison.speedup, 160.0 / 140, 0.01);

  for (const ExperimentResult& r : results) write_experiment(r, experiment_folder(r, folder_ / "out"));
  const auto ledger = load_ledger(folder_ / "out");
  ASSERT_EQ(ledger.size(), 3u);
  EXPECT_EQ(ledger[1].name, "unroll");
  EXPECT_EQ(ledger[1].verdict, HypothesisVerdict::kConfirmed);
  EXPECT_EQ(ledger_notes(ledger, "fake_none", "fake").size(), 2u);
  EXPECT_TRUE(ledger_notes(ledger, "sm80_fwd", "fake").empty());
  const auto problem = PlacedProblem::parse("b1_h1_s19_d8_fp32");
  const auto known = known_configs(ledger, "fake_none", problem, results[0].device);
  ASSERT_EQ(known.size(), 2u);
  EXPECT_EQ(known[0].config, "block=16,unroll=2,spread=0");
  EXPECT_EQ(known[0].verdict, SpeedVerdict::kFaster);
  auto changed = ledger;
  for (LedgerEntry& entry : changed)
    for (LedgerPair& pair : entry.pairs) pair.control_source_hash = "another";
  EXPECT_TRUE(known_configs(changed, "fake_none", problem, results[0].device).empty()) << "a control of other source";

  const std::string html = read_file(folder_ / "out/unroll/verdict.html");
  for (const char* word : {"<!doctype html>", "Unrolling helps.", "CONFIRMED", "Fewer branches.", "<svg", "error"})
    EXPECT_NE(html.find(word), std::string::npos) << word;
  for (const char* scheme : {"http:", "https:"}) EXPECT_EQ(html.find(scheme), std::string::npos) << "self-contained";
  EXPECT_NE(html.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(html.find("unsafe-inline"), std::string::npos);
  const auto samples = nlohmann::json::parse(read_file(folder_ / "out/unroll/samples.json"));
  EXPECT_GE(samples["pairs"][0]["processes"][0]["candidate"]["samples_us"].size(), 16u);

  // The next run of the same experiment is told of this one.
  options.ledger = ledger;
  const auto again = run_experiments({right}, options, {}, {});
  ASSERT_EQ(again[0].earlier.size(), 1u);
  EXPECT_NE(again[0].earlier[0].find("CONFIRMED"), std::string::npos);
}

// A result of one comparison over two processes that agree on 1.2, of which each says what an interval is made of.
ExperimentResult measured_result(const Experiment& experiment, std::size_t ran, int asked) {
  ExperimentResult result;
  result.experiment = experiment;
  result.device = test::make_fake_device()->info();
  result.created_at = "2026-11-23T00:00:00.000Z";
  result.processes = asked;
  ArmFacts facts;
  facts.arm = experiment.control.name;
  facts.problem = experiment.problems.front().name;
  facts.gates.device = result.device;
  result.facts = {facts};
  ExperimentPair pair;
  pair.problem = experiment.problems.front();
  std::vector<PairOutcome> outcomes(ran);
  for (PairOutcome& outcome : outcomes) {
    outcome.ended = PairEnded::kMeasured;
    outcome.candidate.timing.emplace().p50_us = 100;
    outcome.baseline.timing.emplace().p50_us = 120;
    for (int block = 0; block < 16; ++block) {
      outcome.log_ratios.push_back(std::log(1.2) + 1e-4 * (block % 4));
      for (int sample = 0; sample < 2; ++sample) {
        outcome.candidate.timing->samples.emplace_back().time_us = 120 * std::exp(-outcome.log_ratios.back());
        outcome.baseline.timing->samples.emplace_back().time_us = 120;
      }
    }
  }
  AbOptions options;
  options.problem = pair.problem;
  options.baseline = experiment.control.candidate;
  options.candidate = experiment.candidates.front().candidate;
  if (ran > 0) pair.result = judge_ab(options, std::move(outcomes));
  result.pairs = {std::move(pair)};
  conclude(result);
  return result;
}

TEST_F(ExperimentTest, FewerProcessesThanAskedForDecideNothing) {
  const Experiment e = load_experiment(write("a.yaml", yaml("fake_none:block=16,unroll=2,spread=0", "[1.05, 1.30]")));
  EXPECT_EQ(measured_result(e, 3, 3).verdict, HypothesisVerdict::kConfirmed);
  const ExperimentResult stopped = measured_result(e, 2, 3);
  EXPECT_EQ(stopped.pairs[0].result.verdict, SpeedVerdict::kFaster) << "what was measured stays";
  EXPECT_EQ(stopped.pairs[0].outcome, HypothesisVerdict::kInconclusive);
  EXPECT_EQ(stopped.verdict, HypothesisVerdict::kInconclusive);
  EXPECT_NE(stopped.summary[1].find("(2 of 3 processes)"), std::string::npos) << stopped.summary[1];
  Experiment wrong = e;
  wrong.candidates[0].predicted = {0.7, 0.9};
  EXPECT_EQ(measured_result(wrong, 3, 3).verdict, HypothesisVerdict::kRefuted);
  EXPECT_EQ(measured_result(wrong, 2, 3).verdict, HypothesisVerdict::kInconclusive) << "nor do they refute";
  EXPECT_EQ(measured_result(wrong, 0, 3).verdict, HypothesisVerdict::kInconclusive);
}

TEST_F(ExperimentTest, PagesGiveTheRegistersOfAGpuAndSayThatAnEmulatedOneHasNone) {
  const Experiment e = load_experiment(write("a.yaml", yaml("fake_none:block=16,unroll=2,spread=0", "[1.05, 1.30]")));
  ExperimentResult result = measured_result(e, 3, 3);
  Artifact artifact;
  artifact.threads_per_block = 128;
  artifact.dynamic_shared_bytes = 4096;
  ArmFacts& facts = result.facts.front();
  const auto pages_have = [&](const std::string& words) {
    facts.gates.artifact = artifact;
    for (const std::string& page : {experiment_markdown(result), experiment_html(result)})
      EXPECT_NE(page.find(words), std::string::npos) << page;
  };
  facts.gates.device.limits = limits_of_arch("sm_90");
  artifact.registers = 168;
  pages_have("168 registers, 128 threads, 4096 bytes shared");
  facts.gates.device.limits.emulated = true;
  artifact.registers = 0;
  pages_have("registers not known: emulated, 128 threads, 4096 bytes shared");
  EXPECT_EQ(experiment_markdown(result).find("0 registers"), std::string::npos);
}

// Through the run itself: told to stop after the first of two processes.
TEST_F(ExperimentTest, ARunThatIsStoppedInTheMiddleKeepsItsSamplesAndHasNoVerdict) {
  const Experiment e = load_experiment(write("a.yaml", yaml("fake_none:block=16,unroll=2,spread=0", "[1.05, 1.30]")));
  ExperimentRunOptions options;
  options.device = "fake";
  options.worker_executable = FLASHCORE_WORKER_HELPER;
  int done = 0, total = 0;
  const auto results = run_experiments(
      {e}, options, [&](int at, int of, const std::string&) { done = at, total = of; }, [&] { return done >= 4; });
  EXPECT_EQ(total, 4) << "gates of two arms, and two processes";
  ASSERT_EQ(results.size(), 1u);
  ASSERT_EQ(results[0].pairs[0].result.processes.size(), 1u) << "the first process was measured whole";
  EXPECT_EQ(results[0].processes, 2);
  EXPECT_EQ(results[0].verdict, HypothesisVerdict::kInconclusive);
  EXPECT_NE(results[0].summary[1].find("(1 of 2 processes)"), std::string::npos) << results[0].summary[1];
  write_experiment(results[0], folder_ / "out");
  const auto samples = parse_json(read_file(folder_ / "out/samples.json"), "samples");
  EXPECT_EQ(samples["pairs"][0]["processes"].size(), 1u);
  EXPECT_EQ(rejudge_experiment(folder_ / "out").verdict, HypothesisVerdict::kInconclusive);
}

TEST_F(ExperimentTest, ACheckThatIsStoppedKeepsTheGatesThatWereJudged) {
  const Experiment e = load_experiment(write("a.yaml", yaml("fake_none:block=16,unroll=2,spread=0", "[1.05, 1.30]")));
  ExperimentRunOptions options;
  options.device = "fake";
  options.worker_executable = FLASHCORE_WORKER_HELPER;
  options.time = false;
  int done = 0;
  const auto results = run_experiments(
      {e}, options, [&](int at, int, const std::string&) { done = at; }, [&] { return done >= 2; });
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].facts.size(), 1u) << "the control's";
  EXPECT_TRUE(results[0].pairs.empty());
}

// What the gate of correctness found, with errors of that size.
ArmFacts facts_of(const std::string& arm, const Experiment& e, double o, double lse) {
  ArmFacts facts{arm, e.problems[0].problem.id(), {}, std::nullopt};
  facts.gates.ended = Ended::kPassed;
  facts.gates.gates = {{Gate::kCorrectness,
                        GateStatus::kPassed,
                        "",
                        {{"patterns",
                          {{{"pattern", "peaked"}, {"rel", 1.0}, {"lse_rms", 1.0}},
                           {{"pattern", "normal"}, {"rel", o}, {"lse_rms", lse}}}}}}};
  return facts;
}

TEST_F(ExperimentTest, ErrorsAreComparedWithTheControlsAndWithThePrediction) {
  const Experiment e =
      load_experiment(write("a.yaml", yaml("fake_none:block=16,unroll=2,spread=0",
                                           "[1.05, 1.30]\n    predicted_error: {o: [0.9, 1.1], lse: [1.5, 3]}")));
  ExperimentResult result = measured_result(e, 3, 3);
  result.facts = {facts_of("once", e, 0.02, 1e-5), facts_of("other", e, 0.02, 4e-5)};
  conclude(result);
  EXPECT_NE(result.summary[2].find("; 1 of 2 errors over the control's is within the predicted range."),
            std::string::npos)
      << result.summary[2];
  const std::string page = experiment_markdown(result);
  EXPECT_NE(page.find("1; 0.9 to 1.1 predicted |"), std::string::npos) << page;
  EXPECT_NE(page.find("4; 1.5 to 3 predicted: outside |"), std::string::npos) << page;
  result.facts[1].gates.gates[0].evidence["patterns"][1]["nonfinite"] = 3;
  EXPECT_FALSE(error_ratio(result, result.facts[1])) << "what is NaN has no error to compare";
  result.facts[0].gates.gates.clear();
  conclude(result);
  EXPECT_EQ(result.summary[2].find("over the control's"), std::string::npos) << "nothing to compare with";
}

TEST_F(ExperimentTest, AStoredResultIsJudgedAgainWithoutRunning) {
  const Experiment e =
      load_experiment(write("a.yaml", yaml("fake_none:block=16,unroll=2,spread=0",
                                           "[1.05, 1.30]\n    predicted_error: {o: [0.9, 1.1], lse: [1.5, 3]}")));
  ExperimentResult result = measured_result(e, 3, 3);
  result.facts = {facts_of("once", e, 0.02, 1e-5), facts_of("other", e, 0.03, 2e-5)};
  conclude(result);
  write_experiment(result, folder_ / "out");
  const ExperimentResult again = rejudge_experiment(folder_ / "out");
  EXPECT_EQ(experiment_json(again), experiment_json(result));
  EXPECT_EQ(experiment_markdown(again), experiment_markdown(result));
  EXPECT_EQ(experiment_html(again), experiment_html(result));
  const auto judged_with = [&](const std::function<void(nlohmann::json&)>& change) {
    write_experiment(result, folder_ / "out");
    auto document = parse_json(read_file(folder_ / "out/verdict.json"), "verdict");
    change(document);
    write("out/verdict.json", document.dump());
    return rejudge_experiment(folder_ / "out").verdict;
  };
  // Whatever the file says of itself, the interval and the prediction decide.
  EXPECT_EQ(judged_with([](auto& d) { d["verdict"] = d["pairs"][0]["outcome"] = "REFUTED"; }),
            HypothesisVerdict::kConfirmed);
  EXPECT_EQ(judged_with([](auto& d) { d["pairs"][0]["predicted"] = {1.4, 2.0}; }), HypothesisVerdict::kSizeOutside);
  EXPECT_EQ(judged_with([](auto& d) { d["pairs"][0]["predicted"] = {0.5, 0.9}; }), HypothesisVerdict::kRefuted);
  EXPECT_EQ(judged_with([](auto& d) { d["processes"] = 4; }), HypothesisVerdict::kInconclusive);
  // An older file does not say how many were asked for; what it had decided with them holds.
  EXPECT_EQ(judged_with([](auto& d) { d.erase("processes"); }), HypothesisVerdict::kConfirmed);
  EXPECT_EQ(judged_with([](auto& d) {
              d.erase("processes");
              d["pairs"][0]["outcome"] = "INCONCLUSIVE";
            }),
            HypothesisVerdict::kInconclusive);
  for (const auto& damage : std::vector<std::function<void(nlohmann::json&)>>{
           [](auto& d) { d["schema"] = "flashcore.tune/1"; }, [](auto& d) { d.erase("pairs"); },
           [](auto& d) { d["pairs"].push_back(d["pairs"][0]); }, [](auto& d) { d["pairs"][0]["arm"] = "nobody"; },
           [](auto& d) { d["pairs"][0]["predicted"] = "fast"; }, [](auto& d) { d = nullptr; },
           [](auto& d) {
             d["pairs"][0]["ci95"] = {1.1, 1.3};
           },
           [](auto& d) { d["pairs"][0]["speedup"] = 1.25; }, [](auto& d) { d["pairs"][0]["verdict"] = "SAME"; }}) {
    try {
      judged_with(damage);
      ADD_FAILURE() << "a damaged result was judged";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadInput) << error.what();
      EXPECT_NE(std::string(error.what()).find("experiment"), std::string::npos) << error.what();
    }
  }
  // What was recorded stays, keys that this program does not know included.
  write_experiment(result, folder_ / "out");
  auto document = parse_json(read_file(folder_ / "out/verdict.json"), "verdict");
  document["pairs"][0]["predicted"] = {1.4, 2.0};
  document["noted"] = "by hand";
  write("out/verdict.json", document.dump());
  write_rejudged(rejudge_experiment(folder_ / "out"), folder_ / "out");
  const auto written = parse_json(read_file(folder_ / "out/verdict.json"), "verdict");
  EXPECT_EQ(written["verdict"], "SIZE OUTSIDE");
  EXPECT_EQ(written["pairs"][0]["outcome"], "SIZE OUTSIDE");
  auto recorded = written;
  for (const char* key : {"verdict", "summary", "pairs"}) recorded.erase(key), document.erase(key);
  EXPECT_EQ(recorded, document);
  EXPECT_NE(read_file(folder_ / "out/verdict.md").find("SIZE OUTSIDE"), std::string::npos);
  auto samples = parse_json(read_file(folder_ / "out/samples.json"), "samples");
  samples["pairs"][0]["processes"][0]["log_ratios"][3] = 0.5;
  write("out/samples.json", samples.dump());
  EXPECT_THROW(rejudge_experiment(folder_ / "out"), Error);
  fs::remove(folder_ / "out/samples.json");
  EXPECT_THROW(rejudge_experiment(folder_ / "out"), Error);
}

// What is committed follows from its own samples and predictions by the rules of today.
TEST(StoredVerdicts, AreWhatTheirResultsSay) {
  std::size_t judged = 0;
  for (const auto& entry : fs::directory_iterator(FLASHCORE_SOURCE_DIR "/results/experiments")) {
    const ExperimentResult result = rejudge_experiment(entry.path());
    const auto stored = parse_json(read_file(entry.path() / "verdict.json"), "verdict");
    EXPECT_EQ(stored.at("verdict"), to_string(result.verdict)) << entry.path();
    EXPECT_EQ(stored.at("summary"), nlohmann::json(result.summary)) << entry.path();
    EXPECT_EQ(read_file(entry.path() / "verdict.md"), experiment_markdown(result))
        << entry.path() << ": flashcore experiment judge writes it anew";
    ++judged;
  }
  EXPECT_GE(judged, 20u);
}

TEST_F(ExperimentTest, WhatWasTimedIsNotOverwrittenByARunThatWasStopped) {
  ExperimentResult timed;
  timed.experiment = load_experiment(write("a.yaml", yaml("fake_none:block=16,unroll=2,spread=0", "[1.05, 1.30]")));
  timed.device.key = "h200";
  timed.summary = {"", "", ""};
  timed.processes = 2;
  ExperimentPair pair;
  pair.problem = timed.experiment.problems.front();
  pair.result.ended = PairEnded::kMeasured;
  pair.result.processes.resize(2);
  pair.result.comparison.speedup = 1.0;
  timed.pairs = {pair};
  const auto out = folder_ / "out";
  write_experiment(timed, experiment_folder(timed, out));
  ExperimentResult stopped = timed;
  stopped.pairs[0].result.processes.pop_back();
  EXPECT_EQ(experiment_folder(stopped, out), out / "unroll" / "unjudged") << "one process of two";
  stopped.pairs[0].result = {};
  EXPECT_EQ(experiment_folder(stopped, out), out / "unroll" / "unjudged") << "nothing was timed";
  EXPECT_EQ(experiment_folder(timed, out), out / "unroll") << "it says as much";
}

TEST_F(ExperimentTest, AVerdictIsNotOverwrittenByOneThatSaysLess) {
  ExperimentResult found;
  found.experiment = load_experiment(write("a.yaml", yaml("fake_none:block=16,unroll=2,spread=0", "[1.05, 1.30]")));
  found.device.key = "h200";
  found.verdict = HypothesisVerdict::kRefuted;
  found.summary = {"", "", ""};
  const auto out = folder_ / "out";
  EXPECT_EQ(experiment_folder(found, out), out / "unroll");
  write_experiment(found, experiment_folder(found, out));
  ExperimentResult other = found;
  other.verdict = HypothesisVerdict::kInconclusive;
  EXPECT_EQ(experiment_folder(other, out), out / "unroll" / "unjudged") << "stopped, or nothing could be measured";
  write_experiment(other, experiment_folder(other, out));
  other.device.key = "cpu";
  EXPECT_EQ(experiment_folder(other, out), out / "unroll_on_cpu");
  write_experiment(other, experiment_folder(other, out));
  EXPECT_EQ(experiment_folder(other, out), out / "unroll_on_cpu") << "no verdict is no better than another";
  EXPECT_EQ(experiment_folder(found, out), out / "unroll") << "a new verdict of the same device takes its place";
  const auto ledger = load_ledger(out);
  ASSERT_EQ(ledger.size(), 2u);
  EXPECT_EQ(ledger[0].device_key == "h200" ? ledger[0].verdict : ledger[1].verdict, HypothesisVerdict::kRefuted);
}

TEST_F(ExperimentTest, ADamagedLedgerIsNamed) {
  write("out/x/verdict.json", "{}");
  EXPECT_THROW(load_ledger(folder_ / "out"), Error);
  EXPECT_TRUE(load_ledger(folder_ / "missing").empty());
}

// What earlier versions found is still read, and a word that none of them wrote is not taken for another.
TEST(LedgerTest, TheVerdictsInTheRepositoryAreReadAndUnknownWordsAreNot) {
  const fs::path folder = fs::path(FLASHCORE_SOURCE_DIR) / "results" / "experiments";
  const auto ledger = load_ledger(folder);
  ASSERT_FALSE(ledger.empty());
  nlohmann::json document = parse_json(read_file(folder / ledger.front().name / "verdict.json"), "verdict");
  for (const char* where : {"/verdict", "/pairs/0/verdict", "/pairs/0/outcome"}) {
    nlohmann::json changed = document;
    changed.at(nlohmann::json::json_pointer(where)) = "MAYBE";
    try {
      parse_ledger_entry(changed.dump(), "x.json");
      ADD_FAILURE() << where;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("'MAYBE' is not known"), std::string::npos) << e.what();
    }
  }
}

TEST(OccupancyTest, TheTightestResourceDecides) {
  Artifact artifact;
  artifact.threads_per_block = 128;
  artifact.registers = 128;
  artifact.dynamic_shared_bytes = 40 << 10;
  const DeviceLimits limits = limits_of_arch("sm_90");
  Occupancy o = occupancy_of(artifact, limits, 132 * 4 * 2 + 132);
  EXPECT_EQ(o.ctas_per_sm, 4);
  EXPECT_EQ(o.limited_by, "registers");
  EXPECT_NEAR(o.waves, 2.25, 0.01);
  EXPECT_NEAR(o.last_wave, 0.25, 0.01);
  artifact.dynamic_shared_bytes = 100 << 10;
  o = occupancy_of(artifact, limits, 1);
  EXPECT_EQ(o.ctas_per_sm, 2);
  EXPECT_EQ(o.limited_by, "shared memory");
  EXPECT_NEAR(o.warp_share, 8.0 / 64, 1e-9);
}

// --- those that ship
// ---------------------------------------------------------------------------------------------------

std::vector<fs::path> shipped() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(FLASHCORE_SOURCE_DIR "/experiments"))
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

class ShippedExperiment : public ::testing::TestWithParam<fs::path> {};
INSTANTIATE_TEST_SUITE_P(All, ShippedExperiment, ::testing::ValuesIn(shipped()),
                         [](const auto& given) { return given.param.stem().string(); });

TEST(ShippedExperiments, AreAtLeastNine) { EXPECT_GE(shipped().size(), 9u); }

TEST_P(ShippedExperiment, IsNamedAsItsFileAndEveryArmCompilesToItsOwnCode) {
  const Experiment e = load_experiment(GetParam());
  EXPECT_EQ(e.name, GetParam().stem());
  EXPECT_GE(e.processes, 3) << "fewer are not for publishing";
  const bool cpu = e.control.candidate.starts_with("cpu");
  std::unique_ptr<Compiler> compiler;
  try {
    if (!cpu) compiler = open_compiler();
  } catch (const Error&) {
    GTEST_SKIP() << "no NVRTC here";
  }
  const DeviceLimits limits = cpu ? open_device("cpu")->info().limits : limits_of_arch("sm_90");
  const PatchScope patches(e.patches());
  const auto compile = [&](const ExperimentArm& arm, const PlacedProblem& problem) {
    const Artifact a = compile_candidate(parse_candidate(arm.candidate, problem, limits), problem, limits);
    const Verdict verdict = judge_resources(a, limits);
    EXPECT_NE(verdict.status, GateStatus::kFailed) << arm.name << " on " << problem.id() << ": " << verdict.reason;
    return a.code_hash;
  };
  for (const NamedProblem& p : e.problems) {
    std::set<std::string> hashes = {compile(e.control, p.problem)};
    for (const ExperimentArm& arm : e.candidates) {
      const bool is_new = hashes.insert(compile(arm, p.problem)).second;
      // Of a closed idea the code is gone, and what is left may be all the same.
      EXPECT_TRUE(is_new || e.closed) << arm.name << " is the same code as another arm";
    }
  }
}

}  // namespace
}  // namespace flashcore
