// What a campaign makes of its commands' documents: criteria, rankings, findings.

#include "lab/campaign/criteria.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/family.h"
#include "lab/campaign/ranking.h"
#include "lab/campaign/summary.h"
#include "lab/campaign_fixture.h"
#include "lab/diagnose/metrics.h"
#include "lab/diagnose/profile.h"
#include "lab/invert/sensitivity.h"

namespace flashcore {
namespace {

using nlohmann::json;
using test::CampaignTest;

json peer_row(const std::string& name, double speedup, double low, double high, double ours_p90 = 10,
              double peer_p90 = 12) {
  return {
      {"problem", name},
      {"name", name},
      {"time_us", {{"p50", 9}, {"p90", ours_p90}}},
      {"peers",
       {{{"name", "flash"}, {"speedup", speedup}, {"ci95", {low, high}}, {"time_us", {{"p50", 11}, {"p90", peer_p90}}}},
        {{"name", "flex"}, {"speedup", 0.5}, {"ci95", {0.4, 0.6}}, {"time_us", {{"p50", 5}, {"p90", 5}}}}}}};
}

class Criteria : public CampaignTest {
 protected:
  std::vector<Criterion> judge(const json& rows, const json& profile = nullptr, const json& winner = nullptr) {
    answer_ = [=](const auto& argv) {
      if (verb_of(argv) == "flashcore.peers") write_json(argv, {{"results", rows}});
      if (verb_of(argv) == "profile" && !profile.is_null()) write_json(argv, profile);
      if (verb_of(argv) == "tune" && !winner.is_null())
        write_json(argv, {{"results", {{{"name", "x"}, {"winner", winner}}}}});
      return CommandEnd{.exit_code = 0};
    };
    return go().criteria;
  }
};

TEST_F(Criteria, ThreeProblemsAheadMeetTheSpeedUps) {
  const auto c = judge({peer_row("a", 1.3, 1.2, 1.4), peer_row("b", 1.2, 1.12, 1.3), peer_row("c", 1.08, 1.06, 1.09)});
  EXPECT_EQ(c[0].verdict, CriterionVerdict::kMet) << c[0].evidence;
  EXPECT_EQ(c[1].verdict, CriterionVerdict::kMet) << c[1].evidence;
  EXPECT_EQ(c[2].verdict, CriterionVerdict::kMet) << c[2].evidence;
}

TEST_F(Criteria, AnIntervalThatStraddlesJudgesNothingAndOneBelowFails) {
  const auto open =
      judge({peer_row("a", 1.3, 1.2, 1.4), peer_row("b", 1.12, 1.05, 1.2), peer_row("c", 1.0, 0.98, 1.02)});
  EXPECT_EQ(open[0].verdict, CriterionVerdict::kNotJudged);
  EXPECT_EQ(open[1].verdict, CriterionVerdict::kNotMet);  // the third is slow
  again();
  EXPECT_EQ(judge({peer_row("a", 1.3, 1.2, 1.4), peer_row("b", 1.0, 0.98, 1.02)})[0].verdict,
            CriterionVerdict::kNotMet);
}

// A campaign on one problem cannot be 10% ahead on two, however fast it is.
TEST_F(Criteria, FewerProblemsThanACriterionNeedsJudgeNothing) {
  const auto one = judge(json::array({peer_row("a", 1.3, 1.2, 1.4)}));
  EXPECT_EQ(one[0].verdict, CriterionVerdict::kNotJudged);
  EXPECT_EQ(one[0].evidence, "the campaign has 1 of the 2 problems that it needs");
  EXPECT_EQ(one[1].verdict, CriterionVerdict::kNotJudged);
  EXPECT_EQ(one[1].evidence, "the campaign has 1 of the 3 problems that it needs");
}

json with_busy(json row, double others) {
  row["measured"] = json::array({{{"others_busy", 0.0}, {"cores", 2}}, {{"others_busy", others}, {"cores", 2}}});
  return row;
}

// A peer that waited for a core looks slow: 249 times "faster" was noise.
TEST_F(Criteria, TimesOfABusyCpuMeetNothing) {
  const auto rows = [](double others) {
    return json{with_busy(peer_row("a", 249, 240, 260), others), with_busy(peer_row("b", 1.3, 1.2, 1.4), others),
                with_busy(peer_row("c", 0.5, 0.4, 0.6), others)};
  };
  const auto busy = judge(rows(1.62));
  for (const std::size_t i : {0u, 1u, 2u}) {
    EXPECT_EQ(busy[i].verdict, CriterionVerdict::kNotJudged) << busy[i].evidence;
    EXPECT_NE(busy[i].evidence.find("a: other programs kept 1.6 of 2 cores busy"), std::string::npos)
        << busy[i].evidence;
  }
  const std::string summary = read_file(options_.folder / "summary.md");
  const std::size_t at = summary.find("**The machine was busy.**");
  EXPECT_LT(summary.find("## Results"), at) << summary;
  EXPECT_LT(at, summary.find("## Success criteria")) << summary;
  again();
  EXPECT_EQ(judge(rows(0.1))[0].verdict, CriterionVerdict::kMet);
  EXPECT_EQ(read_file(options_.folder / "summary.md").find("The machine was busy"), std::string::npos);
  again();
  options_.device.id = "cuda:0";  // a GPU's clock does not see its host's programs
  EXPECT_EQ(judge(rows(1.62))[0].verdict, CriterionVerdict::kMet);
}

TEST_F(Criteria, TimesThatAreTooWideMeetNothing) {
  const json sound = peer_row("a", 1.3, 1.2, 1.4);
  const auto verdict_beside = [&](const json& other) {
    again();
    return judge({sound, other})[0];
  };
  EXPECT_EQ(verdict_beside(peer_row("b", 1.3, 1.2, 1.4)).verdict, CriterionVerdict::kMet);
  const Criterion wide = verdict_beside(peer_row("b", 9, 1.2, 260));
  EXPECT_EQ(wide.verdict, CriterionVerdict::kNotJudged);
  EXPECT_NE(wide.evidence.find("b: the interval from 1.200 to 260.000 is too wide"), std::string::npos)
      << wide.evidence;
  json row = peer_row("b", 249, 240, 260);
  row["peers"][0]["time_us"] = {{"p10", 129}, {"p50", 11735}, {"p90", 12000}};
  const Criterion wavering = verdict_beside(row);
  EXPECT_EQ(wavering.verdict, CriterionVerdict::kNotJudged);
  EXPECT_NE(wavering.evidence.find("b: half of flash's samples took 91.0 times its fastest tenth"), std::string::npos)
      << wavering.evidence;
}

TEST_F(Criteria, AWorseP90IsNotMet) {
  const auto c = judge(json::array({peer_row("a", 1.3, 1.2, 1.4, 20, 12)}));
  EXPECT_EQ(c[2].verdict, CriterionVerdict::kNotMet);
  EXPECT_NE(c[2].evidence.find("a 20.00 us against 12.00 us"), std::string::npos) << c[2].evidence;
}

TEST_F(Criteria, WithoutPeersCountersAndGpuNothingIsMet) {
  for (const Criterion& c : judge(json::array())) EXPECT_EQ(c.verdict, CriterionVerdict::kNotJudged) << c.name;
}

// What `profile` writes of a kernel with these hardware counters.
json profile_of(const CounterValues& counters) {
  ProfileFacts facts;
  facts.problem = PlacedProblem::parse("b4_h16_s2048_d64_fp16");
  facts.candidate = "sm80_fwd:block_m=64";
  facts.limits = limits_of_arch("sm_90");
  facts.counters = counters;
  return {{"results", {profile_json(facts, diagnose(facts))}}};
}
CounterValues bank_passes(double all, double conflicts) {
  return {{names_of(Metric::kSharedPasses).front(), all}, {names_of(Metric::kBankConflicts).front(), conflicts}};
}
CounterValues sm_busy(double percent) { return {{names_of(Metric::kSmBusy).front(), percent}}; }

TEST_F(Criteria, ProfilesDecideByTheirTargets) {
  EXPECT_EQ(judge(json::array(), profile_of(sm_busy(81)))[3].verdict, CriterionVerdict::kMet);
  again();
  EXPECT_EQ(judge(json::array(), profile_of(sm_busy(40)))[3].verdict, CriterionVerdict::kNotMet);
  again();
  // A ratio: 1.02 times the fewest passes are few, 4 times are a conflict at each.
  EXPECT_EQ(judge(json::array(), profile_of(bank_passes(102, 2)))[5].verdict, CriterionVerdict::kMet);
  again();
  const Criterion severe = judge(json::array(), profile_of(bank_passes(400, 300)))[5];
  EXPECT_EQ(severe.verdict, CriterionVerdict::kNotMet);
  EXPECT_NE(severe.evidence.find("bank passes over the fewest of tiny: 4 x"), std::string::npos) << severe.evidence;
  again();
  EXPECT_EQ(judge(json::array(), profile_of({}))[5].verdict, CriterionVerdict::kNotJudged);
}

TEST_F(Criteria, AProfileWithoutTheMetricLeavesItOpen) {
  options_.problems.problems.push_back({"second", PlacedProblem::parse("b1_h1_s128_d64_fp32")});
  const auto judged = [&](const CounterValues& one, const CounterValues& other) {
    again();
    answer_ = [&](const auto& argv) {
      if (verb_of(argv) == "profile") write_json(argv, profile_of(times_run("profile") == 1 ? one : other));
      return CommandEnd{.exit_code = 0};
    };
    return go().criteria[3];
  };
  EXPECT_EQ(judged(sm_busy(80), sm_busy(80)).verdict, CriterionVerdict::kMet);
  const Criterion open = judged(sm_busy(80), {});
  EXPECT_EQ(open.verdict, CriterionVerdict::kNotJudged);
  EXPECT_NE(open.evidence.find("1 of 2 profiles lack it"), std::string::npos) << open.evidence;
  EXPECT_EQ(judged(sm_busy(40), {}).verdict, CriterionVerdict::kNotMet);
}

TEST_F(Criteria, WhatWasNeverTimedIsNotSlow) {
  for (const char* id : {"b1_h1_s128_d64_fp32", "b1_h1_s192_d64_fp32"})
    options_.problems.problems.push_back({id, PlacedProblem::parse(id)});
  const auto c = judge(json::array({peer_row("a", 1.0, 0.98, 1.02)}));
  EXPECT_EQ(c[0].verdict, CriterionVerdict::kNotJudged) << c[0].evidence;
  EXPECT_NE(c[0].evidence.find("2 of 3 problems were not timed"), std::string::npos) << c[0].evidence;
  // All three would be needed, and one of them is slow.
  EXPECT_EQ(c[1].verdict, CriterionVerdict::kNotMet) << c[1].evidence;
}

TEST_F(Criteria, NullsInDocumentsAreRead) {
  const json row = {
      {"problem", "a"}, {"name", nullptr}, {"time_us", {{"p50", 9}, {"p90", nullptr}}}, {"peers", nullptr}};
  for (const Criterion& c : judge(json::array({row, {{"problem", nullptr}}, nullptr}),
                                  {{"results", {{{"indicators", {{{"name", nullptr}}, nullptr}}}}}},
                                  {{"artifact", {{"arch", "sm_90a"}, {"spill_store_bytes", nullptr}}}}))
    EXPECT_FALSE(c.evidence.empty());
  EXPECT_TRUE(std::filesystem::exists(options_.folder / "summary.md"));
}

TEST_F(Criteria, SpillsOfWinnersAreSeen) {
  const auto spilling = [](int bytes) {
    return json{{"artifact", {{"arch", "sm_90a"}, {"spill_store_bytes", bytes}, {"spill_load_bytes", 0}}}};
  };
  EXPECT_EQ(judge(json::array(), nullptr, spilling(0))[4].verdict, CriterionVerdict::kMet);
  again();
  EXPECT_EQ(judge(json::array(), nullptr, spilling(8))[4].verdict, CriterionVerdict::kNotMet);
  again();
  json second = spilling(0);
  second["artifact"]["more_kernels"] = {{{"spill_store_bytes", 0}, {"spill_load_bytes", 16}}};
  EXPECT_EQ(judge(json::array(), nullptr, second)[4].verdict, CriterionVerdict::kNotMet);
}

// --- rankings -------------------------------------------------------------------------------------------------------

json sensitivity(std::string_view name, SpeedVerdict verdict, double time_ratio) {
  Sensitivity s;
  const Variant& variant = variant_by_name(name);
  s.variant = name;
  s.kind = variant.kind;
  s.verdict = verdict;
  s.time_ratio = time_ratio;
  s.sentence = fmt::format("{} it takes {:.2f} of the time", variant.with, time_ratio);
  return s;
}

json inversion(const json& ranking, const char* unit = "time") {
  return {{"results", {{{"unit", unit}, {"answer", "fewer loads would help most"}, {"ranking", ranking}}}}};
}

class Ranking : public CampaignTest {
 protected:
  CampaignResult with(const json& inversion_document, int ab_exit_code = 0) {
    answer_ = [=](const auto& argv) {
      if (verb_of(argv) == "invert") write_json(argv, inversion_document);
      if (verb_of(argv) == "ab")
        write_json(argv,
                   {{"results",
                     {{{"verdict", "FASTER"}, {"ended", "measured"}, {"sentence", "b is faster"}, {"speedup", 1.2}}}}});
      return CommandEnd{.exit_code = verb_of(argv) == "ab" ? ab_exit_code : 0};
    };
    return go();
  }
};

// The trials of a ranking: neighbours of the present config in a field that the cause has to do with.
TEST_F(Ranking, IsTried) {
  const CampaignResult r = with(inversion(json::array({sensitivity("one_tile_loads", SpeedVerdict::kFaster, 0.7)})));
  EXPECT_GT(times_run("ab"), 0);
  EXPECT_EQ(r.state.find("trials")->verdict, PhaseVerdict::kPassed) << r.state.find("trials")->reason;
  for (const auto& argv : ran_) {
    if (verb_of(argv) == "ab") {
      EXPECT_NE(argv[2], argv[3]);
      const auto processes = std::find(argv.begin(), argv.end(), "--processes");
      ASSERT_NE(processes, argv.end());
      EXPECT_EQ(processes[1], "3") << "fewer are not for publishing";
    }
  }
  const json trial = campaign_ledger(options_.folder, r.state)["trials"][0];
  EXPECT_EQ(trial["verdict"], "FASTER");
  EXPECT_EQ(trial["cause"], "one_tile_loads");
  EXPECT_FALSE(trial["field"].get<std::string>().empty());
  const std::string summary = read_file(options_.folder / "summary.md");
  EXPECT_NE(summary.find("fewer loads would help most"), std::string::npos) << summary;
  EXPECT_NE(summary.find("b is faster"), std::string::npos);
}

// However long the gates of three processes take, the phase keeps to its share but for the trial that is under way.
TEST_F(Ranking, IsTriedWhileTheShareOfThePhaseLasts) {
  double now = 0;
  options_.now_seconds = [&] { return now; };
  double seconds_of_trial = 4;
  const json loads = inversion(json::array({sensitivity("one_tile_loads", SpeedVerdict::kFaster, 0.7)}));
  answer_ = [&](const auto& argv) {
    if (verb_of(argv) == "invert") write_json(argv, loads);
    if (verb_of(argv) != "ab") return CommandEnd{.exit_code = 0};
    now += seconds_of_trial;
    write_json(argv, {{"results", {{{"verdict", "SAME"}, {"ended", "measured"}, {"sentence", "no difference"}}}}});
    return CommandEnd{.exit_code = 0};
  };
  options_.budget_seconds = 1000;
  const std::size_t wanted = go().state.find("trials")->commands.size();
  ASSERT_GT(wanted, 2u);
  EXPECT_EQ(times_run("ab"), static_cast<int>(wanted));
  again();
  // Two trials take the whole share.
  seconds_of_trial = 60;
  options_.budget_seconds = 300;
  const CampaignState first = go().state;
  const CampaignPhase trials = *first.find("trials");
  EXPECT_LT(trials.budget_seconds, 2 * seconds_of_trial);
  EXPECT_EQ(times_run("ab"), 2);
  EXPECT_EQ(trials.verdict, PhaseVerdict::kPassed) << "each is a question of its own";
  EXPECT_EQ(trials.reason,
            fmt::format("{} trials: 0 faster, 2 same, {} not run, for the phase's share was over (--resume tries it "
                        "again; a larger --budget begins more); details in ledger.json",
                        wanted, wanted - 2));
  EXPECT_NE(read_file(options_.folder / "summary.md").find(fmt::format("{} not run", wanted - 2)), std::string::npos);
  EXPECT_NE(campaign_ledger(options_.folder, first)["trials"][2]["why"].get<std::string>().find("not run"),
            std::string::npos);
  ran_.clear();
  seconds_of_trial = 1;
  const CampaignState resumed = go(load_state(options_.folder)).state;
  EXPECT_EQ(times_run("ab"), static_cast<int>(wanted) - 2) << "what has judged is kept";
  EXPECT_EQ(resumed.find("trials")->reason.find("not run"), std::string::npos) << resumed.find("trials")->reason;
}

TEST_F(Ranking, IsOfLeaveOneOutsThatWereFaster) {
  const json all = {sensitivity("tiny_blocks", SpeedVerdict::kSlower, 1.9),
                    sensitivity("one_stage", SpeedVerdict::kFaster, 0.8),
                    sensitivity("no_stores", SpeedVerdict::kSame, 0.99),
                    sensitivity("one_tile_loads", SpeedVerdict::kInconclusive, 0.9),
                    sensitivity("no_exponentials", SpeedVerdict::kFaster, 0.6)};
  const auto causes = ranking_of(options_.folder, with(inversion(all)).state);
  ASSERT_EQ(causes.size(), 1u);
  EXPECT_EQ(causes[0].name, "no_exponentials");
  EXPECT_EQ(causes[0].sentence, "without exponentials it takes 0.60 of the time");
  again();
  EXPECT_TRUE(ranking_of(options_.folder, with(inversion(all, "count")).state).empty());
  EXPECT_EQ(inversion_answers(options_.folder, with(inversion(all, "count")).state).size(), 1u);
}

TEST_F(Ranking, TakesAProfilesBottlenecksByTheirWords) {
  ProfileFacts facts;
  Profile profile;
  profile.bottlenecks.push_back(
      {.rank = 1, .cause = Cause::kNoOverlap, .share = 0.3, .sentence = "copies wait", .evidence = {}});
  facts.problem = PlacedProblem::parse(kProblem);
  answer_ = [&](const auto& argv) {
    if (verb_of(argv) == "profile") write_json(argv, {{"results", {profile_json(facts, profile)}}});
    return CommandEnd{.exit_code = 0};
  };
  const auto causes = ranking_of(options_.folder, go().state);
  ASSERT_EQ(causes.size(), 1u);
  EXPECT_EQ(causes[0].name, to_string(Cause::kNoOverlap));
  EXPECT_EQ(causes[0].sentence, "copies wait");
}

// A busy machine is nothing that a candidate repairs.
TEST_F(Ranking, OfABusyMachineTriesNothing) {
  EXPECT_TRUE(fields_for(to_string(Cause::kBusyMachine)).empty());
  ProfileFacts facts;
  Profile profile;
  profile.bottlenecks.push_back(
      {.rank = 1, .cause = Cause::kBusyMachine, .share = 0.5, .sentence = "others kept it busy", .evidence = {}});
  facts.problem = PlacedProblem::parse(kProblem);
  answer_ = [&](const auto& argv) {
    if (verb_of(argv) == "profile") write_json(argv, {{"results", {profile_json(facts, profile)}}});
    return CommandEnd{.exit_code = 0};
  };
  const CampaignResult r = go();
  EXPECT_EQ(times_run("ab"), 0);
  EXPECT_NE(r.state.find("trials")->reason.find("ranked anything that a tile parameter answers"), std::string::npos);
}

TEST(CauseFields, EveryLeaveOneOutAndEveryCauseHasARowOfFieldsThatExist) {
  std::set<std::string> wanted, rows, known;
  for (const Variant& variant : variants())
    if (variant.kind == VariantKind::kLeaveOneOut) wanted.emplace(variant.name);
  for (const auto& [cause, word] : WordsOf<Cause>::table) wanted.emplace(word);
  for (const Family* family : all_families())
    for (const Field& field : family->space().fields()) known.insert(field.name);
  for (const CauseFields& row : cause_fields()) {
    EXPECT_TRUE(rows.insert(row.name).second) << row.name << " is there twice";
    for (const std::string& field : row.fields) EXPECT_TRUE(known.contains(field)) << row.name << ": " << field;
  }
  EXPECT_EQ(rows, wanted);
}

TEST_F(Ranking, OfAnotherShapeSaysNothing) {
  for (const json& document : {json(nullptr), json::array(), json{{"results", 3}},
                               json{{"results", {1, nullptr, {{"bottlenecks", {1, nullptr}}}}}},
                               json{{"results", {{{"unit", "time"}, {"ranking", {{{"x", 1}}}}}}}}}) {
    answer_ = [&](const auto& argv) {
      if (verb_of(argv) == "profile" || verb_of(argv) == "invert") write_json(argv, document);
      return CommandEnd{.exit_code = 0};
    };
    again();
    EXPECT_TRUE(ranking_of(options_.folder, go().state).empty()) << document;
  }
}

TEST_F(CampaignTest, AThrottlingMachineIsAFinding) {
  const std::vector<std::pair<json, bool>> cases = {{{{"environment", {{"throttle_reasons", "sw_power_cap"}}}}, true},
                                                    {{{"environment", {{"throttle_reasons", "gpu_idle"}}}}, false},
                                                    {{{"timing", {{"throttles", {"", "hw_thermal"}}}}}, true},
                                                    {{{"timing", {{"throttles", {"", "gpu_idle"}}}}}, false},
                                                    {{{"throttled_samples", 3}}, true},
                                                    {{{"throttled_samples", 0}}, false},
                                                    {{{"engine", {{"throttled", 2}}}}, true},
                                                    {{{"engine", {{"throttled", 0}}}}, false}};
  for (const auto& [result, throttled] : cases) {
    again();
    answer_ = [&](const auto& argv) {
      if (verb_of(argv) == "bench") write_json(argv, {{"results", {result}}});
      return CommandEnd{.exit_code = 0};
    };
    const CampaignResult r = go();
    EXPECT_EQ(throttled_phases(options_.folder, r.state).size(), throttled ? 1u : 0u) << result;
    EXPECT_EQ(
        read_file(options_.folder / "summary.md").find("lowered its clocks during baselines") != std::string::npos,
        throttled)
        << result;
  }
}

}  // namespace
}  // namespace flashcore
