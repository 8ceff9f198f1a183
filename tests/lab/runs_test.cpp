#include "lab/verify/runs.h"

#include <gtest/gtest.h>

#include <functional>

namespace flashcore {
namespace {

using nlohmann::json;

json session(const char* run, double first) {
  std::vector<double> samples;
  for (int i = 0; i < 12; ++i) samples.push_back(first + 0.01 * i);
  return {{"run", run}, {"boot", "b"}, {"commit", "c"}, {"rounds", 12}, {"samples_us", samples}};
}

json rows() {
  return {{{"name", "one"}, {"measured", {session("r1", 1), session("r2", 2)}}},
          {{"name", "two"}, {"measured", {session("r1", 3), session("r2", 4)}}}};
}

TEST(Runs, OfOneProcessAgree) { EXPECT_TRUE(audit_runs(rows()).empty()); }

TEST(Runs, WhatAProcessHasOneOfIsNotTwo) {
  const auto wrong_of = [](const std::function<void(json&)>& edit) {
    json edited = rows();
    edit(edited);
    const std::vector<std::string> wrong = audit_runs(edited);
    return wrong.size() == 1 ? wrong[0] : std::to_string(wrong.size()) + " complaints";
  };
  EXPECT_EQ(wrong_of([](json& r) { r[1]["measured"][0]["commit"] = "d"; }),
            "two: session 1 of r1 has the commit \"d\", and one: session 1 of the same run \"c\"");
  EXPECT_EQ(wrong_of([](json& r) {
              r[0]["measured"][1]["condition"] = "burst";
              r[1]["measured"][1]["condition"] = "sustained";
            }),
            "two: session 2 of r2 has the condition \"sustained\", and one: session 2 of the same run \"burst\"");
  EXPECT_EQ(wrong_of([](json& r) { r[1]["measured"][1].erase("boot"); }), "0 complaints") << "it ended early";
  EXPECT_EQ(wrong_of([](json& r) { r[1]["measured"][0]["samples_us"].erase(3); }),
            "two: session 1 has 12 rounds and 11 samples");
  EXPECT_EQ(wrong_of([](json& r) { r[0]["measured"][1]["samples_us"] = r[0]["measured"][0]["samples_us"]; }),
            "one: session 2 has the same samples as one: session 1");
  EXPECT_EQ(wrong_of([](json& r) { r[0]["measured"][1] = 3; }), "0 complaints") << "who reads figures says so";
}

}  // namespace
}  // namespace flashcore
