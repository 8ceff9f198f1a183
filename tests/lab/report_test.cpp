#include "lab/report/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/suite.h"
#include "lab/example_trials.h"
#include "lab/record/funnel_stage.h"
#include "lab/report/content_policy.h"
#include "lab/report/funnel.h"
#include "lab/report/model.h"
#include "lab/report/text.h"
#include "lab/tune/facts.h"

namespace flashcore {
namespace {

using namespace report;

const IsCurrent kAgainstCurrent = [](const Trial& t) { return t.source_hash == example::kCurrent; };

int count_of(const std::string& text, const std::string& what) {
  int count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++count;
  return count;
}

TEST(ReportText, EscapesWhatEachFormatGivesMeaningTo) {
  EXPECT_EQ(escape_html("<a b=\"c\" d='e'>&"), "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;");
  EXPECT_EQ(escape_markdown("a|b\nc<d"), "a\\|b c&lt;d");
  EXPECT_EQ(escape_markdown("[x](https://evil.example) ![y](z) `q` *b* _i_ WWW.evil.example"),
            "\\[x\\](https&#58;//evil.example) !\\[y\\](z) \\`q\\` \\*b\\* \\_i\\_ WWW&#46;evil.example");
  EXPECT_EQ(escape_markdown("sm90_fwd:num_consumers=2,block_n=64"), "sm90_fwd:num_consumers=2,block_n=64");
  EXPECT_EQ(escape_markdown("# head"), "\\# head");
  EXPECT_EQ(escape_markdown("by @octocat of @a/b, a@b.example, fixes #12, C# @ 1"),
            "by @&#8203;octocat of @&#8203;a/b, a@&#8203;b.example, fixes #&#8203;12, C# @ 1");
  EXPECT_EQ(escape_markdown("1. item"), "1\\. item");
  EXPECT_EQ(escape_markdown("\x1b[2J\u202e"), "\\\\x1b\\[2J\\\\u202e");
  EXPECT_EQ(markdown_code("a`|b\nc"), "`a'/b c`");
  EXPECT_EQ(escape_html("a\x1b]0;x\u202e\n"), "a\\x1b]0;x\\u202e\n");
  EXPECT_EQ(escape_csv("plain"), "plain");
  EXPECT_EQ(escape_csv("a,\"b\""), "\"a,\"\"b\"\"\"");
  for (const char* formula : {"=1+1", "+1", "-1", "@x", " =1", "\t=1", "\r=1", "\n=1", "\uff1d1"})
    EXPECT_TRUE(escape_csv(formula).starts_with("\"'")) << formula << " became " << escape_csv(formula);
}

TEST(ReportText, OfAPagesScriptsOnlyThoseNamedByTheirHashRun) {
  const std::string policy = content_security_policy({.styles = {"a{}"}, .scripts = {"f()"}, .blob_scripts = false});
  EXPECT_NE(policy.find("default-src 'none'"), std::string::npos);
  EXPECT_NE(policy.find("script-src 'sha256-GcEEE0IkDzIP5EQ6DXZaDPORqT5RTBELX8Fyzyg9yvo=';"), std::string::npos)
      << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_NE(content_security_policy({}).find("script-src 'none'"), std::string::npos);
}

TEST(ReportText, Base64MatchesRfc4648) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64(std::string("\xff\x00\xfe", 3)), "/wD+");
}

TEST(ReportText, NumbersKeepThreeDigitsAndChooseAUnit) {
  EXPECT_EQ(number(0.01234), "0.0123");
  EXPECT_EQ(number(9.996), "10.0");
  EXPECT_EQ(number(99.96), "100");
  EXPECT_EQ(number(1234567.4), "1,234,567");
  EXPECT_EQ(number(-1234), "-1,234");
  EXPECT_EQ(number(std::numeric_limits<double>::quiet_NaN()), "–");
  EXPECT_EQ(time(12.34), "12.3 µs");
  EXPECT_EQ(time_range(1500, 1490, 2000), "1.50 ms [1.49, 2.00]");
  EXPECT_EQ(percent(0.634), "63%");
  EXPECT_EQ(plural(1, "tie"), "1 tie");
  EXPECT_EQ(plural(2, "tie"), "2 ties");
}

