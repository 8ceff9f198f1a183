// A file of the fuzzer, edited: what verify says of it.

#include "lab/verify/fuzz_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "core/error.h"
#include "lab/record/digest.h"
#include "lab/verify/fuzz_again.h"
#include "lab/verify/judged_file.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr std::uint64_t kSeed = 11;

// As a run would leave it: every case passed at half of its bound.
FuzzRun run_of(std::int64_t cases) {
  FuzzRun run;
  run.device.id = run.device.name = run.device.key = "cpu";
  run.seed = kSeed, run.asked = cases;
  const std::vector<const Family*> families = families_to_fuzz(run.device.limits, "");
  for (std::int64_t i = cases - 1; i >= 0; --i) {
    const auto index = static_cast<std::uint64_t>(i);
    Trial trial;
    trial.ended = Ended::kPassed;
    trial.error.emplace().rel = 1;
    trial.bound.emplace().rel = 2;
    trial.seconds = TrialSeconds{.device = 0.25, .host = 0.5};
    run.rows.push_back(fuzz_row(index, *random_case(kSeed, index, families, run.device.limits), trial));
  }
  const auto count = static_cast<double>(cases);
  run.sessions.push_back({"2026-11-30T04:00:00.000Z", cases, 2, {.device = count / 4, .host = count / 2}});
  return run;
}

json sealed(json document) {
  seal(document);
  return document;
}

TEST(FuzzFile, HoldsEveryCaseInOrderAndWhereTheTimeWent) {
  const json file = sealed(fuzz_json(run_of(40)));
  EXPECT_EQ(file.at("passed"), 40);
  EXPECT_EQ(file.at("failed"), 0);
  EXPECT_EQ(file.at("results").size(), 40u);
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(file.at("results")[i].at("index"), i);
  EXPECT_DOUBLE_EQ(file.at("seconds").at("trials").at("host").get<double>(), 20);
  const Verification v = verify_fuzz_file(file);
  EXPECT_TRUE(v.fresh) << v.reason;
  EXPECT_EQ(v.reason, "40 of 40 passed");
}

TEST(FuzzFile, AnEditShows) {
  struct Edit {
    std::function<void(json&)> edit;
    const char* says;
  };
  const std::vector<Edit> edits = {
      {[](json& f) { f["passed"] = 41; }, "it counts 41 passed, and its rows give 40"},
      {[](json& f) { f["results"][3]["ended"] = "incorrect"; }, "it counts 40 passed, and its rows give 39"},
      {[](json& f) { f["by_kind"]["paged"]["passed"] = 1000; }, "its counts by family and by kind"},
      {[](json& f) { f["results"].erase(5); }, "it counts 40 passed, and its rows give 39"},
      {[](json& f) { f["results"][4] = f["results"][5]; }, "case 5 is in it twice"},
      {[](json& f) { f["results"][7]["share_of_bound"] = 1.5; },
       "case 7: it passed, and its error is 1.5 of its bound"},
  };
  const json good = fuzz_json(run_of(40));
  for (const Edit& each : edits) {
    json file = good;
    each.edit(file);
    const Verification v = verify_fuzz_file(sealed(file));
    EXPECT_FALSE(v.fresh) << each.says;
    std::string all;
    for (const std::string& sentence : v.wrong) all += sentence + "\n";
    EXPECT_NE(all.find(each.says), std::string::npos) << each.says << ", not: " << all;
  }
}

TEST(FuzzFile, OtherCasesAndOtherKernelsAreStale) {
  json file = fuzz_json(run_of(10));
  file["results"][2]["data_seed"] = 1;
  const Verification other = verify_fuzz_file(sealed(file));
  ASSERT_EQ(other.stale.size(), 1u) << "a case that is drawn otherwise says nothing of kernels";
  EXPECT_EQ(other.stale[0].name, "case 2");
  file = fuzz_json(run_of(10));
  std::ranges::reverse(file["results"]);
  EXPECT_TRUE(verify_fuzz_file(sealed(file)).fresh);
  file["sources"].begin().value() = "0";
  EXPECT_NE(verify_fuzz_file(sealed(file)).reason.find("is compiled from, or how it is launched, has changed"),
            std::string::npos);
}

