// What follows from the raw samples of a peer run, and how sessions come together.

#include "lab/compare/peer_rows.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "core/random.h"
#include "lab/verify/audit.h"

namespace flashcore {
namespace {

using nlohmann::json;

std::vector<double> samples(int rounds, double centre, std::uint64_t seed, double noise = 0.002) {
  SplitMix random(seed);
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i)
    times.push_back(centre * (1 + noise * (static_cast<double>(random.below(2001)) / 1000 - 1)));
  return times;
}

// A row with one peer that takes `ratio` times as long.
json row_of(int rounds, double ratio, std::uint64_t seed = 1) {
  json row = {
      {"problem", "b1_h8_s512_d64_fp16"},
      {"source_hash", "aa"},
      {"family", "sm90_fwd"},
      {"config", {{"block_n", 128}}},
      {"regime", "graph"},
      {"condition", "burst"},
      {"device", {{"key", "h200"}, {"name", "H200"}, {"driver", "1"}}},
      {"measured", {{{"rounds", rounds}, {"clock_mhz", 1800.0}, {"samples_us", samples(rounds, 10, seed)}}}},
      {"peers", {{{"name", "cudnn"}, {"version", "9"}, {"samples_us", {samples(rounds, 10 * ratio, seed + 77)}}}}}};
  derive_figures(row, 0.03);
  return row;
}

TEST(PeerRows, FiguresFollowFromTheSamples) {
  const json row = row_of(24, 2);
  const json& peer = row["peers"][0];
  EXPECT_NEAR(row["time_us"]["p50"].get<double>(), 10, 0.03);
  EXPECT_NEAR(peer["speedup"].get<double>(), 2, 0.01);
  EXPECT_LT(peer["ci95"][0].get<double>(), peer["speedup"].get<double>());
  EXPECT_GT(peer["ci95"][1].get<double>(), peer["speedup"].get<double>());
  EXPECT_EQ(peer["verdict"], "FASTER");
  EXPECT_EQ(row["sessions"], 1);
  EXPECT_EQ(peer["sessions"], 1);
  EXPECT_NEAR(row["kcycles"].get<double>(), 18, 0.1);
  const double flops = 4.0 * 8 * 512 * 512 * 64;
  EXPECT_NEAR(row["tflops"].get<double>(), flops / row["time_us"]["p50"].get<double>() * 1e-6, 1e-9);
}

TEST(PeerRows, FewerThanTwelveRoundsMakeNoInterval) {
  const json few = row_of(11, 2)["peers"][0];
  EXPECT_TRUE(few["ci95"].is_null());
  EXPECT_EQ(few["verdict"], "INCONCLUSIVE");
  EXPECT_EQ(few["no_interval"], "11 rounds in a session; at least 12 make an interval");
  EXPECT_FALSE(row_of(12, 2)["peers"][0]["ci95"].is_null());
  std::string why;
  const json merged = append_session(row_of(24, 2, 1), row_of(4, 2, 2), 0.03, why);
  EXPECT_TRUE(merged["peers"][0]["ci95"].is_null()) << "one short session spoils it";
}

TEST(PeerRows, SessionsAreAveragedAndTheirSpreadIsInTheInterval) {
  std::string why;
  const json one = row_of(24, 2.0, 1), other = row_of(24, 2.2, 2);
  const json merged = append_session(one, other, 0.03, why);
  EXPECT_EQ(why, "");
  const json& peer = merged["peers"][0];
  EXPECT_EQ(merged["sessions"], 2);
  EXPECT_EQ(peer["sessions"], 2);
  EXPECT_NEAR(peer["speedup"].get<double>(), std::sqrt(2.0 * 2.2), 0.01) << "the mean of both in the logarithm";
  const auto width = [](const json& p) { return p["ci95"][1].get<double>() - p["ci95"][0].get<double>(); };
  EXPECT_GT(width(peer), 5 * width(one["peers"][0])) << "sessions 10% apart say more than rounds 0.2% apart";
  EXPECT_EQ(merged["samples"], 48);
}

TEST(PeerRows, WhatIsNotTheSameBeginsAnew) {
  const json earlier = row_of(24, 2);
  for (const char* key : {"source_hash", "family", "config", "condition"}) {
    json row = row_of(24, 2, 5);
    row[key] = "another";
    std::string why;
    EXPECT_EQ(append_session(earlier, row, 0.03, why), row) << key;
    EXPECT_NE(why.find(key), std::string::npos);
  }
  json elsewhere = row_of(24, 2, 5);
  elsewhere["device"]["key"] = "h100";
  std::string why;
  EXPECT_EQ(append_session(earlier, elsewhere, 0.03, why)["sessions"], 1);
  EXPECT_NE(why.find("device"), std::string::npos);
}

TEST(PeerRows, APeerIsPairedOnlyWithItsOwnSessions) {
  std::string why;
  json later = row_of(24, 3, 9);
  later["peers"][0]["version"] = "10";
  const json renewed = append_session(row_of(24, 2), later, 0.03, why);
  EXPECT_NEAR(renewed["peers"][0]["speedup"].get<double>(), 3, 0.02) << "another version begins anew";
  EXPECT_EQ(renewed["peers"][0]["sessions"], 1);
  EXPECT_EQ(renewed["sessions"], 2);
  later["peers"][0]["name"] = "flash";
  const json both = append_session(row_of(24, 2), later, 0.03, why);
  ASSERT_EQ(both["peers"].size(), 2U) << "one that is not here today keeps its session";
  EXPECT_NEAR(both["peers"][1]["speedup"].get<double>(), 2, 0.02);
}

TEST(PeerRows, SamplesOfDifferentRoundsAreNotPaired) {
  json row = row_of(24, 2);
  row["peers"][0]["samples_us"][0].erase(0);
  EXPECT_THROW(derive_figures(row, 0.03), Error);
}

TEST(Agreement, ThreePercentIsTheLimit) {
  const std::vector<double> ours = samples(24, 10, 1);
  EXPECT_EQ(judge_agreement(ours, samples(24, 10.2, 2)), "");
  EXPECT_EQ(judge_agreement(ours, samples(24, 9.8, 2)), "");
  EXPECT_NE(judge_agreement(ours, samples(24, 10.5, 2)).find("3% is the limit"), std::string::npos);
  EXPECT_NE(judge_agreement(samples(24, 10.5, 2), ours), "");
  EXPECT_NEAR(disagreement(ours, samples(24, 20, 2)), -0.5, 0.01);
}

TEST(PeerRows, AFigureThatItsSamplesDoNotGiveIsFound) {
  const auto complaints = [](const json& row) { return audit_results({{"results", {row}}}); };
  const json row = row_of(24, 2);
  EXPECT_TRUE(complaints(row).empty()) << complaints(row).front();
  json faster = row;
  faster["peers"][0]["speedup"] = row["peers"][0]["speedup"].get<double>() * 1.01;
  ASSERT_EQ(complaints(faster).size(), 1U);
  EXPECT_NE(complaints(faster)[0].find("speed-up over cudnn"), std::string::npos);
  json shorter = row;
  shorter["measured"][0]["samples_us"][3] = "x";
  ASSERT_FALSE(complaints(shorter).empty());
  EXPECT_NE(complaints(shorter).back().find("cannot be read"), std::string::npos);
}

TEST(PeerRows, AFileHasOneLineForEachResult) {
  const std::string text = print_rows({{"schema", "flashcore.bench/1"}, {"results", {row_of(24, 2), row_of(24, 3)}}});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 7);
  EXPECT_EQ(json::parse(text)["results"].size(), 2U);
}

}  // namespace
}  // namespace flashcore