TEST(ReportFunnel, CountsDistinctCandidatesAsFarAsTheyGot) {
  const std::vector<Trial> trials = example::tuned_problem("b1_h8_s512_d64_fp16", "mission", 14, 1.3, 1.4, 1);
  std::vector<const Trial*> pointers;
  for (const Trial& trial : trials) pointers.push_back(&trial);
  pointers.push_back(&trials[5]);  // met again: still one candidate
  EXPECT_EQ(counts(make_funnel(pointers)), (std::vector<int>{8, 6, 5, 4, 4, 2}));
}

TEST(ReportFunnel, ACpuCandidateWithSkippedCompileGatesIsCompiled) {
  Trial trial = example::trial(1, Phase::kSearch, "b1_h8_s512_d64_fp32", "x", "block_m=64");
  trial.gates = {example::verdict(Gate::kValid, GateStatus::kPassed),
                 example::verdict(Gate::kCompile, GateStatus::kSkipped),
                 example::verdict(Gate::kResource, GateStatus::kSkipped),
                 example::verdict(Gate::kCorrectness, GateStatus::kFailed)};
  EXPECT_EQ(counts(make_funnel({&trial})), (std::vector<int>{1, 1, 1, 0, 0, 0}));
}

TEST(ReportFunnel, ACrashDuringCompilationIsNotCompiled) {
  Trial trial = example::trial(1, Phase::kSearch, "b1_h8_s512_d64_fp16", "x", "block_m=64");
  trial.gates = {example::verdict(Gate::kValid, GateStatus::kPassed)};
  trial.ended = Ended::kCrashed;
  EXPECT_EQ(counts(make_funnel({&trial})), (std::vector<int>{1, 1, 0, 0, 0, 0}));
}

TEST(ReportFunnel, WrongTimedOutputsAreNotCorrect) {
  Trial trial = example::timed(example::trial(1, Phase::kSearch, "b1_h8_s512_d64_fp16", "x", "block_m=64"), 10, 1);
  trial.gates.back().status = GateStatus::kFailed;
  trial.ended = Ended::kIncorrect;
  EXPECT_EQ(counts(make_funnel({&trial})), (std::vector<int>{1, 1, 1, 0, 0, 0}));
  EXPECT_FALSE(make_model({trial}, kAgainstCurrent).rows[0].winner);
}

// tune's own table of a run and the report of its store say the same.
TEST(ReportFunnel, CountsAsTheTableOfTuneDoes) {
  std::vector<Trial> trials = example::tuned_problem("b1_h8_s512_d64_fp16", "mission", 14, 1.3, 1.4, 1);
  // Passed the gate of correctness; its timed launches then left wrong outputs.
  Trial wrong =
      example::timed(example::trial(20, Phase::kSearch, "b1_h8_s512_d64_fp16", "mission", "block_m=7"), 10, 1);
  wrong.ended = Ended::kIncorrect;
  wrong.timing.reset();
  ASSERT_TRUE(passed_gate(wrong, Gate::kCorrectness));
  trials.push_back(wrong);
  Trial on_cpu = example::trial(21, Phase::kSearch, "b1_h8_s512_d64_fp16", "mission", "block_m=9");
  on_cpu.gates = {example::verdict(Gate::kValid, GateStatus::kPassed),
                  example::verdict(Gate::kCompile, GateStatus::kSkipped),
                  example::verdict(Gate::kCorrectness, GateStatus::kPassed)};
  trials.push_back(on_cpu);
  std::vector<const Trial*> pointers;
  for (const Trial& trial : trials) pointers.push_back(&trial);
  TuneResult::Entry entry;
  count_funnel(trials, entry);
  EXPECT_EQ(counts(make_funnel(pointers)),
            (std::vector<int>{entry.proposed, entry.valid, entry.compiled, entry.correct, entry.raced, entry.led}));
  EXPECT_EQ(funnel_stage_of(wrong), FunnelStage::kCompiled);
  EXPECT_EQ(funnel_stage_of(on_cpu), FunnelStage::kCorrect);
}

