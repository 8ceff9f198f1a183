#include "lab/report/diagnoses.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/files.h"
#include "lab/campaign/summary.h"
#include "lab/example_diagnoses.h"
#include "lab/example_trials.h"
#include "lab/report/report.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

using nlohmann::json;

void expect_in(const std::string& page, const std::string& words) {
  EXPECT_NE(page.find(words), std::string::npos) << words << " is not in\n" << page;
}

TEST(ReportDiagnoses, BottlenecksComeRankedWithEvidenceAndTargetsWithTheirVerdict) {
  const std::string section = report::profile_section(example::diagnoses());
  expect_in(section, "<b>1. bank conflicts</b> <span class=\"badge warn\">fault, 25% of the time, estimated</span>");
  expect_in(section, "900 passes where 300 would do");
  expect_in(section, "<b>2. tensor cores</b> <span class=\"badge neutral\">limit, 61%</span>");
  expect_in(section, "3 metrics and their targets: 1 met; not met: SM busy");
  expect_in(section, "41.5%</td><td class=num>&gt;= 70</td><td><span class=\"badge bad\">not met</span>");
  expect_in(section, "16.0 warps</td><td class=num>&gt;= 8</td><td><span class=\"badge good\">met</span>");
  expect_in(section, "<td class=num>&gt;= 50</td><td>–</td>");
  expect_in(section, "Counted on b1_h1_s64_d64_fp16");
  expect_in(section, "Without hardware counters: there is no ncu");
}

TEST(ReportDiagnoses, SensitivitiesAreBarsAndWhatIsWrongOnPurposeSaysSo) {
  const std::string section = report::inversion_section(example::diagnoses());
  const std::size_t wrong = section.find("quarter_multiplies"), slow = section.find("divergence");
  ASSERT_LT(wrong, slow);
  expect_in(section.substr(wrong, slow - wrong), "wrong on purpose");
  EXPECT_EQ(section.substr(slow).find("wrong on purpose</span>"), std::string::npos);
  // Half and twice are equally far from the middle, 110.
  expect_in(section, "<rect x=15.6 y=4 width=94.4");
  expect_in(section, "<rect x=110.0 y=4 width=94.4");
  expect_in(section, "0.5 [0.48, 0.52]");
  expect_in(section, "serial_grid: no CTA takes several tiles");
  EXPECT_EQ(section.find("inf "), std::string::npos);
}

TEST(ReportDiagnoses, CountsHaveNoBars) {
  json document = example::inversion_document();
  json& result = document["results"][0];
  result["unit"] = "count";
  for (json& row : result["ranking"]) row.erase("time_ratio"), row.erase("ci95");
  Diagnoses found;
  add_diagnosis(found, document, "i.json");
  const std::string section = report::inversion_section(found);
  EXPECT_EQ(section.find("<svg"), std::string::npos);
  expect_in(section, "the order says nothing");
}

TEST(ReportDiagnoses, ThePageHoldsThemWithAndWithoutTrialsAndEscapesThem) {
  const std::string page = report_html({}, is_current, example::diagnoses());
  for (const char* id : {"profile-h", "inversion-h", "timeline-h"}) expect_in(page, std::string("id=") + id);
  expect_in(page, "&lt;script&gt;alert(1)");
  EXPECT_EQ(page.find("<script>alert(1)"), std::string::npos);
  EXPECT_EQ(page.find("<img src=x"), std::string::npos);
}

TEST(ReportDiagnoses, WhatWasNotGivenIsSaid) {
  const std::string page = report_html({});
  for (const char* what : {"No profile: ", "No inversion: ", "No timeline: "}) expect_in(page, what);
}

TEST(ReportDiagnoses, DocumentsOfOthersAreRefusedAndDamagedOnesShowWhatTheyHave) {
  Diagnoses found;
  EXPECT_THROW(add_diagnosis(found, json::parse(R"({"schema": "flashcore.bench/1"})"), "b.json"), Error);
  EXPECT_THROW(add_diagnosis(found, json::array(), "b.json"), Error);
  for (const char* schema : {"flashcore.profile/1", "flashcore.invert/1", "flashcore.timeline/1"})
    for (const char* results : {"3", "[]", "[null, 3]", R"([{"bottlenecks": [3], "indicators": {"a": 1}, "ranking": [{
         "time_ratio": -1, "ci95": [1]}, 3], "sums": [null], "faults": [3], "problem": null}])"})
      add_diagnosis(found, {{"schema", schema}, {"results", json::parse(results)}}, "d.json");
  expect_in(report::profile_section(found), "d.json holds no result.");
  expect_in(report::inversion_section(found), "a problem without a name");
  EXPECT_FALSE(report::timeline_section(found).empty());
}

