// What a published row must hold besides figures that its samples give: each forgery here was once called fresh.

#include "lab/verify/evidence.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "lab/compare/bench.h"
#include "lab/compare/peer_rows.h"
#include "lab/compare/peer_sessions.h"
#include "lab/record/digest.h"
#include "lab/verify/audit.h"

namespace flashcore {
namespace {

using nlohmann::json;

json session_on(int day, double ours_us, double laboratory_us) {
  return {{"run", fmt::format("peers-{}", day)},
          {"began_at", fmt::format("2026-11-{:02}T10:00:00.000Z", day)},
          {"boot", "b"},
          {"rounds", 12},
          {"timed_in", "the peers' process"},
          {"clock_mhz", 1800.0},
          {"code_hash", "code"},
          {"samples_us", std::vector<double>(12, ours_us)},
          {"laboratory_us", std::vector<double>(12, laboratory_us)}};
}

// Of two sessions with one peer: everything is there.
json honest_row() {
  json row = {{"problem", "b1_h8_s512_d64_fp16"},
              {"name", "one"},
              {"device", {{"key", "h200"}, {"name", "H200"}, {"limits", {{"kind", "cuda"}}}}},
              {"ended", "passed"},
              {"code_hash", "code"},
              {"floor_us", 2.0},
              {"correct",
               {{"rel_error", 1e-4}, {"timed_rel_error", 1e-4}, {"bound", 1e-3}, {"passed", true}, {"level", "full"}}},
              {"laboratory", {{"p50_us", 10.1}, {"apart", 10.0 / 10.1 - 1}, {"limit", kAgreement}}},
              {"measured", {session_on(1, 10, 10.2), session_on(2, 10, 10.1)}},
              {"peers",
               {{{"name", "cudnn"},
                 {"version", "9"},
                 {"correct", true},
                 {"rel_error", 1e-4},
                 {"samples_us", {std::vector<double>(12, 20), std::vector<double>(12, 21)}}}}}};
  derive_figures(row, 0.03);
  return row;
}

std::string complaint_of(const json& row) {
  std::string all;
  for (const std::string& what : audit_evidence(row)) all += what + "\n";
  return all;
}

TEST(Evidence, OfAnHonestRowIsComplete) {
  EXPECT_EQ(complaint_of(honest_row()), "");
  json sampled = honest_row();
  sampled["correct"]["level"] = "full, rows sampled, inputs unchecked";
  EXPECT_EQ(complaint_of(sampled), "");
  json withdrawn = honest_row();  // a session that went wrong is none that can be the same
  withdrawn["measured"].push_back({{"run", "peers-1"}, {"ended", "crashed"}, {"message", "m"}});
  withdrawn["peers"][0]["samples_us"].push_back(nullptr);
  EXPECT_EQ(complaint_of(withdrawn), "");
}

TEST(Evidence, EachForgeryIsToldInWords) {
  const std::vector<std::pair<std::string, std::function<void(json&)>>> forgeries = {
      {"of the same run as another session",
       [](json& row) {
         row["measured"] = {row["measured"][1], row["measured"][0], row["measured"][1]};
         row["peers"][0]["samples_us"].push_back(row["peers"][0]["samples_us"][1]);
       }},
      {"two sessions are at least 10 minutes apart",
       [](json& row) { row["measured"][1]["began_at"] = "2026-11-01T10:05:00.000Z"; }},
      {"no \"correct\"", [](json& row) { row.erase("correct"); }},
      {"did not pass the correctness gate: \"passed\" is false", [](json& row) { row["correct"]["passed"] = false; }},
      {"did not pass the correctness gate: \"passed\" is null", [](json& row) { row["correct"].erase("passed"); }},
      {"no bound that an error could be within", [](json& row) { row["correct"].erase("bound"); }},
      {"no bound that an error could be within", [](json& row) { row["correct"]["bound"] = -1; }},
      {"its rel_error of 0.002 is not within", [](json& row) { row["correct"]["rel_error"] = 0.002; }},
      {"its timed_rel_error of 0.002 is not within", [](json& row) { row["correct"]["timed_rel_error"] = 0.002; }},
      {"its timed_rel_error of 0.0001 is not within its bound of 5e-05",
       [](json& row) { row["correct"]["timed_bound"] = 5e-5; }},
      {"its \"timed_bound\" is no bound: 0", [](json& row) { row["correct"]["timed_bound"] = 0; }},
      {"its timed_rel_error of null is not within", [](json& row) { row["correct"].erase("timed_rel_error"); }},
      {"\"level\" is \"quick\"", [](json& row) { row["correct"]["level"] = "quick"; }},
      {"\"level\" is null", [](json& row) { row["correct"].erase("level"); }},
      {"-10.9%, and 3% is the limit", [](json& row) { row["measured"][1]["samples_us"] = std::vector<double>(12, 9); }},
      {"-11.8%, and 3% is the limit",  // also of a session that is not the last
       [](json& row) { row["measured"][0]["samples_us"] = std::vector<double>(12, 9); }},
      {"/laboratory/apart is 0.5, and its raw samples give -0.0099",
       [](json& row) { row["laboratory"]["apart"] = 0.5; }},
      {"/laboratory/p50_us is 100.0", [](json& row) { row["laboratory"]["p50_us"] = 100.0; }},
      {"/laboratory/limit is 0.5", [](json& row) { row["laboratory"]["limit"] = 0.5; }},
      {"session 1 has no \"laboratory_us\"", [](json& row) { row["measured"][0].erase("laboratory_us"); }},
      {"12 samples of ours and 11 of the laboratory's",
       [](json& row) { row["measured"][0]["laboratory_us"].erase(0); }},
      {"session 2 timed the machine code \"another\", and the row says \"code\"",
       [](json& row) { row["measured"][1]["code_hash"] = "another"; }},
      {"session 2 was of 40 rounds and has 12 samples", [](json& row) { row["measured"][1]["rounds"] = 40; }},
      {"takes 0.050 us in session 2, which is below the floor of 2.000 us",
       [](json& row) { row["peers"][0]["samples_us"][1] = std::vector<double>(12, 0.05); }},
      {"the peer \"cudnn\" is there twice",
       [](json& row) {
         const json peer = row["peers"][0];
         row["peers"].push_back(peer);
       }},
      {"the peer \"cudnn\" has a time, and is not correct", [](json& row) { row["peers"][0].erase("correct"); }},
      {"its relative error is null", [](json& row) { row["peers"][0].erase("rel_error"); }},
      {"above 4 times the bound", [](json& row) { row["peers"][0]["rel_error"] = 0.0041; }},
  };
  for (const auto& [words, forge] : forgeries) {
    json row = honest_row();
    forge(row);
    EXPECT_NE(complaint_of(row).find(words), std::string::npos) << words << ", and it says: " << complaint_of(row);
  }
}

TEST(Evidence, TheTimedOutputHasABoundOfItsOwn) {
  json row = honest_row();
  row["correct"].update({{"rel_error", 1e-5}, {"bound", 5e-5}, {"timed_rel_error", 1e-4}, {"timed_bound", 1e-3}});
  EXPECT_EQ(complaint_of(row), "");
  row["correct"].erase("timed_bound");
  EXPECT_NE(complaint_of(row), "");
}

TEST(Evidence, OnACpuAFactorOfTwoAndAHalfIsAllowed) {
  json row = honest_row();
  row["device"]["limits"]["kind"] = "cpu";
  row["laboratory"]["limit"] = kCpuAgreement;
  row["measured"][0]["laboratory_us"] = std::vector<double>(12, 5);
  EXPECT_EQ(complaint_of(row), "");
  row["laboratory"]["limit"] = kFormerCpuAgreement;
  EXPECT_EQ(complaint_of(row), "") << "as older files say";
  row["measured"][0]["laboratory_us"] = std::vector<double>(12, 50);
  EXPECT_NE(complaint_of(row).find("on a CPU 2.5 is the limit"), std::string::npos) << complaint_of(row);
  row["device"]["limits"]["kind"] = "cuda";
  EXPECT_NE(complaint_of(row).find("/laboratory/limit is 3.0, and it is 0.03"), std::string::npos);
}

TEST(Evidence, OfRowsWithoutRawSamplesIsWhatTheyHadThen) {
  json row = honest_row();
  row.erase("measured");
  row["peers"][0].erase("samples_us");
  row["peers"][0].erase("correct");
  row["correct"] = {{"rel_error", 1e-4}, {"bound", 1e-3}};
  EXPECT_EQ(complaint_of(row), "");
  row["correct"]["level"] = "quick";
  EXPECT_NE(complaint_of(row).find("\"level\" is \"quick\""), std::string::npos);
  row.erase("correct");
  EXPECT_NE(complaint_of(row).find("no \"correct\""), std::string::npos);
}

TEST(Evidence, IsAPartOfTheAudit) {
  json row = honest_row();
  row["device"].erase("limits");
  EXPECT_TRUE(audit_results({{"results", {row}}}).empty()) << audit_results({{"results", {row}}}).front();
  row["correct"]["passed"] = false;
  EXPECT_EQ(audit_results({{"results", {row}}}).size(), 1U);
}

TEST(Evidence, APeerOfOtherRowsIsThereOrTheRowSaysWhyNot) {
  json row = honest_row(), without = honest_row();
  for (json* one : {&row, &without}) (*one)["device"].erase("limits");
  without["name"] = "other";
  without["peers"] = json::array();
  json rows = {row, without};
  const auto wrong = audit_results({{"results", rows}});
  ASSERT_EQ(wrong.size(), 1U);
  EXPECT_NE(wrong[0].find("the peer cudnn is in other rows and not in this one"), std::string::npos) << wrong[0];
  json untimed = rows;
  untimed[1]["time_us"] = nullptr, untimed[1]["ended"] = "crashed";
  for (json& session : untimed[1]["measured"]) session["ended"] = "crashed";
  EXPECT_TRUE(audit_results({{"results", untimed}}).empty());
  // A peer run writes what it knows of it, and keeps what was known.
  note_silent_absences(rows);
  EXPECT_EQ(rows[1]["refused"]["cudnn"], "it was not asked in any session of this row");
  EXPECT_TRUE(audit_results({{"results", rows}}).empty());
  rows[1]["refused"]["cudnn"] = "head_dim 512: at most 256";
  note_silent_absences(rows);
  EXPECT_EQ(rows[1]["refused"]["cudnn"], "head_dim 512: at most 256");
}

// A time that is worse than one would like was once taken out like this.
TEST(Evidence, ARowWithoutATimeSaysHowItsSessionsEnded) {
  json row = honest_row();
  row["device"].erase("limits");
  row["time_us"] = nullptr, row["ended"] = "error";
  const std::string words =
      "b1_h8_s512_d64_fp16: it has no time, and session {} has samples and does not say how it ended";
  EXPECT_EQ(audit_results({{"results", {row}}}),
            (std::vector<std::string>{fmt::format(fmt::runtime(words), 1), fmt::format(fmt::runtime(words), 2)}));
  row["measured"][0]["ended"] = "error";
  EXPECT_EQ(audit_results({{"results", {row}}}), (std::vector<std::string>{fmt::format(fmt::runtime(words), 2)}));
  row["measured"][1]["ended"] = "error";
  EXPECT_TRUE(audit_results({{"results", {row}}}).empty());
  // Earlier sessions of a row that is withdrawn went well: the one that withdrew it says so.
  json withdrawn = honest_row();
  withdrawn["device"].erase("limits");
  withdrawn["time_us"] = nullptr, withdrawn["ended"] = "incorrect";
  EXPECT_EQ(audit_results({{"results", {withdrawn}}}).size(), 2U);
  withdrawn["measured"].push_back({{"run", "peers-3"}, {"ended", "incorrect"}, {"message", "m"}});
  EXPECT_TRUE(audit_results({{"results", {withdrawn}}}).empty());
  json of_bench = {{"problem", "b1_h8_s512_d64_fp16"}, {"name", "one"}, {"time_us", nullptr}, {"ended", "error"}};
  EXPECT_TRUE(audit_results({{"results", {of_bench}}}).empty());
  of_bench["samples_us"] = {10.0, 10.1};
  EXPECT_EQ(audit_results({{"results", {of_bench}}}),
            (std::vector<std::string>{"b1_h8_s512_d64_fp16: it has samples, and no time"}));
}

TEST(Evidence, SessionsThatRanSlowlyAreNamed) {
  json row = honest_row();
  row["device"].erase("limits");
  row["measured"][0]["environment"] = {{"throttle_reasons", "none"}};
  row["measured"][0]["others_busy"] = 0.1;
  EXPECT_TRUE(audit_document({{"results", {row}}}).remarks.empty());
  row["measured"][1]["environment"] = {{"throttle_reasons", "sw_power_cap"}};
  row["measured"][0]["others_busy"] = 0.25;
  const Audit audit = audit_document({{"results", {row}}});
  EXPECT_TRUE(audit.wrong.empty()) << audit.wrong.front();
  EXPECT_EQ(audit.remarks,
            (std::vector<std::string>{"clocks were lowered (sw_power_cap) in session 2 of one",
                                      "other programs kept a quarter of a core or more busy in session 1 of one"}));
}

json row_of_older_statistics() {
  json row = honest_row();
  row["device"].update({{"id", "cuda:0"}, {"memory_bytes", 1}, {"driver", "1"}, {"name", "NVIDIA H200"}});
  row["device"]["limits"] = {{"kind", "cuda"},
                             {"arch", 90},
                             {"multiprocessors", 132},
                             {"shared_bytes_per_block", 1},
                             {"shared_bytes_per_multiprocessor", 1},
                             {"registers_per_multiprocessor", 1},
                             {"max_threads_per_block", 1},
                             {"max_threads_per_multiprocessor", 1},
                             {"l2_bytes", 62914560}};
  row["device"]["ceilings"] = {{"matmul_tflops_16bit", 900.0},
                               {"fma_tflops_fp32", 0.0},
                               {"read_gbps", 4500.0},
                               {"cache_read_gbps", 8000.0},
                               {"empty_launch_us", 0.6}};
  row["floor_us"] = 0.61;
  row["peers"][0]["ci95"] = {2.04, 2.06};
  return row;
}

TEST(Evidence, FiguresOfOlderStatisticsAreDerivedAnew) {
  const json row = row_of_older_statistics();
  const std::optional<json> anew = with_figures_anew(row);
  ASSERT_TRUE(anew);
  EXPECT_NEAR((*anew)["floor_us"].get<double>(), 1.19, 0.02);
  EXPECT_LT((*anew)["peers"][0]["ci95"][0].get<double>(), 2.0);
  EXPECT_TRUE(audit_results({{"results", {*anew}}}).empty()) << audit_results({{"results", {*anew}}}).front();
  EXPECT_FALSE(with_figures_anew(*anew)) << "it has them now";
}

// Of a row without a digest nobody knows whether the statistics are older or the samples edited.
TEST(Evidence, WithoutADigestFiguresAreDerivedAnewOnRequestAlone) {
  json document = {{"schema", kBenchSchema}, {"results", {row_of_older_statistics()}}};
  RecordedProvenance recorded = with_provenance(document.dump(), "f");
  EXPECT_EQ(recorded.not_derived, 1U);
  EXPECT_EQ(recorded.derived, 0U);
  EXPECT_FALSE(recorded.wrong.empty());
  recorded = with_provenance(document.dump(), "f", true);
  ASSERT_TRUE(recorded.wrong.empty()) << recorded.wrong.front();
  EXPECT_EQ(recorded.derived, 1U);
  EXPECT_TRUE(json::parse(recorded.text)["results"][0].contains(kRederived));
  seal_results(document, true);
  recorded = with_provenance(document.dump(), "f");
  ASSERT_TRUE(recorded.wrong.empty()) << recorded.wrong.front();
  EXPECT_EQ(recorded.derived, 1U);
  EXPECT_FALSE(json::parse(recorded.text)["results"][0].contains(kRederived));
}

}  // namespace
}  // namespace flashcore