TEST(ReportFunnel, GroupsRejectionsByGateAndReasonWithoutItsNumbers) {
  const std::vector<RejectedGroup> groups = group_rejected(example::tuned_suite());
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_EQ(groups[0].gate, "valid");
  EXPECT_EQ(groups[0].count, 8);
  EXPECT_EQ(groups[0].problems.size(), 4U);
}

TEST(ReportModel, WinnerIsTheFastestHeldOutTrialAndItsSpeedupIsOverTheDefault) {
  const Model model = make_model(example::tuned_suite(), kAgainstCurrent);
  ASSERT_EQ(model.rows.size(), 5U);
  const ProblemRow& row = model.rows[0];
  ASSERT_TRUE(row.winner && row.baseline && row.speedup);
  EXPECT_EQ(row.basis, Basis::kHoldout);
  EXPECT_EQ(row.winner->config, "block_m=128,block_n=64,num_warps=8,num_stages=3");
  EXPECT_EQ(row.speedup->against, row.baseline->candidate());
  EXPECT_DOUBLE_EQ(row.speedup->speedup, 1.31);
  EXPECT_NEAR(*model.geomean_speedup, std::pow(1.31 * 1.12 * 1.22 * 1.18, 0.25), 1e-12);
  EXPECT_FALSE(model.rows[4].winner);
  EXPECT_NE(sentence(model.rows[4]).find("the compiler crashed"), std::string::npos);
}

TEST(ReportModel, TheDefaultIsTheOneFinalistsWereMeasuredAgainst) {
  std::vector<Trial> trials = example::tuned_problem("b1_h8_s512_d64_fp16", "mission", 14, 1.3, 1.4, 1);
  Trial naive =
      example::timed(example::trial(9, Phase::kDefault, "b1_h8_s512_d64_fp16", "mission", "num_warps=4"), 400, 1.4);
  naive.family = "ref_fwd";
  trials.insert(trials.begin() + 1, naive);
  const ProblemRow row = make_model(trials, kAgainstCurrent).rows[0];
  ASSERT_TRUE(row.baseline);
  EXPECT_EQ(row.baseline->family, "sm80_fwd");
  EXPECT_EQ(row.baseline->phase, Phase::kHoldout);
}

TEST(ReportModel, AnInconclusiveChallengerDoesNotUnseatTheDefault) {
  std::vector<Trial> trials = example::tuned_problem("b1_h8_s512_d64_fp16", "mission", 14, 1.3, 1.4, 1);
  Comparison& raced = *trials.back().comparison;
  raced.ci95_low = 0.9;
  raced.p_value = 0.4;
  raced.verdict = SpeedVerdict::kInconclusive;
  const ProblemRow row = make_model(trials, kAgainstCurrent).rows[0];
  EXPECT_TRUE(row.default_won);
  EXPECT_EQ(verdict_words(row), "default remains");
}

TEST(ReportModel, SearchTrialsAloneAreNotAResult) {
  std::vector<Trial> trials = example::tuned_problem("b1_h8_s512_d64_fp16", "mission", 14, 1.3, 1.4, 1);
  trials.resize(8);  // no held-out ones
  const Model model = make_model(trials, kAgainstCurrent);
  EXPECT_EQ(model.rows[0].basis, Basis::kDiscovery);
  EXPECT_EQ(verdict_words(model.rows[0]), "not held out");
  EXPECT_FALSE(model.geomean_speedup);
}

TEST(ReportModel, ATimeWithoutCorrectnessNeverWins) {
  Trial fast =
      example::timed(example::trial(1, Phase::kBench, "b1_h8_s512_d64_fp16", "mission", "block_m=16"), 0.5, 0.1);
  for (Verdict& verdict : fast.gates) {
    if (verdict.gate == Gate::kCorrectness) verdict.status = GateStatus::kFailed;
  }
  EXPECT_FALSE(make_model({fast}, kAgainstCurrent).rows[0].winner);
  // A kernel that is wrong on purpose, though a record of it says otherwise.
  Trial wrong =
      example::timed(example::trial(1, Phase::kBench, "b1_h8_s512_d64_fp16", "mission", "block_m=16"), 0.5, 0.1);
  EXPECT_TRUE(make_model({wrong}, kAgainstCurrent).rows[0].winner);
  wrong.family += "+mine+wrong_no_stores";
  EXPECT_FALSE(make_model({wrong}, kAgainstCurrent).rows[0].winner);
}

