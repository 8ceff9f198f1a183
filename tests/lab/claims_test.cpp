// What a results file says besides figures: each edit here was once called fresh.

#include "lab/verify/claims.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>

#include "core/scratch_folder.h"
#include "device/device.h"
#include "kernels/family.h"
#include "lab/compare/bench.h"
#include "lab/compare/peer_sessions.h"
#include "lab/record/checkout.h"
#include "lab/record/digest.h"
#include "lab/record/freshness.h"
#include "lab/record/trial.h"
#include "lab/verify/recompute.h"

namespace flashcore {
namespace {

using nlohmann::json;

const double kNow = *parse_iso8601("2026-11-24T00:00:00.000Z");

json session_of_day(int day) {
  return {{"run", fmt::format("peers-2026-11-{:02}T09:58:00.000Z-17", day)},
          {"began_at", fmt::format("2026-11-{:02}T10:00:00.000Z", day)},
          {"measured_at", fmt::format("2026-11-{:02}T10:05:00.000Z", day)},
          {"commit", fmt::format("abcdef{}", day)},
          {"driver", "580 (CUDA 13.0)"},
          {"samples_us", {10.0, 10.0}}};
}

json honest_document() {
  const json row = {{"problem", "b1_h8_s32_d64_fp16"},
                    {"name", "small"},
                    {"suite", "canonical"},
                    {"device", {{"driver", "580 (CUDA 13.0)"}, {"limits", {{"kind", "cuda"}}}}},
                    {"regime", "graph"},
                    {"condition", "burst"},
                    {"chosen_by", "dispatch"},
                    {"code_hash", "code"},
                    {"compiler", "NVRTC 13.0 (109338064 bytes)"},
                    {"registers", 96},
                    {"time_us", {{"p50", 10.0}}},
                    {"correct", {{"rel_error", 2e-4}, {"bound", 6e-4}}},
                    {"environment",
                     {{"measured_at", "2026-11-21T10:04:00.000Z"},
                      {"commit", "abcdef21"},
                      {"driver", "580 (CUDA 13.0)"},
                      {"flashcore", FLASHCORE_VERSION}}},
                    {"measured", {session_of_day(20), session_of_day(21)}}};
  json other = row;
  other["name"] = "mission";
  other["problem"] = "b1_h8_s512_d64_fp16";
  json document = {{"schema", kBenchSchema},
                   {"suite", "canonical"},
                   {"measured_at", "2026-11-21T10:06:00.000Z"},
                   {"results", {row, other}}};
  seal_results(document, true);
  return document;
}

std::string lines(const std::vector<std::string>& sentences) { return fmt::format("{}", fmt::join(sentences, "\n")); }
std::string wrong_in(const json& document) { return lines(audit_claims(document, kNow).wrong); }
std::string remarks_on(const json& document) { return lines(audit_claims(document, kNow).remarks); }

json without_digests(json document) {
  document.erase(kDigest);
  for (json& row : document["results"]) row.erase(kDigest);
  return document;
}

TEST(Claims, OfAnHonestFileHoldTogether) {
  EXPECT_EQ(wrong_in(honest_document()), "");
  EXPECT_EQ(remarks_on(honest_document()), "");
  EXPECT_EQ(wrong_in(without_digests(honest_document())), "");
}

TEST(Claims, AnyEditBreaksTheDigest) {
  const std::vector<std::pair<const char*, json>> edits = {
      {"/name", "medium"},
      {"/condition", "sustained"},
      {"/correct/bound", 7e-4},
      {"/registers", 95},
      {"/compiler", "NVRTC 13.1 (109338064 bytes)"},
      {"/environment/flashcore", "0.0.9"},
      {"/environment/driver", "581"},
      {"/environment/commit", "abcdef22"},
      {"/environment/measured_at", "2026-11-21T10:04:01.000Z"},
      {"/measured/0/began_at", "2026-11-20T10:01:00.000Z"},
      {"/notes", "another kernel"},
  };
  for (const auto& [path, value] : edits) {
    json document = honest_document();
    document["results"][0][json::json_pointer(path)] = value;
    EXPECT_NE(wrong_in(document).find("): its text is not what the program wrote"), std::string::npos) << path;
    seal(document["results"][0]);  // who computes the row's digest anew changes the file
    EXPECT_NE(wrong_in(document).find("the file's text is not what the program wrote"), std::string::npos) << path;
  }
  json document = honest_document();
  document["results"].erase(1);
  EXPECT_NE(wrong_in(document).find("a row was added or taken out"), std::string::npos);
}

TEST(Claims, WhatContradictsTheRestIsNamedWithoutADigest) {
  const std::vector<std::pair<std::string, std::function<void(json&)>>> forgeries = {
      {"the suite canonical calls b1_h8_s32_d64_fp16 'small'", [](json& row) { row["name"] = "nobody"; }},
      {"calls b1_h8_s32_d64_fp16 'small'", [](json& row) { row["name"] = "large"; }},
      {"has another problem of this name than b1_h8_s33_d64_fp16",
       [](json& row) { row["problem"] = "b1_h8_s33_d64_fp16"; }},
      {"'hot' is not a power condition", [](json& row) { row["condition"] = "hot"; }},
      {"before a condition was renamed", [](json& row) { row["condition"] = "idle_gap"; }},
      {"its regime is \"warm\"", [](json& row) { row["regime"] = "warm"; }},
      {"is no NVRTC as flashcore names one", [](json& row) { row["compiler"] = "nvcc"; }},
      {"is no NVRTC as flashcore names one", [](json& row) { row["compiler"] = "NVRTC 13.0 (1 bytes) or so"; }},
      {"256 registers are none", [](json& row) { row["registers"] = 256; }},
      {"the machine code code has 96 registers here, and 95 in small", [](json& row) { row["registers"] = 95; }},
      {"its correctness bound of 0.1 is more than", [](json& row) { row["correct"]["bound"] = 0.1; }},
      {"its environment names the driver '590'", [](json& row) { row["environment"]["driver"] = "590"; }},
      {"session 1 ran on the driver '590'", [](json& row) { row["measured"][0]["driver"] = "590"; }},
      {"its environment names the commit 'abcdef20'", [](json& row) { row["environment"]["commit"] = "abcdef20"; }},
      {"its latest session with samples 'abcdef22'", [](json& row) { row["measured"][1]["commit"] = "abcdef22"; }},
      {"its environment is of 2026-11-20T10:04:00.000Z",
       [](json& row) { row["environment"]["measured_at"] = "2026-11-20T10:04:00.000Z"; }},
      {"session 1 began at 2026-11-20T11:00:00.000Z, after it was measured",
       [](json& row) { row["measured"][0]["began_at"] = "2026-11-20T11:00:00.000Z"; }},
      {"which began after 2026-11-19T10:00:00.000Z",
       [](json& row) { row["measured"][0]["began_at"] = "2026-11-19T10:00:00.000Z"; }},
      {"session 2 was measured at 2026-11-22T10:05:00.000Z, and the file was written before that",
       [](json& row) { row["measured"][1]["measured_at"] = "2026-11-22T10:05:00.000Z"; }},
      {"session 2 was measured at 2027-11-22T10:05:00.000Z, which is later than now",
       [](json& row) { row["measured"][1]["measured_at"] = "2027-11-22T10:05:00.000Z"; }},
  };
  for (const auto& [words, forge] : forgeries) {
    json document = without_digests(honest_document());
    forge(document["results"][0]);
    EXPECT_NE(wrong_in(document).find(words), std::string::npos) << words << ", and it says: " << wrong_in(document);
  }
  json document = without_digests(honest_document());
  document["measured_at"] = "2027-01-01T00:00:00.000Z";
  EXPECT_NE(wrong_in(document).find("the file was written at 2027"), std::string::npos);
}

TEST(Claims, WhatNobodyCanCheckIsToldAndNoFault) {
  json document = without_digests(honest_document());
  EXPECT_NE(remarks_on(document).find("it has no digest (measured before digests)"), std::string::npos);
  EXPECT_NE(remarks_on(document).find("samples together with their figures is not seen either"), std::string::npos);
  document = honest_document();
  document["results"][0].erase(kDigest);
  seal(document);
  EXPECT_EQ(remarks_on(document), "small has no digest (measured before digests), and other results have one");
  document = honest_document();
  document.erase(kDigest);
  EXPECT_EQ(remarks_on(document), "its results have digests and the file has none: rows may have been taken out");
  document = honest_document();
  document["results"][0]["environment"]["flashcore"] = "0.0.9";
  document["results"][0]["condition"] = "sustained";
  seal_results(document, true);
  EXPECT_EQ(wrong_in(document), "");
  EXPECT_EQ(remarks_on(document),
            "the condition is burst in mission\nthe condition is sustained in small\n"
            "flashcore 0.0.9 measured small, and this is " FLASHCORE_VERSION);
}

TEST(Claims, AConditionIsThatOfItsSessions) {
  json document = without_digests(honest_document());
  json& row = document["results"][0];
  json& session = row["measured"][1];
  row["condition"] = "sustained";
  EXPECT_EQ(wrong_in(document), "") << "sessions of older files do not say theirs";
  session["measure_ms"] = 0;
  EXPECT_EQ(wrong_in(document),
            "small: its condition is \"sustained\", and each sample of session 2 took 0 ms (0: a burst)");
  session.erase("measure_ms");
  session["condition"] = "burst";
  EXPECT_EQ(wrong_in(document), "small: its condition is \"sustained\", and that of session 2 \"burst\"");
  session["condition"] = "sustained", session["measure_ms"] = 200;
  EXPECT_EQ(wrong_in(document), "");
  row["condition"] = "burst", session["condition"] = "burst";
  EXPECT_EQ(wrong_in(document),
            "small: its condition is \"burst\", and each sample of session 2 took 200 ms (0: a burst)");
}

// A session that names what is no condition now was compared with nothing where its row names none.
TEST(Claims, AnUnknownConditionIsNamedAndSoIsNone) {
  json document = without_digests(honest_document());
  json& row = document["results"][0];
  row.erase("condition");
  EXPECT_EQ(wrong_in(document), "");
  EXPECT_NE(remarks_on(document).find("no condition is named of small"), std::string::npos) << remarks_on(document);
  row["measured"][1]["condition"] = "idle_gap";
  EXPECT_NE(wrong_in(document).find("small: session 2: 'idle_gap' is not a power condition"), std::string::npos)
      << wrong_in(document);
}

// Whether dispatch would choose it is asked only of what dispatch chose: with another word stale rows were fresh.
TEST(Claims, WhoElseChoseACandidateIsNamed) {
  json document = honest_document();
  document["results"][0]["chosen_by"] = "caller";
  document["results"][1].erase("chosen_by");
  seal_results(document, true);
  EXPECT_EQ(wrong_in(document), "");
  EXPECT_EQ(remarks_on(document),
            "nobody is named who chose the candidate of mission: whether dispatch would choose it now is not asked\n"
            "'caller' chose the candidate of small: whether dispatch would choose it now is not asked");
}

TEST(Claims, FiguresDerivedAnewWithoutADigestAreNamed) {
  json document = honest_document();
  document["results"][0][kRederived] = "2026-11-26T10:00:00.000Z";
  seal_results(document, true);
  EXPECT_NE(remarks_on(document).find("small has figures that were derived anew from samples without a digest"),
            std::string::npos)
      << remarks_on(document);
  // Further sessions leave that as it is.
  json appended = document["results"][0];
  const json earlier = appended;
  json row = earlier;
  row.erase(kRederived);
  row["measured"] = {session_of_day(22)};
  appended["measured"].push_back(session_of_day(22));
  appended.erase(kRederived);
  seal_appended(appended, earlier, row);
  EXPECT_TRUE(appended.contains(kRederived));
}

TEST(Claims, ProblemsOfTheSuiteWithoutARowAreNamed) {
  const Claims claims = audit_claims(honest_document(), kNow);
  EXPECT_EQ(claims.suite, "canonical");
  EXPECT_EQ(claims.unmeasured.size() + 2, claims.suite_problems);
  EXPECT_EQ(claims.unmeasured.front(), "mission_causal");
  json document = honest_document();
  document["results"][0]["suite"] = document["results"][1]["suite"] = "of somebody";
  EXPECT_TRUE(audit_claims(document, kNow).unmeasured.empty());
  // What was asked for by its id is of no suite, whichever it names.
  document = without_digests(honest_document());
  for (json& row : document["results"]) {
    row["problem"] = row["problem"] == "b1_h8_s32_d64_fp16" ? "b1_h8_s33_d64_fp16" : "b1_h8_s34_d64_fp16";
    row["name"] = row["problem"];
  }
  EXPECT_TRUE(audit_claims(document, kNow).unmeasured.empty());
  EXPECT_EQ(remarks_on(document).find("no such problem"), std::string::npos);
  EXPECT_EQ(wrong_in(document), "");
}

TEST(Claims, AppendedSessionsSayWhichAreFromBeforeDigests) {
  json earlier = honest_document()["results"][0], row = earlier;
  row["measured"] = {session_of_day(22)};
  json appended = earlier;
  appended["measured"].push_back(session_of_day(22));
  seal_appended(appended, earlier, row);
  EXPECT_EQ(seal_of(appended), Seal::kIntact);
  EXPECT_FALSE(appended.contains(kSessionsBeforeDigests));
  earlier.erase(kDigest);
  seal_appended(appended, earlier, row);
  EXPECT_EQ(appended[kSessionsBeforeDigests], 2);
  json later = appended, next = row;
  later["measured"].push_back(session_of_day(23));
  later.erase(kSessionsBeforeDigests);
  next["measured"] = {session_of_day(23)};
  seal_appended(later, appended, next);
  EXPECT_EQ(later[kSessionsBeforeDigests], 2);
  json untouched = earlier;
  seal_appended(untouched, earlier, row);
  EXPECT_EQ(seal_of(untouched), Seal::kNone) << "no digest is invented for it";
}

class CommitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("git --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "git is not here";
    run("git init -q .");
    std::ofstream(folder_.path() / "a") << "a";
    run("git add a");
    run("GIT_COMMITTER_DATE=2026-11-20T09:00:00Z git -c user.name=a -c user.email=a@b commit -q -m a && "
        "git rev-parse HEAD > head");
    std::ifstream(folder_.path() / "head") >> commit_;
    document_ = without_digests(honest_document());
    for (json& row : document_["results"]) {
      row["environment"]["commit"] = commit_;
      for (json& session : row["measured"]) session["commit"] = commit_;
    }
  }
  void run(const std::string& command) const {
    ASSERT_EQ(std::system(fmt::format("cd '{}' && {}", folder_.path().string(), command).c_str()), 0) << command;
  }
  Claims claims() const { return audit_commits(document_, folder_.path() / "results.json"); }

