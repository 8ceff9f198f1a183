// Copies of files under results/, edited: what verify says of each.

#include "lab/verify/judged_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "core/error.h"
#include "core/files.h"
#include "kernels/source_hash.h"
#include "lab/compare/aa.h"
#include "lab/diagnose/diagnosis_files.h"
#include "lab/record/digest.h"
#include "lab/verify/needles.h"

namespace flashcore {
namespace {

using nlohmann::json;

FileJudges all_judges() {
  FileJudges judges = check_file_judges();
  judges.merge(diagnosis_file_judges());
  return judges;
}

json read(const std::string& file) { return json::parse(read_file(FLASHCORE_SOURCE_DIR "/results/" + file)); }
Verification judge(const json& document) { return judge_by_schema(document, "copy.json", all_judges()); }
std::string all_of(const Verification& v) {
  std::string text = v.incomplete;
  for (const std::string& sentence : v.wrong) text += "\n" + sentence;
  return text;
}

struct Edit {
  const char* file;
  std::function<void(json&)> edit;
  const char* says;
};

void expect_wrong(const std::vector<Edit>& edits) {
  for (const Edit& each : edits) {
    json document = read(each.file);
    ASSERT_EQ(judge(document).wrong, std::vector<std::string>()) << each.file << " as it is";
    each.edit(document);
    const Verification v = judge(document);
    EXPECT_FALSE(v.fresh) << each.file << ": " << each.says;
    EXPECT_NE(all_of(v).find(each.says), std::string::npos) << each.file << ": " << each.says << ", not: " << all_of(v);
  }
}

// Of whatever day: nothing in them contradicts, and they are judged.
TEST(JudgedFile, TheFilesUnderResultsHoldTogether) {
  std::size_t judged = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(FLASHCORE_SOURCE_DIR "/results")) {
    if (entry.path().extension() != ".json") continue;
    const json document = json::parse(read_file(entry.path()));
    if (!document.is_object() || !all_judges().contains(document.value("schema", std::string()))) continue;
    ++judged;
    EXPECT_EQ(judge(document).wrong, std::vector<std::string>()) << entry.path();
  }
  EXPECT_GE(judged, 9u);
}

std::string refusal(const json& document) {
  try {
    judge(document);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kBadInput);
    return e.what();
  }
  return "";
}

TEST(JudgedFile, WhatNobodyKnowsIsAnErrorThatListsWhatIsJudged) {
  for (const json& document : {json{{"schema", "flashcore.zebra/1"}}, json{{"schema", "zebra"}}, json{{"how", "well"}},
                               json::object(), json::array()}) {
    const std::string message = refusal(document);
    EXPECT_NE(message.find("verify cannot judge: it judges flashcore.bench/1"), std::string::npos) << message;
    EXPECT_NE(message.find("flashcore.timeline/1"), std::string::npos) << message;
  }
}

TEST(JudgedFile, OfWhatNobodyJudgesItSaysWhatMakesIt) {
  const std::pair<const char*, const char*> all[] = {
      {"flashcore.decode_sweep/1", "`python -m flashcore.decode_sweep --json FILE` makes such a file anew"},
      {"flashcore.cache_error/1", "`python -m flashcore.cache_error --json FILE`"},
      {"flashcore.doctor/1", "`flashcore doctor --json FILE`"},
      {"flashcore.landscape/1", "`flashcore tune --record FILE`"},
  };
  for (const auto& [schema, words] : all) {
    const std::string message = refusal({{"schema", schema}});
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_EQ(message.find("it judges"), std::string::npos) << message;
  }
  EXPECT_NE(refusal({{"schema", "flashcore.survey/1"}, {"how", {{"copies", "by hand"}}}}).find("its \"how\" says"),
            std::string::npos);
  // Every kind of file under results.
  std::size_t told = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(FLASHCORE_SOURCE_DIR "/results")) {
    if (entry.path().extension() != ".json") continue;
    const json document = json::parse(read_file(entry.path()));
    const std::string schema = document.is_object() ? document.value("schema", std::string()) : "";
    if (schema.empty() || schema == kBenchSchema || schema == kAaSelfTestSchema || all_judges().contains(schema))
      continue;
    ++told;
    const std::string message = refusal(document);
    EXPECT_TRUE(message.find("makes such a file") != std::string::npos || message.find("\"how\"") != std::string::npos)
        << entry.path() << message;
  }
  EXPECT_GE(told, 20u);
}