TEST(ReportModel, AResultOfOtherSourceIsStale) {
  std::vector<Trial> trials = example::tuned_suite();
  EXPECT_FALSE(make_model(trials, kAgainstCurrent).any_stale);
  for (Trial& trial : trials) trial.source_hash = example::kOld;
  const Model model = make_model(trials, kAgainstCurrent);
  EXPECT_TRUE(model.any_stale);
  EXPECT_TRUE(model.rows[0].stale);
  EXPECT_FALSE(model.geomean_speedup);
  EXPECT_NE(report_html(trials, kAgainstCurrent).find("Stale results"), std::string::npos);
  const std::string markdown = report_markdown(trials, kAgainstCurrent);
  EXPECT_EQ(markdown.find("µs"), std::string::npos) << "Markdown must not show a stale number";
}

TEST(ReportHtml, EscapesEverythingThatComesFromTrials) {
  std::vector<Trial> trials = example::tuned_suite();
  trials[0].suite = "<img src=x onerror=alert(2)>";
  trials[0].device.name = trials[1].device.name = "</script><b>gpu";
  const std::string page = report_html(trials, kAgainstCurrent);
  EXPECT_EQ(page.find("<script>alert(1)"), std::string::npos);
  EXPECT_EQ(page.find("<img src=x"), std::string::npos);
  EXPECT_EQ(page.find("</script><b>"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;alert(1)"), std::string::npos);
  EXPECT_EQ(count_of(page, "<script"), count_of(page, "</script>"));
}

TEST(ReportHtml, AsksForNothingOverTheNetwork) {
  const std::string page = report_html(example::tuned_suite(), kAgainstCurrent);
  for (const char* what : {"src=\"http", "href=\"http", "src=//", "@import", "url(http", "fetch("})
    EXPECT_EQ(page.find(what), std::string::npos) << what;
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(page.substr(0, page.find("application/gzip")).find("unsafe-"), std::string::npos);
}

TEST(ReportHtml, ShowsTheMachinesLoadAndNoise) {
  std::vector<Trial> trials = example::tuned_problem("b1_h8_s512_d64_fp16", "mission", 14, 1.3, 1.4, 1);
  EXPECT_EQ(report_html(trials, kAgainstCurrent).find("machine load"), std::string::npos) << "not recorded, not shown";
  trials[3].machine.load_before = 0.4;
  trials[3].machine.load_after = 3.12;
  trials[3].machine.cores = 16;
  const std::string page = report_html(trials, kAgainstCurrent);
  EXPECT_NE(page.find("0.4 to 3.1 (of 16 cores)"), std::string::npos);
  EXPECT_NE(page.find("noise of a median"), std::string::npos);
  EXPECT_NE(report_markdown(trials, kAgainstCurrent).find("machine load: 0.4 to 3.1"), std::string::npos);
}

TEST(ReportHtml, CommandsToRepeatAreQuotedAndCarryTheVariables) {
  std::vector<Trial> trials = example::tuned_problem("b1_h8_s512_d64_fp16", "mission", 14, 1.3, 1.4, 1);
  for (Trial& trial : trials) {
    trial.machine.variables = {{"FLASHCORE_SOURCE", "/my tree"}, {"FLASHCORE_EMULATOR_SEED", "7"}};
    trial.device.id = "cuda:0; rm -rf ~";
  }
  const ProblemRow row = make_model(trials, kAgainstCurrent).rows[0];
  EXPECT_TRUE(bench_command(row).starts_with(
      "FLASHCORE_SOURCE='/my tree' flashcore bench --device 'cuda:0; rm -rf ~' --problem b1_h8_s512_d64_fp16"))
      << bench_command(row);
}

TEST(ReportHtml, WhatToRepeatIsWhatWasRun) {
  Trial timed = example::trial(1, Phase::kBench, "b1_h8_s512_d64_fp16", "mission", "block_m=64");
  timed.suite = "quick";
  Trial tuned = timed;
  tuned.phase = Phase::kSearch;
  tuned.device.id = "cuda:0; rm -rf ~";
  // One problem of a suite, or of none, is not the suite.
  EXPECT_EQ(commands_to_repeat({timed, tuned, tuned}),
            (std::vector<std::string>{
                "flashcore bench --device cuda:0 --problem b1_h8_s512_d64_fp16 --store trials.db",
                "flashcore tune --device 'cuda:0; rm -rf ~' --problem b1_h8_s512_d64_fp16 --store trials.db"}));
  std::vector<Trial> whole;
  for (const NamedProblem& named : load_suite("quick").problems) {
    whole.push_back(timed);
    whole.back().problem = named.problem;
  }
  EXPECT_EQ(commands_to_repeat(whole),
            std::vector<std::string>{"flashcore bench --device cuda:0 --suite quick --store trials.db"});
}

TEST(ReportModel, ATimeIsSaidAsAMultipleOfTheFloor) {
  const std::vector<Trial> trials = example::tuned_problem("b1_h8_s512_d64_fp16", "mission", 14, 1.3, 1.4, 1);
  const ProblemRow row = make_model(trials, kAgainstCurrent).rows[0];
  const std::string times = ratio(row.winner->timing->p50_us / row.winner->timing->floor_us);
  EXPECT_NE(sentence(row).find(times + " the floor"), std::string::npos) << sentence(row);
  EXPECT_NE(report_markdown(trials, kAgainstCurrent).find("| " + times + " |"), std::string::npos);
}

TEST(ReportHtml, NoTrialsGiveAPageThatSaysWhatToDo) {
  EXPECT_NE(report_html({}, kAgainstCurrent).find("flashcore tune"), std::string::npos);
  EXPECT_NE(report_markdown({}, kAgainstCurrent).find("No trials"), std::string::npos);
  EXPECT_EQ(count_of(report_csv({}), "\r\n"), 1);
  EXPECT_TRUE(report_json({}, kAgainstCurrent).at("problems").empty());
}

TEST(ReportJson, HoldsNoNumberThatIsNotOne) {
  std::vector<Trial> trials = example::tuned_suite();
  trials[9].timing->p90_us = std::numeric_limits<double>::quiet_NaN();
  trials[9].comparison->ci95_high = std::numeric_limits<double>::infinity();
  trials[9].timing->samples[3].time_us = std::numeric_limits<double>::quiet_NaN();
  for (const std::string& text : {report_json(trials, kAgainstCurrent).dump(), report_html(trials, kAgainstCurrent)}) {
    const std::string shown = text.substr(0, text.find("application/gzip"));
    for (const char* word : {":nan", ":NaN", ":inf", ":-inf", ">nan", ">inf", "[nan", "[-inf"})
      EXPECT_EQ(shown.find(word), std::string::npos) << word;
  }
  EXPECT_TRUE(report_json(trials, kAgainstCurrent).at("problems")[0].at("speedup").at("ci95")[1].is_null());
}

TEST(ReportJson, FunnelAndVerdictArePerProblem) {
  const nlohmann::json problems = report_json(example::tuned_suite(), kAgainstCurrent).at("problems");
  EXPECT_EQ(problems[0].at("funnel").at("proposed"), 8);
  EXPECT_EQ(problems[0].at("funnel").at("led"), 2);
  EXPECT_EQ(problems[0].at("verdict"), "FASTER");
  EXPECT_EQ(problems[4].at("verdict"), "no result");
  EXPECT_TRUE(problems[4].at("winner").is_null());
}

TEST(ReportCsv, HasOneLinePerTrialWithAsManyCellsAsTheHeader) {
  const std::vector<Trial> trials = example::tuned_problem("b1_h8_s512_d64_fp16", "mission", 14, 1.3, 1.4, 1);
  const std::string csv = report_csv(trials);
  EXPECT_EQ(count_of(csv, "\r\n"), 11);
  int cells = 1, header_cells = 0;
  bool quoted = false;
  for (const char c : csv) {
    if (c == '"') quoted = !quoted;
    if (c == ',' && !quoted) ++cells;
    if (c != '\n') continue;
    if (header_cells == 0) header_cells = cells;
    EXPECT_EQ(cells, header_cells);
    cells = 1;
  }
}

}  // namespace
}  // namespace flashcore
