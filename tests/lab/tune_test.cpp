#include "lab/tune/tune.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "kernels/source_hash.h"
#include "lab/compare/bench.h"
#include "lab/record/leaderboard.h"
#include "lab/tune/facts.h"
#include "lab/tune_fixture.h"

namespace flashcore {
namespace {

namespace fs = std::filesystem;
using test::TuneTest;

int tried(Store& store) {
  int count = 0;
  for (const Trial& t : store.query({})) count += t.phase != Phase::kHoldout;
  return count;
}

TEST_F(TuneTest, FindsTheOptimumAndConfirmsItOnHeldOutData) {
  Store store(file());
  std::vector<std::string> stages;
  std::uint64_t size = 0, feasible = 0;
  const TuneResult result = tune(options_for("fake_none", 24), store,
                                 [&](const TuneProgress& p) {
                                   if (stages.empty() || stages.back() != p.stage) stages.push_back(p.stage);
                                   if (p.stage == "space") size = p.space_size, feasible = p.feasible;
                                 },
                                 {});
  EXPECT_EQ(stages, (std::vector<std::string>{"space", "default", "search", "holdout", "done"}));
  EXPECT_EQ(size, 27u);
  EXPECT_EQ(feasible, 24u);
  ASSERT_EQ(result.entries.size(), 1u);
  const auto& entry = result.entries[0];
  ASSERT_TRUE(entry.winner) << entry.problem_note;
  EXPECT_EQ(entry.winner->config, "block=32,unroll=2,spread=1");
  EXPECT_EQ(entry.winner->phase, Phase::kHoldout);
  ASSERT_TRUE(entry.winner->comparison);
  EXPECT_EQ(entry.winner->comparison->against, "fake_none:block=16,unroll=1,spread=0");
  EXPECT_NEAR(entry.winner->comparison->speedup, 1.6, 0.05);
  EXPECT_LT(std::abs(entry.shrinkage), 0.05);
  EXPECT_EQ(entry.proposed, 24);
  EXPECT_EQ(entry.correct, 24);
  EXPECT_EQ(entry.raced, 24);
  EXPECT_GT(entry.led, 0);
  EXPECT_TRUE(entry.inert_fields.empty());
  EXPECT_FALSE(result.interrupted);

  std::set<std::string> configs;
  int heldout = 0;
  for (const Trial& t : store.query({.run = result.run})) {
    if (t.phase == Phase::kHoldout) {
      ++heldout;
      EXPECT_NE(t.seed, 1u) << "held-out data has a seed of its own";
    } else {
      EXPECT_TRUE(configs.insert(t.config).second) << t.config;
    }
  }
  EXPECT_EQ(heldout, 6);
  const auto rows = leaderboard(store.query({}), is_current);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].standing[0].config, entry.winner->config);
}

TEST_F(TuneTest, ResumesWithoutRunningAnythingTwice) {
  Store store(file());
  run(options_for("fake_none", 7), store);
  EXPECT_EQ(tried(store), 7);
  const TuneResult second = run(options_for("fake_none", 12), store);
  EXPECT_EQ(tried(store), 12);
  EXPECT_EQ(second.entries[0].proposed, 12);
  std::set<std::string> configs;
  for (const Trial& t : store.query({})) {
    if (t.phase != Phase::kHoldout) {
      EXPECT_TRUE(configs.insert(t.config).second) << t.config;
    }
  }
  // Nothing new to search: what was measured on held-out data stands as well.
  const std::size_t before = store.query({}).size();
  const TuneResult third = run(options_for("fake_none", 12), store);
  EXPECT_EQ(store.query({}).size(), before);
  ASSERT_TRUE(third.entries[0].winner);
  EXPECT_EQ(third.entries[0].winner->id, second.entries[0].winner->id);
}

TEST_F(TuneTest, OtherSourceOrDeviceIsNotResumedFrom) {
  Store store(file());
  run(options_for("fake_none", 3), store);
  for (Trial t : store.query({})) {
    t.source_hash = "older";
    t.config = "block=64,unroll=2,spread=2";
    store.append(t);
  }
  const TuneResult result = run(options_for("fake_none", 5), store);
  EXPECT_EQ(result.entries[0].proposed, 5) << "three stored ones of this source and two new";
}