TEST(JudgedFile, WhatCannotBeReadIsAnError) {
  for (const auto& [schema, judge_one] : all_judges()) {
    EXPECT_THROW(judge({{"schema", schema}}), Error) << schema;
    EXPECT_THROW(judge({{"schema", schema}, {"results", json::array()}}), Error) << schema;
    EXPECT_THROW(judge({{"schema", schema}, {"results", {1}}}), Error) << schema;
    EXPECT_THROW(judge({{"schema", schema}, {"results", {json::object()}}}), Error) << schema;
  }
}

TEST(JudgedFile, ADigestIsOfTheWholeText) {
  json document = read("h100/planted.json");
  seal(document);
  EXPECT_TRUE(judge(document).wrong.empty());
  document["results"][0]["what"] = "another reason";
  EXPECT_NE(all_of(judge(document)).find("digest"), std::string::npos);
}

TEST(JudgedFile, AnInterruptedRunIsIncomplete) {
  for (const char* file : {"h100/planted.json", "h200/needles.json", "h100/planted_slow.json"}) {
    json document = read(file);
    document["interrupted"] = true;
    const Verification v = judge(document);
    EXPECT_NE(v.incomplete.find("interrupted"), std::string::npos) << file;
    EXPECT_FALSE(v.fresh) << file;
  }
}

TEST(JudgedFile, PlantedFaults) {
  expect_wrong({
      {"h100/planted.json", [](json& d) { d["results"][3]["caught"] = false; }, "of its rows"},
      {"h100/planted.json", [](json& d) { d["results"].erase(5); }, "it counts 129 caught, and its rows give 128"},
      {"h100/planted.json", [](json& d) { d["results"][1] = d["results"][0]; }, "two of its rows have the name"},
      {"h100/planted.json", [](json& d) { d["results"][0]["what"] = ""; }, "no gate says why"},
      {"h100/planted.json", [](json& d) { d["not_here"].push_back(d["results"][0]["name"]); },
       "it shows elsewhere only"},
  });
  json present = read("h100/planted.json");
  present["source_hash"] = source_hash();
  json older = present;
  older["source_hash"] = "0123456789abcdef";
  EXPECT_GT(judge(older).stale.size(), judge(present).stale.size());
  older.erase("source_hash");
  EXPECT_EQ(judge(older).unknown.size(), 1u);
  json named = present;
  named["results"][0]["gate"] = "performance";
  EXPECT_GT(judge(named).stale.size(), judge(present).stale.size()) << "another gate than the corpus names";
}

TEST(JudgedFile, Needles) {
  const auto first = [](json& d) -> json& { return d["results"][0]["candidates"][0]; };
  expect_wrong({
      {"h200/needles.json", [&](json& d) { first(d)["needles"]["found"] = 100; }, "by weight"},
      {"h200/needles.json", [&](json& d) { first(d)["lost"] = 3; }, "by its counts"},
      {"h200/needles.json", [&](json& d) { first(d)["drift"]["o_rms"] = 0.5; },
       "drifts beyond its limit, and says otherwise"},
      {"h200/needles.json", [&](json& d) { first(d)["verdict"] = "loses 9 needles"; }, "its figures give 'passes'"},
      {"h200/needles.json", [](json& d) { d["results"].push_back(d["results"][0]); }, "is in it twice"},
      {"h200/needles.json", [](json& d) { d["results"][1]["problem"] = "b1_h1_s8_d8_e4m3"; }, "its problem is"},
      {"h200/needles.json", [](json& d) { d["allowed_loss"] = 0.5; }, "allows a loss"},
      {"h200/needles.json", [](json& d) { d["results"][0]["candidates"] = json::array(); }, "no candidate"},
  });
}

TEST(JudgedFile, AConditionThatIsKnownNoMoreIsNamed) {
  expect_wrong({
      {"h200/invert_d64.json", [](json& d) { d["results"][0]["condition"] = "idle_gap"; },
       "'idle_gap' is not a power condition"},
      {"h100/fp8_few_tiles/tune_b1_h8_s512_d64_e4m3.json",
       [](json& d) { d["results"][0]["winner"]["timing"]["condition"] = "capped"; },
       "'capped' is not a power condition"},
  });
}

