// What follows from the raw samples of a peer run, and how sessions come together.

#include "lab/compare/peer_rows.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "core/random.h"
#include "lab/compare/peer_sessions.h"
#include "lab/measure/floor.h"
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
      {"chosen_by", "dispatch"},
      {"ended", "passed"},
      {"measured",
       {{{"run", seed},
         {"began_at", fmt::format("2026-11-{:02}T10:00:00.000Z", seed)},
         {"rounds", rounds},
         {"clock_mhz", 1800.0},
         {"samples_us", samples(rounds, 10, seed)}}}},
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
  for (const char* key : {"source_hash", "family", "config", "chosen_by", "condition"}) {
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

TEST(PeerRows, OtherTextOfTheSameCodeAndLaunchesIsTheSame) {
  json earlier = row_of(24, 2), row = row_of(24, 2, 5);
  earlier["code_hash"] = row["code_hash"] = "cc";
  earlier["launch_hash"] = row["launch_hash"] = "dd";
  row["source_hash"] = "bb";
  std::string why;
  EXPECT_EQ(append_session(earlier, row, 0.03, why)["sessions"], 2) << why;
  for (const char* key : {"code_hash", "launch_hash"}) {
    json other = row;
    other[key] = "another";
    EXPECT_EQ(append_session(earlier, other, 0.03, why), other) << key;
  }
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

// The row of a session that went wrong.
json failed_row(const char* ended, std::uint64_t seed) {
  json row = row_of(24, 2, seed);
  row["ended"] = ended;
  row["message"] = "it is so";
  row["time_us"] = nullptr;
  row["peers"] = json::array();
  return row;
}

TEST(PeerSessions, SecondsApartOnOneMachineAreOneSession) {
  const json earlier = row_of(24, 2, 1);
  std::string said;
  const auto later = [&](const char* began_at, const char* boot, int run) {
    json row = row_of(24, 2, 2);
    row["measured"][0].update({{"began_at", began_at}, {"boot", boot}, {"run", run}});
    return append_session(earlier, row, 0.03, said);
  };
  EXPECT_EQ(later("2026-11-01T10:00:05Z", "", 2), earlier);
  EXPECT_NE(said.find("at least 10 minutes"), std::string::npos) << said;
  EXPECT_EQ(later("2026-11-01T10:09:59Z", "b", 2), earlier) << "where the other was is not known";
  EXPECT_EQ(later("2026-11-01T09:55:00Z", "", 2), earlier) << "before it is as near as after it";
  EXPECT_EQ(later("yesterday", "", 2), earlier);
  EXPECT_EQ(later("2026-11-01T10:10:01Z", "", 2)["sessions"], 2);
  EXPECT_EQ(said, "");
  EXPECT_EQ(later("2026-12-01T10:10:01Z", "", 1), earlier) << "of the same run";
  json booted = earlier;
  booted["measured"][0]["boot"] = "a";
  EXPECT_EQ(why_same_session(booted, {{"began_at", "2026-11-01T10:00:05Z"}, {"run", 2}, {"boot", "b"}}), "");
  EXPECT_NE(why_same_session(booted, {{"began_at", "2026-11-01T10:00:05Z"}, {"run", 2}, {"boot", "a"}}), "");
}

TEST(PeerSessions, AWrongOutputWithdrawsTheRowForGood) {
  std::string said;
  const json gone = append_session(row_of(24, 2, 1), failed_row("incorrect", 2), 0.03, said);
  EXPECT_EQ(gone["ended"], "incorrect");
  EXPECT_TRUE(gone["time_us"].is_null());
  EXPECT_TRUE(gone["peers"].empty());
  EXPECT_NE(said.find("withdrawn"), std::string::npos);
  ASSERT_EQ(gone["measured"].size(), 2U);
  EXPECT_TRUE(gone["measured"][0].contains("samples_us"));
  EXPECT_FALSE(gone["measured"][1].contains("samples_us"));
  const json still = append_session(gone, row_of(24, 2, 3), 0.03, said);
  EXPECT_TRUE(still["time_us"].is_null());
  EXPECT_NE(said.find("stays withdrawn"), std::string::npos);
  EXPECT_TRUE(append_session(failed_row("incorrect", 1), row_of(24, 2, 2), 0.03, said)["time_us"].is_null())
      << "also where the wrong one came first";
  json mended = row_of(24, 2, 3);
  mended["source_hash"] = "bb";
  EXPECT_EQ(append_session(gone, mended, 0.03, said), mended) << "another source has nothing to do with it";
  json other_source = failed_row("incorrect", 2);
  other_source["source_hash"] = "bb";
  EXPECT_EQ(append_session(row_of(24, 2, 1), other_source, 0.03, said), row_of(24, 2, 1));
}

TEST(PeerSessions, ASessionThatCameToNothingIsKeptAndCountsForNothing) {
  std::string said;
  json kept = append_session(row_of(24, 2, 1), failed_row("crashed", 2), 0.03, said);
  EXPECT_EQ(kept["ended"], "passed");
  EXPECT_EQ(kept["measured"][1]["ended"], "crashed");
  EXPECT_EQ(kept["measured"][1]["message"], "it is so");
  kept = append_session(kept, row_of(24, 2, 3), 0.03, said);
  EXPECT_EQ(kept["sessions"], 2);
  EXPECT_EQ(kept["peers"][0]["sessions"], 2);
  EXPECT_EQ(kept["measured"].size(), 3U);
  EXPECT_NEAR(kept["peers"][0]["speedup"].get<double>(), 2, 0.02);
  const json first = append_session(failed_row("crashed", 1), row_of(24, 2, 2), 0.03, said);
  EXPECT_EQ(first["sessions"], 1);
  EXPECT_EQ(first["measured"].size(), 2U);
  EXPECT_EQ(first["ended"], "passed");
}

TEST(PeerSessions, APeerThatWasWrongOnceHasNoSessionLeft) {
  std::string said;
  json wrong = row_of(24, 2, 2);
  wrong["wrong_peers"] = {{"cudnn", {{"version", "9"}, {"why", "off by 1"}}}};
  wrong["refused"] = {{"cudnn", "its timed output is wrong: off by 1"}};
  wrong["peers"] = json::array();
  const json gone = append_session(row_of(24, 2, 1), wrong, 0.03, said);
  EXPECT_TRUE(gone["peers"].empty());
  const json again = append_session(gone, row_of(24, 2, 3), 0.03, said);
  EXPECT_TRUE(again["peers"].empty()) << "and does not come back";
  EXPECT_NE(again["refused"]["cudnn"].get<std::string>().find("off by 1"), std::string::npos);
  json mended = row_of(24, 2, 4);
  mended["peers"][0]["version"] = "10";
  EXPECT_EQ(append_session(again, mended, 0.03, said)["peers"].size(), 1U) << "another version is another peer";
}

TEST(PeerSessions, WhyAPeerIsMissingOutlivesSessionsThatDidNotAskForIt) {
  json one = row_of(24, 2, 1), other = row_of(24, 2, 2);
  one["refused"] = {{"flash", "head_dim 512: at most 256"}};
  std::string why;
  json merged = append_session(one, other, 0.03, why);
  EXPECT_EQ(merged["refused"]["flash"], "head_dim 512: at most 256");
  // Until it is timed.
  json third = row_of(24, 2, 3);
  third["peers"].push_back(third["peers"][0]);
  third["peers"][1]["name"] = "flash";
  derive_figures(third, 0.03);
  merged = append_session(merged, third, 0.03, why);
  EXPECT_FALSE(merged["refused"].contains("flash"));
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

TEST(Agreement, OnACpuAFactorOfTwoAndAHalfIsTheLimitAndOfTwoForLess) {
  const std::vector<double> ours = samples(24, 500, 1);
  EXPECT_EQ(judge_cpu_agreement(samples(24, 1200, 2), ours), "");
  EXPECT_EQ(judge_cpu_agreement(samples(24, 300, 2), ours), "");
  EXPECT_NE(judge_cpu_agreement(samples(24, 1300, 2), ours).find("2.5 is the limit"), std::string::npos);
  EXPECT_NE(judge_cpu_agreement(samples(24, 240, 2), ours).find("or 1/2"), std::string::npos);
  EXPECT_EQ(judge_cpu_agreement(samples(24, 60, 2), samples(24, 3, 1)), "") << "a call from Python takes its time";
  EXPECT_NE(judge_cpu_agreement(samples(24, 0.7, 2), samples(24, 3, 1)), "");
}

TEST(PeerRows, AFigureThatItsSamplesDoNotGiveIsFound) {
  const auto complaints = [](const json& row) { return audit_results({{"results", {row}}}); };
  json row = row_of(24, 2);
  row["correct"] = {
      {"rel_error", 1e-4}, {"timed_rel_error", 1e-4}, {"bound", 1e-3}, {"passed", true}, {"level", "full"}};
  row["peers"][0].update({{"correct", true}, {"rel_error", 1e-4}});
  row["measured"][0]["timed_in"] = "the laboratory";
  EXPECT_TRUE(complaints(row).empty()) << complaints(row).front();
  json faster = row;
  faster["peers"][0]["speedup"] = row["peers"][0]["speedup"].get<double>() * 1.01;
  ASSERT_EQ(complaints(faster).size(), 1U);
  EXPECT_NE(complaints(faster)[0].find("of the peer cudnn, /speedup"), std::string::npos);
  json renamed = row;
  renamed["device"] = {{"key", "h200"},
                       {"name", "NVIDIA H100 80GB HBM3"},
                       {"id", "cuda:0"},
                       {"memory_bytes", 1},
                       {"driver", "1"},
                       {"limits",
                        {{"kind", "cuda"},
                         {"arch", 90},
                         {"multiprocessors", 132},
                         {"shared_bytes_per_block", 1},
                         {"shared_bytes_per_multiprocessor", 1},
                         {"registers_per_multiprocessor", 1},
                         {"max_threads_per_block", 1},
                         {"max_threads_per_multiprocessor", 1},
                         {"l2_bytes", 1}}}};
  ASSERT_EQ(complaints(renamed).size(), 1U);
  EXPECT_NE(complaints(renamed)[0].find("not named like its key"), std::string::npos);
  json shorter = row;
  shorter["measured"][0]["samples_us"][3] = "x";
  ASSERT_FALSE(complaints(shorter).empty());
  EXPECT_NE(complaints(shorter).back().find("cannot be read"), std::string::npos);
}

TEST(PeerRows, TheFloorIsOfTheFastestCeilingsOfAllSessions) {
  const auto row_with = [](std::uint64_t seed, double matmul, double read, double empty) {
    json row = row_of(24, 2, seed);
    row["device"].update({{"id", "cuda:0"},
                          {"memory_bytes", 1},
                          {"limits",
                           {{"kind", "cuda"},
                            {"arch", 90},
                            {"multiprocessors", 132},
                            {"shared_bytes_per_block", 1},
                            {"shared_bytes_per_multiprocessor", 1},
                            {"registers_per_multiprocessor", 1},
                            {"max_threads_per_block", 1},
                            {"max_threads_per_multiprocessor", 1},
                            {"l2_bytes", 1}}},
                          {"ceilings",
                           {{"matmul_tflops_16bit", matmul},
                            {"fma_tflops_fp32", 0.0},
                            {"read_gbps", read},
                            {"cache_read_gbps", 0.0},
                            {"empty_launch_us", empty}}}});
    row["floor_us"] = floor_us(PlacedProblem::parse(row["problem"].get<std::string>()), row["device"].get<DeviceInfo>(),
                               row["device"]["ceilings"].get<Ceilings>());
    return row;
  };
  std::string why;
  const json fast = row_with(1, 900, 4600, 0.6), slow = row_with(2, 800, 4700, 0.7);
  for (const json& merged : {append_session(fast, slow, 0.03, why), append_session(slow, fast, 0.03, why)}) {
    ASSERT_EQ(merged["sessions"], 2) << why;
    EXPECT_EQ(merged["device"]["ceilings"]["matmul_tflops_16bit"], 900.0);
    EXPECT_EQ(merged["device"]["ceilings"]["read_gbps"], 4700.0);
    EXPECT_EQ(merged["device"]["ceilings"]["empty_launch_us"], 0.6);
    EXPECT_EQ(merged["floor_us"], row_with(1, 900, 4700, 0.6)["floor_us"]);
  }
}

TEST(PeerRows, AFileHasOneLineForEachResult) {
  const std::string text = print_rows({{"schema", "flashcore.bench/1"}, {"results", {row_of(24, 2), row_of(24, 3)}}});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 7);
  EXPECT_EQ(json::parse(text)["results"].size(), 2U);
}

}  // namespace
}  // namespace flashcore