TEST(FuzzFile, CasesThatAreMissingAreSaid) {
  const auto reason = [](FuzzRun run) { return verify_fuzz_file(sealed(fuzz_json(run))).reason; };
  FuzzRun run = run_of(10);
  run.asked = 12;
  EXPECT_EQ(reason(run), "case 10 of 12 is not in it");
  run.not_drawn = 2;  // they can be drawn
  EXPECT_EQ(reason(run), "case 10 of 12 is not in it");
  run.asked = 10;
  EXPECT_NE(reason(run).find("it says that 2 cases could not be drawn, and those are 0"), std::string::npos);
  run.not_drawn = 0;
  std::erase_if(run.rows, [](const FuzzRow& row) { return row.index % 2 == 0; });
  EXPECT_EQ(reason(run), "case 0 of 10 is not in it");
  run.asked = 5;
  EXPECT_NE(reason(run).find("case 5: 5 were asked for"), std::string::npos) << reason(run);
}

TEST(FuzzFile, WhatTheMachineLackedIsNotPassed) {
  FuzzRun run = run_of(10);
  run.rows[0].ended = Ended::kEnvironment;
  run.rows[0].message = "no compiler";
  const Verification v = verify_fuzz_file(sealed(fuzz_json(run)));
  EXPECT_FALSE(v.fresh);
  EXPECT_NE(v.reason.find("case 9: the machine lacked something: no compiler"), std::string::npos) << v.reason;
}

TEST(FuzzFile, NumbersThatNoRunHasAreRefused) {
  for (const char* key : {"asked", "not_drawn", "seed"})
    for (const json& number : {json(0.5), json("ten"), json(1e300), json(-1)}) {
      if (key == std::string("not_drawn") && number == json(-1)) continue;  // fits, and is none of the cases
      json file = fuzz_json(run_of(3));
      file[key] = number;
      EXPECT_THROW(judge_by_schema(sealed(file), "copy.json", {{"flashcore.fuzz/1", verify_fuzz_file}}), Error)
          << key << " " << number;
    }
  json file = fuzz_json(run_of(3));
  file["not_drawn"] = -1;
  EXPECT_FALSE(verify_fuzz_file(sealed(file)).wrong.empty());
}

// A run that was asked for, before it has tried anything.
FuzzRun asked_for(std::int64_t cases) {
  FuzzRun run = run_of(cases);
  run.rows.clear(), run.sessions.clear();
  return run;
}

TEST(FuzzAgain, KeepsWhatPassedAndHasNotChanged) {
  FuzzRun earlier = run_of(10);
  earlier.rows[6].ended = Ended::kIncorrect;  // case 3
  json file = fuzz_json(earlier);
  file["results"][5]["data_seed"] = 1;  // drawn otherwise
  FuzzRun run = asked_for(8);
  keep_what_has_not_changed(sealed(file), "file", run);
  std::vector<std::uint64_t> kept;
  for (const FuzzRow& row : run.rows) kept.push_back(row.index);
  EXPECT_EQ(kept, (std::vector<std::uint64_t>{0, 1, 2, 4, 6, 7}));
  ASSERT_EQ(run.sessions.size(), 1u);
  EXPECT_EQ(run.sessions[0].cases, 10);
  // All cases of a family whose kernels have changed.
  file = fuzz_json(run_of(10));
  const std::string changed = file["sources"].begin().key();
  file["sources"].begin().value() = "0";
  run = asked_for(10);
  keep_what_has_not_changed(sealed(file), "file", run);
  EXPECT_LT(run.rows.size(), 10u);
  for (const FuzzRow& row : run.rows) EXPECT_NE(row.drawn.candidate.family->name(), changed);
}

TEST(FuzzAgain, ItsFileIsOfAllSessions) {
  FuzzRun run = asked_for(12);
  keep_what_has_not_changed(sealed(fuzz_json(run_of(10))), "file", run);
  const std::vector<FuzzRow> all = run_of(12).rows;
  std::ranges::copy_if(all, std::back_inserter(run.rows), [](const FuzzRow& row) { return row.index >= 10; });
  run.sessions.push_back({"2026-11-30T05:00:00.000Z", 2, 1, {.device = 1, .host = 1}});
  json file = fuzz_json(run);
  EXPECT_EQ(file.at("measured_at"), "2026-11-30T05:00:00.000Z");
  EXPECT_DOUBLE_EQ(file.at("seconds").at("wall").get<double>(), 3);
  const Verification v = verify_fuzz_file(sealed(file));
  EXPECT_TRUE(v.fresh) << v.reason;
  file["sessions"].erase(0);
  EXPECT_NE(verify_fuzz_file(sealed(file)).reason.find("its sessions tried 2 cases, and it has 12"), std::string::npos);
  file["sessions"] = json::array();
  EXPECT_FALSE(verify_fuzz_file(sealed(file)).fresh);
}