// Of the present source it is known which candidates there are.
TEST(JudgedFile, ACandidateThatIsTakenOutOfNeedlesIsMissed) {
  json document = read("h200/needles.json");
  const auto device = document["device"].get<DeviceInfo>();
  NeedleRun run;
  run.problem = {needle_problem(131072, 64, DType::kE4M3), Layout::kBhsd};
  run.needles = 112;
  run.bf16_found = {112, std::vector<int>(7, 16), {7, 14, 7, 56, 28}};
  for (const NeedleCandidate& each : needle_candidates("", run.problem, device, run.why_none)) {
    NeedleVerdict verdict;
    verdict.found = run.bf16_found;
    verdict.finds = verdict.stays = true;
    run.results.push_back({each, verdict});
  }
  ASSERT_GT(run.results.size(), 2u);
  NeedleOptions options;
  options.seqlens_kv = {131072};
  options.head_dims = {64};
  const auto judged = [&](const std::function<void(json&)>& edit) {
    json written = needles_json({run}, options, device);
    edit(written);
    seal(written);
    return judge(written);
  };
  const Verification as_it_is = judged([](json&) {});
  EXPECT_TRUE(as_it_is.fresh) << as_it_is.reason;
  EXPECT_FALSE(as_it_is.did_not_pass);
  EXPECT_NE(all_of(judged([](json& d) { d["results"][0]["candidates"].erase(1); })).find("is not in it"),
            std::string::npos);
  EXPECT_NE(all_of(judged([](json& d) { d["results"][0]["candidates"][0]["gated"] = false; })).find("is gated"),
            std::string::npos);
  EXPECT_NE(all_of(judged([](json& d) { d["head_dims"].push_back(128); })).find("head_dim of 128"), std::string::npos);
  const Verification other =
      judged([](json& d) { d["results"][0]["candidates"][0]["candidate_hash"]["source"] = "0"; });
  EXPECT_EQ(other.stale.size(), 1u) << "the row of that kernel and no other";
}

TEST(JudgedFile, Crosschecks) {
  const char* file = "h100/crosscheck_b8_h16_s2048_d128_bf16_causal.json";
  const auto method = [](json& d, std::size_t i) -> json& { return d["results"][0]["methods"][i]; };
  expect_wrong({
      {file, [&](json& d) { method(d, 3)["ratio"]["estimate"] = 1.0; }, "the ratio is 1"},
      {file, [&](json& d) { method(d, 3)["ratio"]["ci95"][0] = 0.999; }, "the ratio's lower end"},
      {file, [&](json& d) { method(d, 3)["agreement"] = "disagrees"; }, "its samples give 'agrees'"},
      {file, [&](json& d) { method(d, 0)["agreement"] = "agrees"; }, "is told as 'agrees'"},
      {file, [&](json& d) { method(d, 3)["time_us"]["p50"] = 1.0; }, "p50 of PyTorch's profiler"},
      {file, [](json& d) { d["results"][0]["engine"]["warm_us"]["samples"][0] = 1.0; }, "the ratio is"},
      {file, [](json& d) { d["results"][0]["verdict"] = "agrees"; }, "its verdict is 'agrees'"},
      {file, [&](json& d) { d["results"][0]["methods"].erase(0); }, "its ways to time give 'agrees'"},
      {file, [](json& d) { d["results"].push_back(d["results"][0]); }, "two of its rows have the problem"},
      {file, [](json& d) { d["results"][0]["ceilings"][0]["tflops"] = 2000.0; }, "its rate gives 'disagrees'"},
  });
}

TEST(JudgedFile, Inversions) {
  const char* file = "h200/invert_d128.json";
  const auto ranked = [](json& d, std::size_t i) -> json& { return d["results"][0]["ranking"][i]; };
  expect_wrong({
      {file, [&](json& d) { ranked(d, 0)["time_ratio"] = 1.5; },
       "which its interval of 2.2674 to 2.29251 does not hold"},
      {file, [&](json& d) { ranked(d, 0)["verdict"] = "SAME"; }, "and its interval gives SLOWER"},
      {file, [&](json& d) { std::swap(ranked(d, 0), ranked(d, 1)); }, "has the larger effect"},
      {file, [&](json& d) { d["results"][0]["answer"] = "nothing would help"; },
       "its answer is not what its ranking gives"},
      {file, [&](json& d) { d["results"][0]["ranking"].erase(3); }, "taken out, or not asked for"},
      {file, [&](json& d) { ranked(d, 0)["sentence"] = "it is fine"; }, "its sentence says otherwise"},
      {file, [&](json& d) { d["results"][0]["not_judged"].push_back(ranked(d, 0)); }, "is in it twice"},
      {file, [](json& d) { d["results"][0]["stopped"] = true; }, "stopped before"},
  });
}

