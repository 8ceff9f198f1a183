// A file of `check --neighbours`, edited: what verify says of it.

#include "lab/verify/neighbours_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "core/error.h"
#include "lab/record/digest.h"
#include "lab/verify/judged_file.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr std::uint64_t kSeed = 11;

// As a run would leave it: all bits equal.
NeighbourRun run_of(std::int64_t asked) {
  NeighbourRun run;
  run.device = open_device("cpu")->info();
  run.seed = kSeed, run.asked = asked, run.wall_seconds = 2;
  for (std::int64_t i = 0; i < neighbour_cases(asked); ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    const int neighbourhoods = neighbourhoods_of_case(i, asked);
    run.rows.push_back({index, *random_neighbours(kSeed, index, neighbourhoods, run.device), {neighbourhoods, {}, ""}});
  }
  return run;
}

json sealed(json document) {
  seal(document);
  return document;
}

std::string wrong_of(const json& file) {
  std::string all;
  for (const std::string& sentence : verify_neighbours_file(sealed(file)).wrong) all += sentence + "\n";
  return all;
}

TEST(NeighboursFile, HoldsEverySequenceWithEveryBatch) {
  const json file = sealed(neighbours_json(run_of(34)));
  EXPECT_EQ(file.at("passed"), 34);
  EXPECT_EQ(file.at("failed"), 0);
  EXPECT_EQ(file.at("by_family").at("cpu_fwd").at("passed"), 34);
  ASSERT_EQ(file.at("results").size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(file.at("results")[i].at("index"), i);
    EXPECT_EQ(file.at("results")[i].at("batches").size(), i < 3 ? 10u : 4u);
  }
  const Verification v = verify_neighbours_file(file);
  EXPECT_TRUE(v.fresh) << v.reason;
  EXPECT_FALSE(v.did_not_pass);
  EXPECT_EQ(v.reason, "equal bits in 34 of 34 neighbourhoods");
}

TEST(NeighboursFile, OtherBitsAreFreshAndDidNotPass) {
  NeighbourRun run = run_of(20);
  run.rows[1].verdict.different[3] = "o of head 0, row 0, column 0 is 1 and 2 alone";
  const json file = sealed(neighbours_json(run));
  EXPECT_EQ(file.at("failed"), 1);
  const Verification v = verify_neighbours_file(file);
  EXPECT_TRUE(v.fresh) << v.reason;
  EXPECT_TRUE(v.did_not_pass);
  EXPECT_EQ(v.reason, "equal bits in 19 of 20 neighbourhoods");
}

TEST(NeighboursFile, AnEditShows) {
  struct Edit {
    std::function<void(json&)> edit;
    const char* says;
  };
  const std::vector<Edit> edits = {
      {[](json& f) { f["passed"] = 41; }, "it counts 41 passed, and its rows give 40"},
      {[](json& f) { f["by_family"]["cpu_fwd"]["failed"] = 2; }, "its counts by family"},
      {[](json& f) { f["results"].erase(1); }, "it counts 40 passed, and its rows give 30"},
      {[](json& f) { f["results"][1] = f["results"][2]; }, "case 2 is in it twice"},
      {[](json& f) { f["results"][3]["index"] = 4; }, "case 4: 4 were asked for"},
      {[](json& f) { f["results"][0]["compared"] = 9; }, "case 0: it compared 9 of 10 batches"},
      {[](json& f) {
         f["results"][0]["different"] = {{{"batch", 11}, {"why", "bits"}}};
       },
       "case 0: it names batch 11 as different, of 10"},
      {[](json& f) { f["seconds"]["wall"] = -1; }, "it took -1 seconds"},
      {[](json& f) { f["device"]["id"] = "emulator"; }, "its device is 'emulator'"},
  };
  const json good = neighbours_json(run_of(40));
  ASSERT_EQ(wrong_of(good), "");
  for (const Edit& each : edits) {
    json file = good;
    each.edit(file);
    EXPECT_NE(wrong_of(file).find(each.says), std::string::npos) << each.says << ", not: " << wrong_of(file);
  }
}

TEST(NeighboursFile, OtherBatchesAndOtherKernelsAreStale) {
  const std::vector<std::function<void(json&)>> others = {
      [](json& row) { row["data_seed"] = 1; }, [](json& row) { row["candidate"] = "cpu_fwd:block_m=1"; },
      [](json& row) { row["batches"][4]["sequences"][0][1] = 1234567; }, [](json& row) { row["keys"] = 1234567; }};
  for (const auto& edit : others) {
    json file = neighbours_json(run_of(40));
    edit(file["results"][2]);
    const Verification v = verify_neighbours_file(sealed(file));
    ASSERT_EQ(v.stale.size(), 1u) << "batches that are drawn otherwise say nothing of kernels";
    EXPECT_EQ(v.stale[0].name, "case 2");
  }
  json file = neighbours_json(run_of(40));
  std::ranges::reverse(file["results"]);
  EXPECT_TRUE(verify_neighbours_file(sealed(file)).fresh);
  file["sources"].begin().value() = "0";
  EXPECT_NE(verify_neighbours_file(sealed(file)).reason.find("is compiled from, or how it is launched, has changed"),
            std::string::npos);
}

TEST(NeighboursFile, CasesThatAreMissingAreSaid) {
  const auto reason = [](const NeighbourRun& run) {
    return verify_neighbours_file(sealed(neighbours_json(run))).reason;
  };
  NeighbourRun run = run_of(30);
  run.asked = 50;
  EXPECT_EQ(reason(run), "case 3 of 5 is not in it");
  run.not_drawn = 20;  // they can be drawn
  EXPECT_EQ(reason(run), "case 3 of 5 is not in it");
  run.asked = 30;
  EXPECT_NE(reason(run).find("it says that 20 neighbourhoods could not be drawn, and those are 0"), std::string::npos);
  run.not_drawn = 0;
  run.rows.erase(run.rows.begin());
  EXPECT_EQ(reason(run), "case 0 of 3 is not in it");
}

TEST(NeighboursFile, WhatNothingPromisesIsNotDrawn) {
  NeighbourRun run = run_of(10);
  run.candidate = "sm90_fwd";  // no family of a CPU
  run.not_drawn = 10;
  run.rows.clear();
  json file = neighbours_json(run);
  EXPECT_THROW(judge_by_schema(sealed(file), "copy.json", check_file_judges()), Error) << "it holds no row";
}

TEST(NeighboursFile, WhatTheMachineLackedIsNotPassed) {
  NeighbourRun run = run_of(10);
  run.rows[0].verdict.lacking = "no compiler";
  run.rows[0].verdict.compared = 4;
  const Verification v = verify_neighbours_file(sealed(neighbours_json(run)));
  EXPECT_FALSE(v.fresh);
  EXPECT_NE(v.reason.find("case 0: the machine lacked something: no compiler"), std::string::npos) << v.reason;
}

TEST(NeighboursFile, NumbersThatNoRunHasAreRefused) {
  for (const char* key : {"asked", "not_drawn", "seed"})
    for (const json& number : {json(0.5), json("ten"), json(1e300)}) {
      json file = neighbours_json(run_of(3));
      file[key] = number;
      EXPECT_THROW(judge_by_schema(sealed(file), "copy.json", check_file_judges()), Error) << key << " " << number;
    }
}

}  // namespace
}  // namespace flashcore
