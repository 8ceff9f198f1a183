// The laboratory as a party of a peer run: the lines that it exchanges with `flashcore peers`.
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
  return {{"op", "prepare"}, {"problem", "b1_h2_s40_d16_fp32"}, {"candidate", candidate}, {"regime", regime}};
}

TEST(TimerServerTest, ASessionIsPreparedSampledJudgedAndReleased) {
  for (const char* regime : {"warm", "cold"}) {
    const auto a = answers({prepare("cpu_fwd", regime),
                            {{"op", "sample"}, {"handle", 0}},
                            {{"op", "sample"}, {"handle", 0}, {"warm_up_ms", 1}, {"measure_ms", 1}},
                            {{"op", "output"}, {"handle", 0}, {"folder", "/nowhere"}},
                            {{"op", "release"}, {"handle", 0}},
                            {{"op", "sample"}, {"handle", 0}},
                            {{"op", "release"}, {"handle", 7}}});
    ASSERT_EQ(a.size(), 7u);
    EXPECT_EQ(keys_of(a[0]), (std::set<std::string>{"handle", "launches"}));
    EXPECT_EQ(a[0]["handle"], 0);
    EXPECT_GE(a[0]["launches"], 1);
    for (const int sample : {1, 2}) {
      EXPECT_EQ(keys_of(a[static_cast<std::size_t>(sample)]), (std::set<std::string>{"clock_mhz", "time_us"}));
      EXPECT_GT(a[static_cast<std::size_t>(sample)]["time_us"], 0.0);
    }
    EXPECT_EQ(a[3]["wrong"], "");
    EXPECT_GT(a[3]["rel_error"], 0.0) << "of the timed outputs, not of none";
    EXPECT_LT(a[3]["rel_error"], 1e-5);
    EXPECT_EQ(a[4], (json{{"released", 1}}));
    EXPECT_EQ(a[5], (json{{"error", "no session has the handle 0; 'prepare' gives one"}}));
    EXPECT_EQ(a[6], (json{{"error", "no session has the handle 7; 'prepare' gives one"}}));
  }
}

TEST(TimerServerTest, TheTimedOutputsAreJudged) {
  const test::AllFakeFamilies families;
  const auto wrong = [](const char* family) {
    return answers({prepare(family), {{"op", "sample"}, {"handle", 0}}, {{"op", "output"}, {"handle", 0}}})[2]
        .at("wrong")
        .get<std::string>();
  };
  EXPECT_EQ(wrong("fake_none"), "");
  for (const char* family : {"fake_wrong_tail", "fake_out_of_bounds", "fake_leaves_row"})
    EXPECT_NE(wrong(family), "") << family;
}

TEST(TimerServerTest, TheGatesAreThoseOfAPublishedTime) {
  const test::AllFakeFamilies families;
  json bad = prepare("fake_wrong_tail"), good = prepare("cpu_fwd"), chosen = prepare("cpu_fwd");
  for (json* question : {&bad, &good, &chosen}) (*question)["op"] = "judge";
  chosen["candidate"] = nullptr;
  const auto a = answers({bad, good, chosen, {{"op", "sing"}}, {{"op", "device"}}, {{"op", "hello"}}});
  EXPECT_EQ(a[0]["trial"]["ended"], "incorrect");
  EXPECT_EQ(a[1]["trial"]["ended"], "passed");
  EXPECT_EQ(a[1]["trial"]["chosen_by"], "caller");
  EXPECT_TRUE(a[1]["trial"]["timing"].is_object()) << "timed, so that kept results, the floor and timed outputs count";
  EXPECT_EQ(a[2]["trial"]["chosen_by"], "dispatch");
  EXPECT_NE(a[3]["error"].get<std::string>().find("unknown op 'sing'"), std::string::npos);
  EXPECT_EQ(a[4]["device"]["id"], "cpu");
  EXPECT_TRUE(a[4].contains("ceilings"));
  EXPECT_EQ(a[5]["protocol"], 1);
}

}  // namespace
}  // namespace flashcore
