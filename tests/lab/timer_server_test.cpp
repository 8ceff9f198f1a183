// The lines that flashcore.peers and its like exchange with `flashcore timer-server`.
#include "lab/process/timer_server.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "lab/fake.h"

namespace flashcore {
namespace {

using nlohmann::json;

std::vector<json> answers(const std::vector<json>& questions) {
  std::stringstream in, out;
  for (const json& question : questions) in << question << "\n";
  EXPECT_EQ(timer_server_main("cpu", in, out), 0);
  std::vector<json> all;
  for (std::string line; std::getline(out, line);) all.push_back(json::parse(line));
  return all;
}

std::set<std::string> keys_of(const json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

json prepare(const std::string& candidate, const char* regime = "warm") {
  return {{"op", "prepare"},
          {"problem", "b1_h2_s40_d16_fp32"},
          {"candidate", candidate},
          {"regime", regime},
          {"gates", false}};
}

TEST(TimerServerTest, ASessionIsPreparedSampledCheckedAndReleased) {
  for (const char* regime : {"warm", "cold"}) {
    const auto a = answers({prepare("cpu_fwd", regime),
                            {{"op", "sample"}, {"handle", 0}},
                            {{"op", "sample"}, {"handle", 0}},
                            {{"op", "check"}, {"handle", 0}},
                            {{"op", "release"}, {"handle", 0}},
                            {{"op", "sample"}, {"handle", 0}},
                            {{"op", "release"}, {"handle", 7}}});
    ASSERT_EQ(a.size(), 7u);
    EXPECT_EQ(keys_of(a[0]), (std::set<std::string>{"bytes", "decode", "floor_us", "flops", "handle",
                                                    "launches_per_sample", "trial", "why"}));
    EXPECT_EQ(a[0]["handle"], 0);
    EXPECT_GE(a[0]["launches_per_sample"], 1);
    EXPECT_EQ(a[0]["trial"]["ended"], "passed");
    for (const int sample : {1, 2}) {
      EXPECT_EQ(keys_of(a[static_cast<std::size_t>(sample)]), (std::set<std::string>{"clock_mhz", "time_us"}));
      EXPECT_GT(a[static_cast<std::size_t>(sample)]["time_us"], 0.0);
    }
    EXPECT_EQ(keys_of(a[3]), (std::set<std::string>{"bound", "rel_error", "within"}));
    EXPECT_EQ(a[3]["within"], true);
    EXPECT_LE(a[3]["rel_error"], a[3]["bound"]);
    EXPECT_EQ(a[4], (json{{"released", 1}}));
    EXPECT_EQ(a[5], (json{{"error", "no session has the handle 0; 'prepare' gives one"}}));
    EXPECT_EQ(a[6], (json{{"error", "no session has the handle 7; 'prepare' gives one"}}));
  }
}

TEST(TimerServerTest, CheckJudgesTheTimedOutputs) {
  const test::AllFakeFamilies families;
  const auto check = [](const char* family) {
    return answers({prepare(family), {{"op", "sample"}, {"handle", 0}}, {{"op", "check"}, {"handle", 0}}})[2];
  };
  EXPECT_EQ(check("fake_none")["within"], true);
  for (const char* family : {"fake_wrong_tail", "fake_out_of_bounds", "fake_leaves_row"})
    EXPECT_EQ(check(family)["within"], false) << family;
  const json wrong = check("fake_wrong_tail");
  EXPECT_GT(wrong["rel_error"], wrong["bound"]);
}

TEST(TimerServerTest, GatesAreReportedBeforeAHandleIsGiven) {
  const test::AllFakeFamilies families;
  json question = prepare("fake_wrong_tail");
  question["gates"] = true;
  const auto a = answers({question, {{"op", "sing"}}, {{"op", "device"}}});
  EXPECT_EQ(a[0]["trial"]["ended"], "incorrect");
  EXPECT_FALSE(a[0].contains("handle"));
  EXPECT_NE(a[1]["error"].get<std::string>().find("unknown op 'sing'"), std::string::npos);
  EXPECT_EQ(a[2]["id"], "cpu");
}

}  // namespace
}  // namespace flashcore