class OfACampaign : public ::testing::Test {
 protected:
  CampaignCommand command(const char* verb, const char* json_file, const json& document) const {
    if (!document.is_null()) write_file_atomically(folder_.path() / json_file, document.dump());
    return {.argv = {"flashcore", verb}, .json = json_file, .problem = "b1_h8_s512_d64_fp16", .started_at = "now"};
  }
  const test::TemporaryFolder folder_;
};

TEST_F(OfACampaign, ResultsAreShownAndWhatFailedIsNamed) {
  CampaignState state;
  CampaignPhase profile{.name = "profile", .status = PhaseStatus::kDone};
  profile.commands.push_back(command("profile", "p.json", example::profile_document()));
  profile.commands.push_back(command("profile", "p2.json", nullptr));
  profile.commands.back().reason = "it was <b>not accepted</b>";
  profile.commands.push_back(command("timeline", "t.json", example::timeline_document()));
  profile.commands.back().argv.insert(profile.commands.back().argv.end(),
                                      {"--html", (folder_.path() / "the lanes:1.html").string()});
  write_file_atomically(folder_.path() / "the lanes:1.html", "");
  state.phases = {profile, {.name = "inversion", .status = PhaseStatus::kDone, .reason = "no row to compute"}};
  const Diagnoses found = diagnoses_of_campaign(folder_.path(), state, folder_.path() / "pages");
  const std::string profiles = report::profile_section(found);
  expect_in(profiles, "bank conflicts");
  expect_in(profiles, "No profile of b1_h8_s512_d64_fp16: it was &lt;b&gt;not accepted&lt;/b&gt;.");
  expect_in(report::inversion_section(found), "No inversion: no row to compute.");
  expect_in(report::timeline_section(found), "<a href=\"../the%20lanes%3A1.html\">");
}

TEST_F(OfACampaign, ThatEndedEarlySaysSo) {
  CampaignState state;
  state.phases = {{.name = "profile"}, {.name = "inversion"}};
  const Diagnoses found = diagnoses_of_campaign(folder_.path(), state, folder_.path());
  expect_in(report::profile_section(found), "No profile: this campaign ended before it.");
  expect_in(report::inversion_section(found), "No inversion: this campaign ended before it.");
  expect_in(report::timeline_section(found), "No timeline: this campaign ended before it.");
}

json timed_row(const char* name, double p50_us, const json& peers) {
  return {{"problem", name},
          {"name", name},
          {"time_us", {{"p10", p50_us}, {"p50", p50_us}, {"p90", p50_us + 1}}},
          {"peers", peers}};
}