  ScratchFolder folder_;
  std::string commit_;
  json document_;
};

TEST_F(CommitsTest, AreInTheHistoryAndNoLaterThanTheirSessions) {
  EXPECT_EQ(lines(claims().wrong), "");
  EXPECT_EQ(lines(claims().remarks), "");
  document_["results"][0]["measured"][0]["began_at"] = "2026-11-19T10:00:00.000Z";
  EXPECT_EQ(lines(claims().wrong),
            fmt::format("small: session 1 names the commit {}, which was made after it began", commit_));
  document_["results"][0]["measured"][0]["began_at"] = "2026-11-20T10:00:00.000Z";
  document_["results"][0]["measured"][0]["commit"] = "a1b2c3d4";
  EXPECT_EQ(lines(claims().wrong), "");
  EXPECT_NE(lines(claims().remarks).find("does not hold (rebased since, or a shallow clone): a1b2c3d4 of 1 results"),
            std::string::npos);
  document_["results"][0]["measured"][0]["commit"] = "--output=x";
  EXPECT_EQ(lines(claims().wrong), "small: '--output=x' is no commit");
  document_["results"][0]["measured"][0]["commit"] = "";
  EXPECT_EQ(lines(claims().remarks), "1 of its results name no commit");
  document_["results"][0]["measured"][0]["commit"] = kUnknownCommit;
  EXPECT_EQ(lines(claims().remarks), "1 of its results name no commit");
  EXPECT_TRUE(claims().wrong.empty());
}

TEST_F(CommitsTest, AreNotLookedUpOutsideARepository) {
  const ScratchFolder elsewhere;
  EXPECT_EQ(lines(audit_commits(document_, elsewhere.path() / "results.json").remarks),
            "its commits are not looked up: no git repository is around it");
}

// The source gives again what the device is not needed for.
TEST(Recompute, RegistersAndBoundsComeOutAsTheRowSays) {
  DeviceInfo device;
  device.limits = limits_of_arch("sm_90");
  device.key = "no table";
  device.id = "cuda:0";
  const PlacedProblem problem = PlacedProblem::parse("b1_h8_s32_d64_fp16");
  const Artifact artifact =
      compile_candidate(parse_candidate("sm80_short_fwd", problem, device.limits), problem, device.limits);
  const json honest = {{"problem", problem.id()},
                       {"name", "small"},
                       {"device", device},
                       {"family", "sm80_short_fwd"},
                       {"config", ""},
                       {"source_hash", source_hash_of("sm80_short_fwd", problem, device.limits)},
                       {"launch_hash", launch_hash_of("sm80_short_fwd", problem, device.limits)},
                       {"code_hash", artifact.code_hash},
                       {"compiler", artifact.compiler},
                       {"registers", artifact.registers},
                       {"time_us", {{"p50", 2.0}}},
                       {"correct", {{"rel_error", 2.6e-4}, {"bound", 0.0006013490637141424}}}};
  const auto recomputed = [&](const char* path, const json& value) {
    json row = honest;
    if (*path) row[json::json_pointer(path)] = value;
    return recompute_rows(json::array({row}));
  };
  EXPECT_EQ(lines(recomputed("", {}).wrong) + lines(recomputed("", {}).remarks), "");
  EXPECT_EQ(lines(recomputed("/registers", artifact.registers - 1).wrong),
            fmt::format("small: its machine code has {} registers, and the row says {}", artifact.registers,
                        artifact.registers - 1));
  EXPECT_NE(lines(recomputed("/code_hash", "another").wrong).find("makes the machine code " + artifact.code_hash),
            std::string::npos);
  EXPECT_NE(lines(recomputed("/compiler", "NVRTC 12.1 (1 bytes)").remarks).find("it names the compiler 'NVRTC 12.1"),
            std::string::npos);
  EXPECT_NE(lines(recomputed("/correct/bound", 0.5).wrong).find("the highest that the reference gives"),
            std::string::npos);
  EXPECT_NE(lines(recomputed("/correct/bound", 0.0003).remarks).find("on none of its data now"), std::string::npos);
}

}  // namespace
}  // namespace flashcore
