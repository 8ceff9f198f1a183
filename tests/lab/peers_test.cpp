// The engine of peer runs: what tests/cli/peers_verb_test.py cannot have without a GPU.

#include "lab/compare/peers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "kernels/source_hash.h"

namespace flashcore {
namespace {

using nlohmann::json;

json run_one(bool on_gpu, PeerDeadlines deadlines, std::vector<std::vector<std::string>> programs, double gap_ms = 0,
             const char* problem = "b1_h1_s8_d16_fp32") {
  PeersOptions options;
  options.device = "cpu";
  options.on_gpu = on_gpu;  // the rules of a GPU; the times are a CPU's
  options.suite = {"one", {{"tiny", PlacedProblem::parse(problem)}}};
  options.programs = std::move(programs);
  options.rounds = 2;
  options.gap_ms = gap_ms;
  options.laboratory = FLASHCORE_BINARY;
  options.deadlines = deadlines;
  // Its party "flashcore" says what the library of this build would.
  setenv("FAKE_PEER_SOURCE", source_hash().c_str(), 1);
  const PeersResult result = run_peers(options, nullptr, {}, {});
  EXPECT_EQ(result.rows.size(), 1U);
  return result.rows.at(0);
}

const std::string kFake = FLASHCORE_SOURCE_DIR "/tests/cli/fake_peer.py";

TEST(Peers, OnAGpuBothTimingsOfOursMustAgree) {
  // Its party "flashcore" says 1000 us, and the laboratory measures a hundredth of that.
  const json row = run_one(true, {}, {{"python3", kFake, "flashcore", "good"}});
  EXPECT_TRUE(row["time_us"].is_null());
  EXPECT_NE(row["message"].get<std::string>().find("3% is the limit"), std::string::npos) << row["message"];
  EXPECT_TRUE(row["peers"].empty()) << "no ratio is published either";
  EXPECT_EQ(row["measured"][0]["samples_us"].size(), 2U) << "the samples are kept";
  EXPECT_TRUE(run_one(false, {}, {{"python3", kFake, "flashcore:brief", "good"}})["time_us"].is_object());
}

TEST(Peers, OnACpuEachSampleComesAfterPoolsHaveGoneToSleep) {
  const auto seconds_with = [](double gap_ms) {
    const auto start = std::chrono::steady_clock::now();
    const json row = run_one(false, {}, {{"python3", kFake, "good"}}, gap_ms);
    EXPECT_TRUE(row["time_us"].is_object()) << row;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  seconds_with(0);  // what is measured once in a process
  EXPECT_GE(seconds_with(-1), 2 * 2 * 0.05) << "2 rounds of 2 parties, 50 ms before each";
}

// Which PyTorch has no type for: the peers' programs are not asked, and ours is timed by the laboratory.
TEST(Peers, Int4IsTimedByTheLaboratoryAlone) {
  const json row = run_one(true, {}, {{"python3", kFake, "flashcore", "good"}}, 0,
                           "b2_h2_hk1_sq1_sk40_d16_fp32_kvint4_raggedfull_page8");
  EXPECT_TRUE(row["time_us"].is_object()) << row;
  EXPECT_EQ(row["measured"][0]["timed_in"], "the laboratory");
  EXPECT_NE(row["refused"].value("good", "").find("PyTorch has no int4"), std::string::npos) << row["refused"];
  EXPECT_FALSE(row["refused"].contains("flashcore"));
}

// It answers hello, and nothing else: without a bound the first problem would take 900 s.
const char* const kSilent =
    "read -r x; echo '{\"protocol\": 1, \"parties\": [{\"name\": \"silent\"}]}'; exec sleep 1000";

TEST(Peers, ASilentPeerCostsNoMoreThanTheBudget) {
  PeersOptions options;
  options.device = "cpu";
  options.suite.name = "three";
  for (const char* id : {"b1_h1_s8_d16_fp32", "b1_h1_s9_d16_fp32", "b1_h1_s10_d16_fp32"})
    options.suite.problems.push_back({id, PlacedProblem::parse(id)});
  options.programs = {{"/bin/sh", "-c", kSilent}};
  options.rounds = 2;
  options.gap_ms = 0;
  options.laboratory = FLASHCORE_BINARY;
  options.deadlines.least = 5;  // for hello on a busy machine
  options.budget_seconds = 1;
  const PeersResult result = run_peers(options, nullptr, {}, {});
  ASSERT_EQ(result.rows.size(), 3U);
  for (const json& row : result.rows) {
    EXPECT_TRUE(row["time_us"].is_object()) << "ours is measured all the same";
    const auto why = row.at("refused").at("silent").get<std::string>();
    EXPECT_NE(why.find(&row == &result.rows[0] ? "which the budget left it" : "nothing is left of the budget"),
              std::string::npos)
        << why;
  }
}

}  // namespace
}  // namespace flashcore
