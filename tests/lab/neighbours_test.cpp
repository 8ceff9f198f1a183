#include "lab/verify/neighbours.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "core/error.h"
#include "device/device.h"
#include "kernels/batch_invariant.h"
#include "lab/fake.h"

namespace flashcore {
namespace {

constexpr std::uint64_t kSeed = 7;

TEST(Neighbours, ACaseIsNamedByItsSeedAndIndex) {
  const auto device = open_device("cpu");
  for (std::uint64_t index = 0; index < 20; ++index) {
    const auto drawn = random_neighbours(kSeed, index, 4, device->info());
    ASSERT_TRUE(drawn);
    ASSERT_EQ(drawn->neighbourhoods.size(), 5u);
    const auto again = random_neighbours(kSeed, index, 4, device->info());
    for (std::size_t i = 0; i < drawn->neighbourhoods.size(); ++i)
      EXPECT_EQ(drawn->neighbourhoods[i].words(), again->neighbourhoods[i].words());
  }
}

TEST(Neighbours, AreOfEveryKind) {
  const auto device = open_device("cpu");
  int padded = 0, packed = 0, paged = 0, dense = 0, longer = 0, few = 0, many = 0;
  for (std::uint64_t index = 0; index < 60; ++index) {
    const auto drawn = random_neighbours(kSeed, index, 4, device->info());
    ASSERT_TRUE(drawn);
    const Problem& alone = drawn->neighbourhoods.front().problem;
    std::set<std::int64_t> page_sizes;
    for (const Neighbourhood& n : drawn->neighbourhoods) {
      EXPECT_EQ(n.sequences[static_cast<std::size_t>(n.place)], drawn->lengths);
      EXPECT_EQ(n.problem.seqlen_q <= kFewInvariantRows, alone.seqlen_q <= kFewInvariantRows)
          << n.words() << " is of another kernel";
      padded += n.is_padded, packed += n.problem.ragged() && !n.is_padded, dense += !n.problem.ragged();
      longer += n.problem.seqlen_q > alone.seqlen_q;
      page_sizes.insert(n.problem.page_size);
    }
    paged += page_sizes.size() > 1;
    ++(alone.seqlen_q <= kFewInvariantRows ? few : many);
  }
  for (const int count : {padded, packed, paged, dense, longer, few, many}) EXPECT_GT(count, 3);
}

NeighbourVerdict judge_here(Device& device, const NeighbourCase& given, const std::string& pinned = {}) {
  NeighbourJudge judge(device, given, pinned);
  return judge_neighbours(given, [&](std::size_t which) { return judge.judge(which); });
}

int different(Device& device, int cases, const std::string& pinned) {
  int count = 0;
  for (std::uint64_t index = 0; index < static_cast<std::uint64_t>(cases); ++index) {
    const auto drawn = random_neighbours(kSeed, index, 5, device.info(), pinned);
    if (!drawn) continue;
    const NeighbourVerdict verdict = judge_here(device, *drawn, pinned);
    EXPECT_EQ(verdict.compared, 5);
    count += static_cast<int>(verdict.different.size());
    if (pinned.empty()) {
      EXPECT_TRUE(verdict.different.empty()) << verdict.different.begin()->second;
    }
  }
  return count;
}

TEST(Neighbours, OnTheCpuTheChosenCandidateKeepsItsBits) { EXPECT_EQ(different(*open_device("cpu"), 40, ""), 0); }

// Parts of the keys that go by how many keys and CTAs there are: what a batch is given without the promise.
TEST(Neighbours, AKernelThatDealsOutTheKeysOfAllIsFound) {
  EXPECT_GT(different(*open_device("emulator:sm_80"), 6, "sm80_decode_fwd:split_keys=0,min_blocks=1"), 0);
}

// What was judged before it must not be lost, and the next case gets a fresh child.
TEST(Neighbours, AKernelThatFaultsCrashesOrHangsHasNoBits) {
  const test::AllFakeFamilies families;
  const DeviceInfo device = open_device("cpu")->info();
  struct Case {
    const char *family, *says;
    double seconds;
  };
  for (const Case& c :
       {Case{"fake_device_fault", "illegal memory access", 0}, Case{"fake_segfault", "SIGSEGV", 0},
        Case{"fake_hang", "no answer after 5 s, in stage correctness: the worker process was ended", 5}}) {
    Worker worker("cpu", FLASHCORE_WORKER_HELPER);
    const NeighbourName name{kSeed, 0, 5, c.family};
    const auto drawn = random_neighbours(name.seed, name.index, name.neighbourhoods, device, name.pinned);
    ASSERT_TRUE(drawn);
    const NeighbourVerdict verdict = judge_neighbours(*drawn, ask_worker(worker, name, *drawn, c.seconds));
    EXPECT_EQ(verdict.compared, 5);
    ASSERT_EQ(verdict.different.size(), 5u);
    EXPECT_NE(verdict.different.begin()->second.find(c.says), std::string::npos) << verdict.different.begin()->second;
    const NeighbourName right{kSeed, 0, 5, "cpu_fwd"};
    const auto next = random_neighbours(right.seed, right.index, right.neighbourhoods, device, right.pinned);
    ASSERT_TRUE(next);
    EXPECT_TRUE(judge_neighbours(*next, ask_worker(worker, right, *next)).different.empty()) << "after " << c.family;
  }
}

TEST(Neighbours, OneThatHangsAmongOthersFailsAlone) {
  const auto device = open_device("cpu");
  const auto drawn = random_neighbours(kSeed, 0, 5, device->info());
  ASSERT_TRUE(drawn);
  const NeighbourVerdict verdict = judge_neighbours(*drawn, [](std::size_t which) -> NeighbourAnswer {
    return {which == 2 ? "no answer after 180 s" : "", "", false};
  });
  EXPECT_EQ(verdict.compared, 5);
  ASSERT_EQ(verdict.different.size(), 1u);
  EXPECT_EQ(verdict.different.at(2), "no answer after 180 s");
}

// A child that was started anew has not run the sequence alone.
TEST(Neighbours, WhicheverIsAskedForFirstHasTheSameData) {
  const auto device = open_device("emulator:sm_80");
  const std::string pinned = "sm80_decode_fwd:split_keys=0,min_blocks=1";
  const auto drawn = random_neighbours(kSeed, 0, 5, device->info(), pinned);
  ASSERT_TRUE(drawn);
  NeighbourJudge in_order(*device, *drawn, pinned);
  std::string last;
  for (std::size_t which = 0; which < drawn->neighbourhoods.size(); ++which) last = in_order.judge(which).different;
  NeighbourJudge anew(*device, *drawn, pinned);
  EXPECT_EQ(anew.judge(drawn->neighbourhoods.size() - 1).different, last);
}

// A warp caps its scores one of two ways, by its largest: that of a key or row behind the sequence must not count.
// Those are a neighbour's, which may be any numbers, or what a page held before.
TEST(Neighbours, WhatLiesBehindASequenceDoesNotDecideHowItsScoresAreCapped) {
  const auto device = open_device("emulator:sm_90");
  int judged = 0;
  for (std::uint64_t index = 0; judged < 8 && index < 4000; ++index) {
    const auto drawn = random_neighbours(kSeed, index, 5, device->info());
    if (!drawn) continue;
    const PlacedProblem& alone = drawn->neighbourhoods.front().problem;
    // Smaller caps are beyond the first way with any scores.
    if (alone.softcap.value_or(0) < 30 || !alone.ragged() || drawn->lengths.q <= kFewInvariantRows) continue;
    if (neighbour_candidate(alone, device->info()).family->name() != "sm90_fwd") continue;
    ++judged;
    const NeighbourVerdict verdict = judge_here(*device, *drawn);
    EXPECT_TRUE(verdict.different.empty()) << alone.id() << ": " << verdict.different.begin()->second;
  }
  EXPECT_EQ(judged, 8);
}

// Of a family by itself the config that it promises equal bits for; its default may divide a row's keys by the batch.
TEST(Neighbours, AFamilyIsHeldToWhatItPromises) {
  const DeviceInfo device = open_device("emulator:sm_90")->info();
  const Problem problem = Problem::parse("b1_h16_hk1_sq1_sk4000_d512_bf16_raggedfull");
  for (const char* family : {"sm80_wide_fwd", "sm90_wide_fwd"}) {
    const std::string candidate = neighbour_candidate(problem, device, family).print();
    EXPECT_TRUE(candidate.starts_with(family) && candidate.find("num_splits=1") != candidate.npos) << candidate;
  }
  EXPECT_THROW(neighbour_candidate(problem, device, "sm90_fwd"), Error) << "too wide for it";
}

TEST(BatchInvariant, OneCandidateForAllBatchesOfOneKind) {
  const DeviceInfo device = open_device("emulator:sm_90")->info();
  const auto chosen = [&](const char* id) {
    return batch_invariant_choice(Problem::parse(id), device).candidate.print();
  };
  const std::string decoding = chosen("b1_h8_hk2_sq1_sk77_d128_bf16_raggedfull_page16");
  EXPECT_TRUE(decoding.starts_with("sm80_decode_fwd:")) << decoding;
  EXPECT_NE(decoding.find("split_keys=1024"), std::string::npos) << decoding;
  for (const char* id :
       {"b64_h8_hk2_sq1_sk40000_d128_bf16_raggedrandom_page1", "b7_h8_hk2_sq1_sk9_d128_bf16_raggedhalving_page64"})
    EXPECT_EQ(chosen(id), decoding) << id;
  const std::string prompts = chosen("b1_h8_hk2_sq17_sk77_d128_bf16_causal_raggedfull");
  EXPECT_TRUE(prompts.starts_with("sm90_fwd:")) << prompts;
  EXPECT_EQ(chosen("b40_h8_hk2_sq9000_sk9000_d128_bf16_causal_raggedrandom"), prompts);
  // More rows of a sequence need larger tiles, which leave room for fewer CTAs and stages. None of it is seen in bits.
  const std::string more = chosen("b1_h8_hk2_sq16_sk77_d128_bf16_raggedfull_page16");
  EXPECT_NE(more, decoding);
  const auto deciding = [](const std::string& candidate) {
    return std::regex_replace(candidate, std::regex("(row_warps|num_stages|ctas_per_sm)=[0-9]+,"), "");
  };
  EXPECT_EQ(deciding(more), deciding(decoding));
}

// The families of 8-bit tensor cores promise nothing: decoding's has all rows.
TEST(BatchInvariant, EightBitsHavePartsOfAFixedSize) {
  const auto chosen = [](const char* id, const char* device) {
    return batch_invariant_choice(Problem::parse(id), open_device(device)->info()).candidate.print();
  };
  for (const char* device : {"emulator:sm_80", "emulator:sm_90"}) {
    const std::string decoding = chosen("b1_h16_hk4_sq1_sk100_d128_e4m3_raggedfull_page16", device);
    EXPECT_TRUE(decoding.starts_with("sm80_decode_fwd:")) << decoding;
    EXPECT_NE(decoding.find("split_keys=1024"), std::string::npos) << decoding;
    EXPECT_EQ(chosen("b64_h16_hk4_sq1_sk9000_d128_e4m3_raggedrandom_page16", device), decoding);
    EXPECT_EQ(chosen("b9_h2_s900_d64_e4m3", device), chosen("b1_h2_s70_d64_e4m3", device));
    EXPECT_TRUE(chosen("b9_h2_s900_d64_e4m3", device).starts_with("sm80_decode_fwd:"));
  }
}

TEST(BatchInvariant, WhatCannotBePromisedIsRefused) {
  const DeviceInfo device = open_device("emulator:sm_90")->info();
  const auto said = [&](const char* id) -> std::string {
    try {
      return batch_invariant_choice(Problem::parse(id), device).candidate.print();
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_TRUE(said("b1_h2_s65_d64_fp32").starts_with("ref_fwd")) << said("b1_h2_s65_d64_fp32");
  EXPECT_TRUE(said("b1_h2_s65_d64_bf16_softcap30").starts_with("sm90_fwd")) << said("b1_h2_s65_d64_bf16_softcap30");
  // A window that these sequences do not fill is one for others.
  EXPECT_EQ(said("b1_h2_sq17_sk100_d64_bf16_wl4200_raggedfull"), said("b9_h2_sq900_sk9000_d64_bf16_wl4200_raggedfull"));
  EXPECT_NE(said(R"({"id": "b1_h2_s65_d64_bf16", "score": "s * 2"})").find("score or mask function"),
            std::string::npos);
}

}  // namespace
}  // namespace flashcore