// summary.md and the page are of one campaign, and a reader may hold them side by side.
TEST_F(OfACampaign, HasTheSpeedUpsOfItsSummary) {
  const json peer = {{"name", "flash"},
                     {"time_us", {{"p10", 20}, {"p50", 20.5}, {"p90", 21}}},
                     {"speedup", 2.05},
                     {"ci95", {1.9, 2.2}}};
  json wide = peer;
  wide["ci95"] = {0.5, 2.5};
  CampaignState state;
  CampaignPhase baselines{.name = "baselines", .status = PhaseStatus::kDone};
  baselines.commands.push_back(
      command("-m", "peers.json",
              {{"results",
                {timed_row("long<b>", 10, json::array({peer})), timed_row("b1_h2", 10, json::array({wide})),
                 timed_row("alone", 5, json::array())}}}));
  state.phases = {baselines};
  const auto page_of = [&](const std::vector<Trial>& trials) {
    return report_html(trials, is_current, diagnoses_of_campaign(folder_.path(), state, folder_.path()));
  };
  const std::string summary = campaign_summary(folder_.path(), state, {});
  expect_in(summary, "| long\\<b> | flash | 20.50 / 21.00 | 10.00 / 11.00 | 2.050 [1.900, 2.200] |");
  expect_in(summary, "| alone | none timed | – / – | 5.00 / 6.00 | – |");
  for (const std::vector<Trial>& trials : {std::vector<Trial>{}, example::tuned_suite()}) {
    const std::string page = page_of(trials);
    expect_in(page,
              "<th scope=row>long&lt;b&gt;</th><td>flash</td><td class=num data-sort=\"20.5\">20.50 / 21.00</td>"
              "<td class=num data-sort=\"10\">10.00 / 11.00</td>"
              "<td class=num data-sort=\"2.05\">2.050 [1.900, 2.200]</td><td>–</td>");
    expect_in(page, "<td>none timed</td><td class=num data-sort=\"-1\">– / –</td>");
    for (const char* both :
         {"Intervals are of the sessions in peers.json", "the interval from 0.500 to 2.500 is too wide"})
      for (const std::string* where : {&summary, &page}) expect_in(*where, both);
  }
  // A page of stored trials has no such section, and one of a campaign says why it is empty.
  EXPECT_EQ(report_html({}).find("speedups-h"), std::string::npos);
  state.phases[0].commands.clear();
  state.phases[0].reason = "an emulated GPU has <no> time";
  expect_in(page_of({}), "No time beside a peer: an emulated GPU has &lt;no&gt; time.");
  state.phases[0] = {.name = "baselines"};
  expect_in(page_of({}), "No time beside a peer: this campaign ended before its baselines.");
}

// Not a line that some other run would have been made by.
TEST_F(OfACampaign, IsReproducedByItsOwnLine) {
  CampaignState state;
  state.sessions = {{{"flashcore", "campaign", "--problem", "b1_h1_s64_d64_fp32", "--out", "my folder"}, "then"}};
  CampaignPhase evolution{.name = "evolution", .status = PhaseStatus::kDone, .reason = "an emulated GPU has no time"};
  evolution.commands.push_back(command("tune", "e.json", nullptr));
  evolution.commands.back().argv.front() = "/somewhere/flashcore";
  evolution.commands.push_back(command("bench", "never.json", nullptr));
  evolution.commands.back().started_at.clear();
  state.phases = {evolution};
  const Diagnoses found = diagnoses_of_campaign(folder_.path(), state, folder_.path());
  for (const std::vector<Trial>& trials : {std::vector<Trial>{}, example::tuned_suite()}) {
    const std::string page = report_html(trials, is_current, found);
    expect_in(page, "<pre>flashcore campaign --problem b1_h1_s64_d64_fp32 --out &#39;my folder&#39;</pre>");
    expect_in(page, "<pre>flashcore tune\n</pre>");
    for (const char* other : {"--suite quick", "--suite example", "flashcore bench\n"})
      EXPECT_EQ(page.find(other), std::string::npos) << other;
  }
  expect_in(report_html({}, is_current, found), "evolution: an emulated GPU has no time");
  const auto page = [&] {
    return report_html({}, is_current, diagnoses_of_campaign(folder_.path(), state, folder_.path()));
  };
  state.sessions.push_back({{"flashcore", "campaign", "--out", "my folder", "--resume", "--budget", "3m"}, "now"});
  expect_in(page(),
            "in 2 sessions:</p><pre>flashcore campaign --problem b1_h1_s64_d64_fp32 --out &#39;my folder&#39;\n"
            "flashcore campaign --out &#39;my folder&#39; --resume --budget 3m</pre>");
  state.sessions.front().argv.clear();
  expect_in(page(), "<pre># a session whose command line is not recorded\nflashcore campaign");
  state.sessions.pop_back();
  expect_in(page(), "does not say its command line. It ran:");
  state.sessions.clear();
  expect_in(page(), "does not say its command line. It ran:");
}

TEST_F(OfACampaign, WithoutATimelineSaysOfWhatOneIsRecorded) {
  CampaignState state;
  state.phases = {{.name = "profile", .status = PhaseStatus::kDone}};
  const Diagnoses found = diagnoses_of_campaign(folder_.path(), state, folder_.path());
  expect_in(report::timeline_section(found), "whose kernel has marks");
}

}  // namespace
}  // namespace flashcore
