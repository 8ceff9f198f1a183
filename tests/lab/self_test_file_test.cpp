#include "lab/verify/self_test_file.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/error.h"
#include "lab/compare/aa.h"
#include "lab/record/digest.h"

namespace flashcore {
namespace {

using nlohmann::json;

// Intervals of 0.2% around each speed-up; so many of them exclude 1.
void set_races(json& part, std::vector<double> speedups) {
  std::vector<double> lows, highs;
  int alarms = 0;
  for (const double speedup : speedups) {
    lows.push_back(speedup - 0.001), highs.push_back(speedup + 0.001);
    alarms += lows.back() > 1 || highs.back() < 1;
  }
  part["speedups"] = speedups, part["ci95_low"] = lows, part["ci95_high"] = highs, part["alarms"] = alarms;
}

json part(const char* name, int repeats, double wanted, double held, double effect, const char* verdict) {
  json verdicts = {{"FASTER", 0}, {"SLOWER", 0}, {"SAME", 0}, {"INCONCLUSIVE", 0}};
  verdicts[verdict] = repeats;
  json all = {{"name", name},         {"passed", true},        {"alpha", 0.05},
              {"margin", 0.03},       {"planted", held},       {"planted_wanted", wanted},
              {"measured", effect},   {"repeats", repeats},    {"launches_per_sample", 200},
              {"verdicts", verdicts}, {"failure", ""},         {"device", "h100"},
              {"problem", "stage"},   {"candidate", "ref_fwd"}};
  set_races(all, std::vector<double>(static_cast<std::size_t>(repeats), 1 / (1 + effect)));
  return all;
}

json honest() {
  return {
      {"schema", kAaSelfTestSchema},
      {"passed", true},
      {"device", {{"key", "h100"}}},
      {"results",
       {part("A against A", 200, 0, 0, 0, "SAME"), part("3% of extra work planted", 100, 0.03, 0.03, 0.031, "SLOWER"),
        part("0.5% of extra work planted", 100, 0.005, 0.005, 0.004, "SAME")}}};
}

json sealed(json document) {
  seal(document);
  return document;
}

// The first `count` races of a part, with counts and a verdict that fit.
void cut_to(json& part, std::size_t count) {
  auto speedups = part["speedups"].get<std::vector<double>>();
  speedups.resize(count);
  set_races(part, speedups);
  part["repeats"] = count;
  for (json& verdict : part["verdicts"])
    if (verdict != 0) verdict = count;
}

TEST(SelfTestFile, PassesByThePresentRule) {
  const Verification v = verify_results_text(sealed(honest()).dump(), "f");
  EXPECT_TRUE(v.fresh) << v.reason;
  EXPECT_EQ(v.reason, "what it calls passed passes by the present rule, in 3 parts");
  EXPECT_TRUE(v.remarks.empty());
}

TEST(SelfTestFile, HasADigestOrSaysThatItHasNone) {
  json edited = sealed(honest());
  edited["created_at"] = "2026-11-26T09:48:27.891Z";
  Verification v = verify_results_text(edited.dump(), "f");
  ASSERT_EQ(v.wrong.size(), 1U);
  EXPECT_EQ(v.wrong[0], "its text is not what the program wrote: its digest is of another one");
  v = verify_results_text(honest().dump(), "f");
  EXPECT_TRUE(v.fresh) << v.reason;
  ASSERT_EQ(v.remarks.size(), 1U);
  EXPECT_NE(v.remarks[0].find("it has no digest (measured before digests)"), std::string::npos) << v.remarks[0];
}

// Both were once called fresh.
TEST(SelfTestFile, OfFewRacesHasNotPassed) {
  json one_each = honest();
  for (json& part : one_each["results"]) cut_to(part, 1);
  Verification v = verify_results_text(sealed(one_each).dump(), "f");
  ASSERT_EQ(v.wrong.size(), 3U);
  EXPECT_NE(
      v.wrong[0].find("A against A: it says that it passed, and did not: 1 races are too few to judge by, 200 are"),
      std::string::npos)
      << v.wrong[0];
  EXPECT_NE(v.wrong[1].find("1 races are too few to judge by, 100 are needed"), std::string::npos) << v.wrong[1];
  json without_alarms = honest();
  cut_to(without_alarms["results"][0], 191);
  v = verify_results_text(without_alarms.dump(), "f");
  ASSERT_EQ(v.wrong.size(), 1U);
  EXPECT_NE(v.wrong[0].find("191 races are too few to judge by, 200 are needed"), std::string::npos) << v.wrong[0];
}

TEST(SelfTestFile, OfAConditionThatIsKnownNoMoreIsNamed) {
  json document = honest();
  for (json& part : document["results"]) part["condition"] = "idle_gap";
  const Verification v = verify_results_text(document.dump(), "f");
  ASSERT_EQ(v.wrong.size(), 3U);
  EXPECT_NE(v.wrong[0].find("A against A: 'idle_gap' is not a power condition"), std::string::npos) << v.wrong[0];
}

TEST(SelfTestFile, ThatDidNotPassSaysSo) {
  json document = honest();
  document["passed"] = document["results"][0]["passed"] = false;
  std::vector<double> speedups(200, 1);
  std::fill_n(speedups.begin(), 29, 1.002);
  set_races(document["results"][0], speedups);
  const Verification v = verify_results_text(document.dump(), "f");
  EXPECT_TRUE(v.wrong.empty());
  EXPECT_EQ(v.reason,
            "it says itself that it did not pass: A against A; the other 2 of 3 parts pass by the present rule");
  EXPECT_TRUE(v.did_not_pass);
  EXPECT_FALSE(verify_results_text(honest().dump(), "f").did_not_pass);
}

TEST(SelfTestFile, OfAnOlderRuleIsStale) {
  json old = honest();
  for (json& one : old["results"]) {
    one.erase("planted_wanted");
    one.erase("measured");
    one.erase("ci95_low");
    one.erase("ci95_high");
  }
  Verification v = verify_results_text(old.dump(), "f");
  EXPECT_FALSE(v.fresh);
  EXPECT_TRUE(v.wrong.empty());
  ASSERT_EQ(v.stale.size(), 3U);
  EXPECT_NE(v.stale[0].why.find("does not keep the intervals"), std::string::npos) << v.stale[0].why;
  ASSERT_EQ(v.remarks.size(), 6U) << "and that it has no digest";
  EXPECT_EQ(v.remarks[0], "A against A: it does not keep the intervals that it counts");
  EXPECT_EQ(v.remarks[2], "3% of extra work planted: it does not say how much extra work its samples held");
  old["results"][2]["speedups"] = std::vector<double>(100, 1 / 1.0004);
  v = verify_results_text(old.dump(), "f");
  EXPECT_FALSE(v.fresh);
  EXPECT_TRUE(v.wrong.empty());
  ASSERT_EQ(v.stale.size(), 3U);
  EXPECT_EQ(v.remarks.size(), 6U) << "that it was planted is only what was asked for";
  EXPECT_EQ(v.stale[2].name, "0.5% of extra work planted");
  EXPECT_NE(v.stale[2].why.find("passed by an older rule"), std::string::npos) << v.stale[2].why;
  EXPECT_NE(v.stale[2].why.find("the races found 0.04%"), std::string::npos) << v.stale[2].why;
}

TEST(SelfTestFile, SaysNothingThatItsRacesDoNotGive) {
  const auto wrong_of = [](const std::function<void(json&)>& edit) {
    json document = honest();
    edit(document);
    const Verification v = verify_results_text(document.dump(), "f");
    return v.wrong.empty() ? "" : v.wrong.front();
  };
  EXPECT_NE(wrong_of([](json& d) { d["results"][2]["planted"] = 0.0; }).find("it says that it passed, and did not"),
            std::string::npos);
  EXPECT_NE(wrong_of([](json& d) {
              set_races(d["results"][0], std::vector<double>(200, 1.002));
              d["results"][0].erase("measured");
            }).find("200 of 200 races found a difference"),
            std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["results"][0]["alarms"] = 3; }).find("counts 3 alarms"), std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["results"][0]["ci95_low"][4] = 1.0005; }).find("its races give 1 alarms"),
            std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["results"][0]["ci95_low"].erase(0); }).find("199 a lower and 200 an upper end"),
            std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["results"][1]["measured"] = 0.03; }).find("its races give 0.031"),
            std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["results"][1]["repeats"] = 101; }).find("101 races are told"), std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["results"][1]["passed"] = false; }).find("one of its parts did not"),
            std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["results"].erase(0); }).find("lacks the part 'A against A'"), std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["results"][0] = d["results"][1]; }).find("3% of extra work planted' 2 times"),
            std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["results"][0]["alpha"] = 0.2; }).find("its alpha is 0.2"), std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["results"][0]["alarm_rate"] = 0.5; }).find("an alarm rate of 0.5"),
            std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["results"][1]["launches_per_sample"] = 77; }).find("no whole number of launches"),
            std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["results"][1]["problem"] = "other"; }).find("not one problem"), std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["device"]["key"] = "h200"; }).find("of the device 'h200'"), std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["passed"] = false; }).find("all of its parts did"), std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["created_at"] = "2130-01-01T00:00:00.000Z"; }).find("later than now"),
            std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["results"][1]["name"] = "A against A"; }).find("3.00% of extra work was to be"),
            std::string::npos);
  EXPECT_NE(wrong_of([](json& d) { d["results"][0]["sentence"] = "0 of 200"; }).find("it says '0 of 200'"),
            std::string::npos);
  EXPECT_THROW(verify_results_text(json{{"schema", kAaSelfTestSchema}}.dump(), "f"), Error);
  json unreadable = honest();
  unreadable["results"][1].erase("verdicts");
  EXPECT_THROW(verify_results_text(unreadable.dump(), "f"), Error);
}

}  // namespace
}  // namespace flashcore