TEST(JudgedFile, TuneRuns) {
  const char* file = "h100/fp8_few_tiles/tune_b1_h8_s512_d64_e4m3.json";
  const auto winner = [](json& d) -> json& { return d["results"][0]["winner"]; };
  expect_wrong({
      {file, [&](json& d) { winner(d)["comparison"]["speedup"] = 2.5; }, "does not hold"},
      {file, [&](json& d) { winner(d)["comparison"]["verdict"] = "SAME"; }, "its interval gives FASTER"},
      {file, [&](json& d) { winner(d)["timing"]["p50_us"] = 1.0; }, "p50_us of its winner"},
      {file, [&](json& d) { winner(d)["ended"] = "incorrect"; }, "only a held-out one that passed wins"},
      {file, [&](json& d) { winner(d)["phase"] = "search"; }, "only a held-out one that passed wins"},
      {file, [](json& d) { d["results"][0]["funnel"]["correct"] = 1000; }, "correct of"},
      {file, [](json& d) { d["results"][0]["arms"][0]["heldout"] = 3.0; }, "does not hold"},
      {file, [](json& d) { d["problems"] = 2; }, "2 problems were to be tuned"},
  });
  json document = read(file);
  winner(document)["launch_hash"] = "0", winner(document)["source_hash"] = "0";
  EXPECT_EQ(judge(document).stale.size(), 1u);
  winner(document)["timing"]["samples_us"].erase(0);
  EXPECT_THROW(judge(document), Error);
}

TEST(JudgedFile, PlantedSlowKernels) {
  const char* file = "h100/planted_slow.json";
  expect_wrong({
      {file, [](json& d) { d["results"][0]["named"] = false; }, "it counts 5 named, and its rows give 4"},
      {file, [](json& d) { d["results"].erase(1); }, "it counts 5 named, and its rows give 4"},
      {file,
       [](json& d) {
         d["results"][0]["planted"] = "spills";
         d["results"][0]["bottlenecks"][0]["name"] = "L2";
       },
       "comes first"},
      {file,
       [](json& d) {
         json& bottlenecks = d["results"][0]["bottlenecks"];
         bottlenecks[1]["kind"] = bottlenecks[0]["kind"], bottlenecks[1]["share"] = 1.0;
       },
       "which comes before it"},
      {file, [](json& d) { d["missed"] = 1; }, "it counts 1 missed"},
  });
}

TEST(JudgedFile, Timelines) {
  const char* file = "h200/timeline_d128_2k_causal.json";
  expect_wrong({
      {file, [](json& d) { d["results"][0]["sums"][0]["share"] = 0.9; }, "the share is 0.9"},
      {file, [](json& d) { d["results"][0]["sums"].erase(0); }, "the share is"},
      {file, [](json& d) { d["results"][0]["distortion"]["slowdown"] = 0.01; }, "does not hold"},
      {file, [](json& d) { d["results"][0]["distortion"]["sentence"] = "they cost nothing"; }, "their times give"},
      {file, [](json& d) { d["results"][0]["recorded_ctas"] = 1000; }, "CTAs were recorded"},
      {file, [](json& d) { d["results"][0]["multiplying_share"] = 1.5; }, "a share of 1.5"},
      {file, [](json& d) { d["results"][0]["dropped"] = 7; }, "found no place"},
  });
}

TEST(JudgedFile, ConformanceRecordings) {
  json document = read("h200/conformance.json");
  EXPECT_TRUE(judge(document).stale.empty());
  const std::string first = document["outputs"].begin().key();
  json edited = document;
  edited["outputs"][first]["words"] = document["outputs"][std::next(document["outputs"].begin()).key()]["words"];
  EXPECT_NE(all_of(judge(edited)).find("others than those of the recording"), std::string::npos);
  edited = document;
  edited["outputs"].erase(first);
  EXPECT_EQ(judge(edited).stale.size(), 1u);
  edited = document;
  edited["outputs"][first]["hash"] = "0";
  EXPECT_EQ(judge(edited).stale.size(), 1u);
  edited = document;
  edited["failures"][first] = "a crash";
  EXPECT_NE(all_of(judge(edited)).find("a crash"), std::string::npos);
}

}  // namespace
}  // namespace flashcore
