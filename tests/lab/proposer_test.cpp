// Proposers: programs that say what a tune run tries next.
#include <chrono>
#include <fstream>
#include <map>

#include "core/error.h"
#include "core/files.h"
#include "lab/tune_fixture.h"

namespace flashcore {
namespace {

namespace fs = std::filesystem;

class ProposerTest : public test::TuneTest {};

// A proposer goes through the same gates: a config, a wrong one, nonsense, and an end.
TEST_F(ProposerTest, AnExternalProposerGoesThroughTheSameGates) {
  Store store(file());
  TuneOptions options = options_for("fake_none", 20);
  options.strategy = "none";
  options.proposer =
      "n=0; while read -r line; do case \"$line\" in *'\"event\":\"propose\"'*) n=$((n+1)); case $n in "
      "1) echo '{\"candidate\":\"fake_none:block=32,unroll=2,spread=1\"}';; "
      "2) echo '{\"family\":\"fake_none\",\"config\":{\"block\":17}}';; "
      "3) echo 'not JSON';; "
      "4) echo '{\"candidate\":\"fake_none\",\"patch\":\"/no/such/folder\"}';; "
      "5) echo '{\"candidate\":\"fake_wrong_tail\"}';; "
      "*) echo '{\"done\":true}';; esac;; esac; done";
  const auto entry = run(options, store).entries[0];
  ASSERT_EQ(entry.arms.size(), 1u);
  EXPECT_EQ(entry.arms[0].strategy, "proposer");
  EXPECT_EQ(entry.arms[0].trials, 3);
  EXPECT_EQ(entry.arms[0].note, "");
  EXPECT_EQ(entry.arms[0].best, "fake_none:block=32,unroll=2,spread=1");
  ASSERT_TRUE(entry.winner);
  EXPECT_EQ(entry.winner->config, "block=32,unroll=2,spread=1");
  std::map<Ended, int> ended;
  for (const Trial& t : store.query({}))
    if (t.phase == Phase::kSearch) ++ended[t.ended];
  EXPECT_EQ(ended[Ended::kInvalid], 1);
  EXPECT_EQ(ended[Ended::kIncorrect], 1);
  EXPECT_EQ(entry.arms[0].rejected, 2);
  // One that dies later ends its arm, not the run.
  options.proposer =
      "n=0; while read -r line; do case \"$line\" in *'\"event\":\"propose\"'*) n=$((n+1)); case $n in "
      "1) echo '{\"candidate\":\"fake_none:block=64\"}';; *) echo 'out of ideas' >&2; exit 3;; esac;; esac; done";
  options.seed = 2;
  const auto dead = run(options, store).entries[0];
  EXPECT_NE(dead.arms[0].note.find("exited with code 3; its stderr ends: out of ideas"), std::string::npos)
      << dead.arms[0].note;
  EXPECT_TRUE(dead.winner);
  EXPECT_FALSE(dead.arms[0].failed) << "it had made a proposal";
}

// Not a silent empty run: the command is wrong, or its machine is.
TEST_F(ProposerTest, AProposerThatDiesAtOnceIsAnErrorThatShowsItsStderr) {
  Store store(file());
  for (const char* strategy : {"none", "random"}) {
    TuneOptions options = options_for("fake_none", 3);
    options.strategy = strategy;
    options.proposer = "echo 'no module named proposer' >&2; exit 3";
    try {
      run(options, store);
      ADD_FAILURE() << "nothing was thrown with strategy " << strategy;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kBadInput);
      const std::string message = e.what();
      EXPECT_NE(message.find("exited with code 3"), std::string::npos) << message;
      EXPECT_NE(message.find("no module named proposer"), std::string::npos) << message;
    }
  }
}

// The budget counts what earlier runs tried: with all of it spent nobody asked the proposer, and its death was no
// error.
TEST_F(ProposerTest, AProposerIsAskedOnceWhateverEarlierRunsTried) {
  Store store(file());
  TuneOptions options = options_for("fake_none", 3);
  options.strategy = "random";
  run(options, store);
  options.proposer = "exit 7";
  EXPECT_THROW(run(options, store), Error);
  options.proposer =
      "while read -r line; do case \"$line\" in *'\"event\":\"propose\"'*) echo "
      "'{\"candidate\":\"fake_none:block=32,unroll=2,spread=1\"}';; esac; done";
  const auto entry = run(options, store).entries[0];
  EXPECT_EQ(entry.arms[0].trials, 1);
  EXPECT_FALSE(entry.arms[0].failed);
  options.seed = 2;
  options.proposer = "exec yes nonsense";
  const auto nonsense = run(options, store).entries[0];
  EXPECT_TRUE(nonsense.arms[0].failed);
  EXPECT_NE(nonsense.arms[0].note.find("5 answers in a row"), std::string::npos) << nonsense.arms[0].note;
}

// Each of them once ended the run, or could.
TEST_F(ProposerTest, ABadProposalIsRejectedLikeAnyOtherAnswer) {
  const auto patch = [&](const char* name, const std::string& yaml) {
    const fs::path folder = folder_ / "patches" / name;
    fs::create_directories(folder);
    std::ofstream(folder / "patch.yaml") << yaml;
    return folder.string();
  };
  const std::string good =
      patch("twice", "replace: [{file: ref_fwd/kernel.cuh, from: '#pragma once', to: '#pragma once '}]");
  fs::create_directories(folder_ / "other");
  const fs::path same_name = folder_ / "other" / "twice";
  fs::create_directories(same_name);
  std::ofstream(same_name / "patch.yaml")
      << "replace: [{file: ref_fwd/kernel.cuh, from: '#pragma once', to: '#pragma once  '}]";
  const auto of = [](const std::string& family, const std::string& folder) {
    return R"({"candidate":")" + family + R"(","patch":")" + folder + "\"}";
  };
  const std::vector<std::string> answers = {
      of("ref_fwd", patch("unknown_file", "replace: [{file: no/such.cuh, from: a, to: b}]")),
      of("ref_fwd", patch("escaping", "replace: [{file: ../../../etc/passwd, from: root, to: b}]")),
      of("ref_fwd", patch("no_text", "replace: [{file: ref_fwd/kernel.cuh, from: 'this is not there', to: b}]")),
      of("ref_fwd", patch("no_field", "extend: {no_such_field: [1]}")),
      of("no_such_family", patch("no_base", "replace: [{file: ref_fwd/kernel.cuh, from: a, to: b}]")),
      of("cpu_fwd", patch("built_in", "replace: [{file: ref_fwd/kernel.cuh, from: a, to: b}]")),
      of("ref_fwd", patch("bad name!", "replace: [{file: ref_fwd/kernel.cuh, from: '#pragma once', to: b}]")),
      of("ref_fwd", patch("bad_type", "extend: {num_warps: [many]}")),
      of("ref_fwd", patch("bad_yaml", "replace: [")),
      of("ref_fwd", same_name.string()),
      R"({"family":"fake_none","config":{"block":"64"}})",
      R"({"family":"fake_none","config":{"block":64.5}})",
      R"({"family":"fake_none","config":{"block":4294967360}})",
      R"({"family":"fake_none","config":{"block":1e300}})",
      R"({"family":"fake_none","config":{"block":true}})",
      R"({"family":"fake_none","config":{"block":NaN}})",
      R"({"family":"fake_none","config":[64]})",
      R"({"family":7})",
      R"({"candidate":null})",
      R"([1, 2])",
      R"("candidate")",
      "{\"candidate\":\"\xff\xfe\"}",
      std::string(100'000, '['),
      R"({"candidate":")" + std::string(10'000, 'x') + "\"}",
  };
  // A good one before each bad one: five in a row would end the arm. The first is a patch whose name comes again.
  std::ofstream list(folder_ / "answers");
  list << of("ref_fwd", good) << "\n";
  for (std::size_t i = 0; i < answers.size(); ++i)
    list << answers[i] << "\n"
         << R"({"candidate":"fake_none:block=)" << (i % 2 ? 32 : 64) << "\"}\n";
  list << R"({"candidate":"fake_none:block=32,unroll=2,spread=1"})"
       << "\n{\"done\":true}\n";
  list.close();
  Store store(file());
  TuneOptions options = options_for("fake_none", 100);
  options.strategy = "none";
  options.proposer =
      "exec 3<'" + (folder_ / "answers").string() + "'; while IFS= read -r line; do printf '%s\n' \"$line\" >> '" +
      (folder_ / "heard").string() +
      "'; case \"$line\" in *'\"event\":\"propose\"'*) IFS= read -r answer <&3; printf '%s\n' \"$answer\";; esac; done";
  const auto entry = run(options, store).entries[0];
  EXPECT_EQ(entry.arms[0].note, "");
  EXPECT_EQ(entry.arms[0].rejected, static_cast<int>(answers.size()));
  for (const auto& [answer, reason] : entry.arms[0].rejections) EXPECT_FALSE(reason.empty()) << answer;
  EXPECT_EQ(entry.arms[0].best, "fake_none:block=32,unroll=2,spread=1") << "the run went on to the last answer";
  EXPECT_TRUE(entry.winner);
  std::ifstream heard(folder_ / "heard");
  std::size_t told = 0;
  for (std::string line; std::getline(heard, line);) told += line.find("\"event\":\"rejected\"") != std::string::npos;
  EXPECT_EQ(told, answers.size());
}

// The run has a budget; whoever proposes cannot draw it out.
TEST_F(ProposerTest, AProposerIsNotWaitedForLongerThanTheBudget) {
  Store store(file());
  TuneOptions options = options_for("fake_none", 20);
  options.budget_trials.reset();
  options.budget_seconds = 1;
  options.strategy = "none";
  options.proposer = "exec sleep 1000";
  const auto begin = std::chrono::steady_clock::now();
  const auto entry = run(options, store).entries[0];
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60)) << "patience alone is 120 s";
  EXPECT_NE(entry.arms[0].note.find("with the budget over"), std::string::npos) << entry.arms[0].note;
  EXPECT_TRUE(entry.arms[0].failed) << "it never proposed anything";
}

}  // namespace
}  // namespace flashcore