TEST_F(TuneTest, KilledInTheMiddleItGoesOn) {
  const pid_t child = fork();
  if (child == 0) {
    Store store(file());
    int seen = 0;
    tune(options_for("fake_none", 24), store,
         [&](const TuneProgress& p) {
           if (p.trial && ++seen == 5) kill(getpid(), SIGKILL);
         },
         {});
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  Store store(file());
  EXPECT_EQ(tried(store), 5);
  const TuneResult result = run(options_for("fake_none", 8), store);
  EXPECT_EQ(tried(store), 8);
  EXPECT_TRUE(result.entries[0].winner);
}

TEST_F(TuneTest, TwoAtOnceOnOneStoreBothFinish) {
  std::vector<pid_t> children;
  for (int i = 0; i < 2; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      int code = 1;
      try {
        Store store(file());
        TuneOptions options = options_for("fake_none", 6);
        options.seed = 1 + static_cast<std::uint64_t>(i);
        code = run(options, store).entries[0].winner ? 0 : 2;
      } catch (...) {
      }
      _exit(code);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

TEST_F(TuneTest, StopsCleanlyWithWhatIsDoneSaved) {
  Store store(file());
  int seen = 0;
  const TuneResult result = tune(
      options_for("fake_none", 24), store, [&](const TuneProgress& p) { seen += p.trial != nullptr; },
      [&] { return seen >= 4; });
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(tried(store), 4);
  ASSERT_EQ(result.entries.size(), 1u);
  EXPECT_EQ(result.entries[0].proposed, 4);
  EXPECT_FALSE(result.entries[0].winner);
}

TEST_F(TuneTest, CrashesAreTrialsAndNobodyWins) {
  Store store(file());
  const TuneResult result = run(options_for("fake_segfault", 3), store);
  EXPECT_EQ(tried(store), 3);
  for (const Trial& t : store.query({})) EXPECT_EQ(t.ended, Ended::kCrashed);
  EXPECT_FALSE(result.entries[0].winner);
  EXPECT_NE(result.entries[0].problem_note.find("SIGSEGV"), std::string::npos) << result.entries[0].problem_note;
  EXPECT_EQ(result.entries[0].compiled, 3);
  EXPECT_EQ(result.entries[0].correct, 0);
}

// The best of 200 equals looks faster by luck; what reaches the leaderboard must not.
TEST_F(TuneTest, OfTwoHundredEqualCandidatesNobodyClaimsAGain) {
  Store store(file());
  TuneOptions options = options_for("fake_equal", 200);
  options.strategy = "both";
  const TuneResult result = run(options, store);
  EXPECT_EQ(tried(store), 200);
  const auto rows = leaderboard(store.query({}), is_current);
  ASSERT_EQ(rows.size(), 1u);
  int heldout = 0;
  for (const Trial& t : rows[0].standing) {
    if (!t.comparison) continue;
    ++heldout;
    EXPECT_NEAR(t.comparison->speedup, 1, 0.003) << t.config;
    const int processes = find_gate(t, Gate::kPerformance)->evidence.at("processes").get<int>();
    EXPECT_EQ(processes, may_win(*t.comparison) || processes > kFewestProcesses ? kWinnerProcesses : kFewestProcesses);
  }
  EXPECT_GE(heldout, 5);
  ASSERT_TRUE(result.entries[0].winner);
  const auto& comparison = result.entries[0].winner->comparison;
  EXPECT_NEAR(comparison ? comparison->speedup : 1, 1, 0.003);
  EXPECT_EQ(rows[0].ties + 1, static_cast<int>(rows[0].standing.size())) << "all of them are ties";
}

TEST_F(TuneTest, EvolutionAndRandomSearchShareOneBudgetAndBothAreShown) {
  Store store(file());
  TuneOptions options = options_for("fake_none", 15);
  options.strategy = "both";
  const auto entry = run(options, store).entries[0];
  ASSERT_EQ(entry.arms.size(), 2u);
  EXPECT_EQ(entry.arms[0].strategy, "evolution");
  EXPECT_EQ(entry.arms[1].strategy, "random");
  EXPECT_NEAR(entry.arms[0].trials, entry.arms[1].trials, 1);
  for (const TuneResult::Arm& arm : entry.arms) {
    EXPECT_GT(arm.best_us, 0);
    EXPECT_GT(arm.heldout, 0) << "each arm's best is measured on held-out data";
  }
}

TEST_F(TuneTest, RejectedConfigsKeepTheirReasonsAcrossRuns) {
  Store store(file());
  run(options_for("fake_missing_mask", 4), store);
  std::vector<std::string> notes;
  const TuneResult result = tune(options_for("fake_missing_mask", 6), store,
                                 [&](const TuneProgress& p) {
                                   if (p.stage == "space") notes = p.notes;
                                 },
                                 {});
  EXPECT_EQ(result.entries[0].known, 4);
  EXPECT_EQ(result.entries[0].rejected.at(Ended::kIncorrect), 4);
  ASSERT_FALSE(notes.empty());
  EXPECT_EQ(notes[0], "4 configs are known from earlier runs, 4 incorrect; they are not tried again");
}

TEST_F(TuneTest, TheLedgerIsConsulted) {
  const std::string problem = options_for("fake_none", 1).suite.problems[0].problem.id();
  const auto pair = [&](const char* config, const char* verdict, double speedup) {
    return nlohmann::json{{"arm", config},          {"candidate", std::string("fake_none:") + config},
                          {"control", "fake_none"}, {"problem", problem},
                          {"verdict", verdict},     {"outcome", "REFUTED"},
                          {"speedup", speedup},     {"ci95", {speedup, speedup}}};
  };
  const nlohmann::json verdict = {
      {"schema", "flashcore.experiment/1"},
      {"name", "blocks"},
      {"verdict", "REFUTED"},
      {"hypothesis", "h"},
      {"summary", {"s0", "wide blocks lose", "s2"}},
      {"device", {{"key", "fake"}}},
      {"source_hash", source_hash()},
      {"created_at", "2025-01-01T00:00:00Z"},
      {"pairs",
       {pair("block=64,unroll=1,spread=0", "SLOWER", 0.8), pair("block=32,unroll=2,spread=1", "FASTER", 1.6)}}};
  fs::create_directories(folder_ / "ledger/blocks");
  write_file_atomically(folder_ / "ledger/blocks/verdict.json", verdict.dump());
  Store store(file());
  TuneOptions options = options_for("fake_none", 24);
  options.ledger = (folder_ / "ledger").string();
  std::vector<std::string> notes, order;
  const TuneResult result = tune(options, store,
                                 [&](const TuneProgress& p) {
                                   if (p.stage == "space") notes = p.notes;
                                   if (p.trial && p.stage != "holdout") order.push_back(p.trial->config);
                                 },
                                 {});
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0], "ledger: REFUTED blocks: wide blocks lose");
  EXPECT_NE(notes[1].find("block=64,unroll=1,spread=0 is left out"), std::string::npos);
  ASSERT_GE(order.size(), 2u);
  EXPECT_EQ(order[1], "block=32,unroll=2,spread=1") << "what was found faster comes right after the default";
  EXPECT_EQ(std::count(order.begin(), order.end(), "block=64,unroll=1,spread=0"), 0);
  EXPECT_EQ(order.size(), 23u) << "24 are feasible";
}

TEST_F(TuneTest, AWrongFamilyNeverReachesTheLeaderboard) {
  Store store(file());
  const TuneResult result = run(options_for("fake_missing_mask", 4), store);
  EXPECT_FALSE(result.entries[0].winner);
  EXPECT_TRUE(leaderboard(store.query({}), is_current).empty());
}

TEST_F(TuneTest, BadWordsAreFoundBeforeAnythingRuns) {
  Store store(file());
  EXPECT_THROW(run(options_for("no_such_family", 1), store), Error);
  TuneOptions options = options_for("fake_none", 1);
  options.strategy = "annealing";
  EXPECT_THROW(run(options, store), Error);
  options = options_for("fake_none", 1);
  options.suite.problems.clear();
  EXPECT_THROW(run(options, store), Error);
  EXPECT_TRUE(store.query({}).empty());
}

TEST_F(TuneTest, AProblemNobodyRunsSaysWhy) {
  Store store(file());
  TuneOptions options = options_for("fake_none", 2);
  options.suite.problems[0].problem.head_dim = 256;
  const TuneResult result = run(options, store);
  EXPECT_FALSE(result.entries[0].winner);
  EXPECT_NE(result.entries[0].problem_note.find("head dims up to 128"), std::string::npos)
      << result.entries[0].problem_note;
}

TEST_F(TuneTest, BenchTimesThePinnedCandidateAndItsFileVerifies) {
  Store store(file());
  BenchOptions options;
  options.device = "fake";
  options.suite = options_for("fake_none", 1).suite;
  options.suite.problems.push_back(options.suite.problems[0]);
  options.suite.problems[1].name = "unsupported";
  options.suite.problems[1].problem.head_dim = 256;
  options.candidate = "fake_none:block=32";
  options.worker_executable = FLASHCORE_WORKER_HELPER;
  const BenchResult result = bench(options, &store, {}, {});
  ASSERT_EQ(result.trials.size(), 2u);
  EXPECT_EQ(result.trials[0].ended, Ended::kPassed) << result.trials[0].message;
  EXPECT_EQ(result.trials[1].ended, Ended::kInvalid);
  EXPECT_EQ(store.query({.phase = Phase::kBench}).size(), 2u);

  const nlohmann::json json = bench_json(result.trials);
  const auto& first = json.at("results").at(0);
  EXPECT_EQ(first.at("schema"), "flashcore.bench/1");
  EXPECT_EQ(first.at("problem"), options.suite.problems[0].problem.id());
  EXPECT_EQ(first.at("config").at("block"), 32);
  EXPECT_GT(first.at("time_us").at("p50").get<double>(), 0);
  EXPECT_GT(first.at("tflops").get<double>(), 0);
  EXPECT_EQ(first.at("regime"), "graph");
  EXPECT_LE(first.at("correct").at("rel_error").get<double>(), first.at("correct").at("bound").get<double>());
  EXPECT_TRUE(json.at("results").at(1).at("time_us").is_null());

  const fs::path results = folder_ / "results.json";
  write_file_atomically(results, json.dump());
  const Verification verified = verify_results(results);
  EXPECT_TRUE(verified.fresh) << verified.reason;
  EXPECT_TRUE(verified.reason.starts_with("all 2 results (1 of them with a time) were measured")) << verified.reason;
  nlohmann::json nothing_timed = json;
  nothing_timed["results"].erase(0);
  nothing_timed.erase("digest");
  write_file_atomically(results, nothing_timed.dump());
  const Verification nothing = verify_results(results);
  EXPECT_FALSE(nothing.fresh);
  EXPECT_TRUE(nothing.wrong.empty());
  EXPECT_EQ(nothing.reason, "nothing was measured: none of its 1 results has a time");
  nlohmann::json old = json;
  old["results"][0]["source_hash"] = "another";
  write_file_atomically(results, old.dump());
  const Verification stale = verify_results(results);
  EXPECT_FALSE(stale.fresh);
  ASSERT_EQ(stale.stale.size(), 1u);
  EXPECT_EQ(stale.stale[0].name, "tiny");
  EXPECT_EQ(stale.stale[0].row, 0u);
  for (const char* text : {"", "[]", "{\"schema\":\"flashcore.bench/1\",\"results\":[]}",
                           "{\"schema\":\"flashcore.bench/1\",\"results\":[{}]}"}) {
    write_file_atomically(results, text);
    EXPECT_THROW(verify_results(results), Error) << text;
  }
}

}  // namespace
}  // namespace flashcore