// Why the file of a run is not taken over after an edit; "": it is.
std::string why(const std::function<void(json&)>& edit, bool seal_it = true) {
  json file = sealed(fuzz_json(run_of(4)));
  edit(file);
  FuzzRun run = asked_for(4);
  try {
    keep_what_has_not_changed(seal_it ? sealed(file) : file, "f.json", run);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(FuzzAgain, RefusesWhatVerifyCallsWrong) {
  const json session = {{"measured_at", "2026-11-30T04:00:00.000Z"},
                        {"cases", 4},
                        {"seconds", {{"wall", 2}, {"trials", {{"device", 1}, {"host", 2}}}}}};
  json less = session, more = session;
  less["cases"] = -5, more["cases"] = 9;
  struct Edit {
    std::function<void(json&)> edit;
    const char* says;
  };
  const std::vector<Edit> edits = {
      {[](json& f) { f["results"][1]["share_of_bound"] = 5.0; },
       "'f.json' does not hold together: case 1: it passed, and its error is 5.0 of its bound. Give a file as check "
       "--fuzz --json wrote it, or leave --again out"},
      {[](json& f) { f["results"][1]["share_of_bound"] = -1; }, "case 1: it passed, and its error is -1 of its bound"},
      {[](json& f) { f["results"][1]["share_of_bound"] = 1e308; },
       "case 1: it passed, and its error is 1e+308 of its bound"},
      {[](json& f) { f["results"][1].erase("share_of_bound"); }, "its error is null of its bound"},
      {[](json& f) { f["sessions"] = json::object(); }, "\"sessions\" is {}, and no list"},
      {[&](json& f) {
         f["sessions"] = {{"a", session}};
       },
       "\"sessions\" is {\"a\""},
      {[](json& f) { f["sessions"] = json::array(); }, "its last session is not of the time"},
      {[](json& f) {
         f["sessions"] = json::array({{{"cases", -5}}});
       },
       "'f.json' cannot be read as"},
      {[&](json& f) {
         f["sessions"] = json::array({more, less});
       },
       "a session of it tried -5 cases"},
      {[](json& f) { f["results"][2]["problem"] = "b1_x9"; }, "'f.json' cannot be read as"},
      {[](json& f) { f["results"][2]["ended"] = "triumphant"; }, "'f.json' cannot be read as"},
      {[](json& f) { f["results"] = json::array(); }, "'f.json' cannot be read as"},
      {[](json& f) { f["device"] = json::object(); }, "'f.json' cannot be read as"},
      {[](json& f) { f.erase("device"); }, "'f.json' cannot be read as"},
      {[](json& f) { f["device"].erase("id"); }, "'f.json' cannot be read as"},
      {[](json& f) { f["passed"] = 3; }, "it counts 3 passed, and its rows give 4"},
  };
  for (const Edit& each : edits) {
    const std::string said = why(each.edit);
    EXPECT_NE(said.find(each.says), std::string::npos) << each.says << ", not: " << said;
    EXPECT_EQ(said.rfind("'f.json'", 0), 0u) << said;
  }
}

TEST(FuzzAgain, RefusesAnotherRunsFile) {
  EXPECT_EQ(why([](json&) {}), "");
  EXPECT_NE(why([](json& f) { f["seed"] = 12; }).find("another seed (12, and this run has 11)"), std::string::npos);
  EXPECT_NE(why([](json& f) { f["family"] = "cpu_fwd"; }).find("family (cpu_fwd, and this run has none)"),
            std::string::npos);
  EXPECT_NE(why([](json& f) { f["kinds"] = {"paged"}; }).find("choice of kinds"), std::string::npos);
  EXPECT_NE(why([](json& f) { f["device"]["name"] = "another"; }).find("another device (\"another\", and this run has"),
            std::string::npos);
  EXPECT_NE(why([](json& f) {
              f["device"]["limits"]["multiprocessors"] = 9;
            }).find("other limits: threads (FLASHCORE_THREADS) 9, and this run has 1. Give"),
            std::string::npos);
  EXPECT_NE(why([](json& f) {
              f["device"]["limits"]["l2_bytes"] = 5;
              f["device"]["limits"].erase("arch");
            }).find("other limits: arch none, and this run has 0; l2_bytes 5, and this run has 0. Give the file"),
            std::string::npos);
  EXPECT_NE(why([](json& f) { f["device"]["limits"]["wings"] = 2; }).find("wings 2, of which this run knows nothing"),
            std::string::npos);
  EXPECT_NE(why([](json& f) { f["passed"] = 3; }, false).find("not what the program wrote"), std::string::npos);
  EXPECT_NE(why([](json& f) { f.erase("kinds"); }).find("cannot be read"), std::string::npos);
  EXPECT_NE(why([](json& f) { f["schema"] = "flashcore.bench/1"; }).find("no file of check --fuzz"), std::string::npos);
}

}  // namespace
}  // namespace flashcore
