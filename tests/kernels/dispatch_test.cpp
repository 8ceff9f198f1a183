#include <gtest/gtest.h>

#include "core/error.h"
#include "kernels/family.h"

namespace flashcore {
namespace {

DeviceInfo gpu(const char* key, const char* arch) {
  DeviceInfo device;
  device.limits = limits_of_arch(arch);
  device.key = key;
  device.id = "cuda:0";
  return device;
}

Choice choose(const char* problem, const DeviceInfo& device) { return dispatch(Problem::parse(problem), device); }

TEST(Dispatch, TakesTheTunedEntryOfAProblem) {
  const Choice choice = choose("b1_h8_s512_d64_fp16", gpu("h200", "sm_90"));
  EXPECT_EQ(choice.candidate.family->name(), "sm90_short_fwd");
  EXPECT_NE(choice.reason.find("tuned table: b1_h8_s512_d64_fp16"), std::string::npos) << choice.reason;
}

TEST(Dispatch, TakesTheEntryOfANeighbour) {
  const Choice choice = choose("b1_h8_s500_d64_bf16", gpu("h200", "sm_90"));
  EXPECT_EQ(choice.candidate.family->name(), "sm90_short_fwd");
  EXPECT_NE(choice.reason.find("nearest entry"), std::string::npos) << choice.reason;
}

// A device without a table: few rows or few tiles to the family made for them, the rest to the other.
TEST(Dispatch, PrefersByProblemWhereNoTableSpeaks) {
  const DeviceInfo device = gpu("h100", "sm_90");
  for (const char* small : {"b1_h8_s512_d64_fp16", "b64_h32_hk8_sq1_sk4096_d128_bf16", "b1_h16_s1024_d128_bf16_causal"})
    EXPECT_EQ(choose(small, device).candidate.family->name(), "sm90_short_fwd") << small;
  for (const char* large : {"b16_h16_s2048_d64_fp16", "b1_h32_hk8_s4096_d128_bf16_causal"})
    EXPECT_EQ(choose(large, device).candidate.family->name(), "sm90_fwd") << large;
}

TEST(Dispatch, FallsBackByArchitectureAndDtype) {
  EXPECT_EQ(choose("b1_h8_s512_d64_fp16", gpu("a100", "sm_80")).candidate.family->name(), "sm80_fwd");
  EXPECT_EQ(choose("b1_h8_s512_d64_fp16", gpu("rtx", "sm_120")).candidate.family->name(), "sm80_fwd");
  EXPECT_EQ(choose("b1_h8_s512_d64_fp32", gpu("h200", "sm_90")).candidate.family->name(), "ref_fwd");
  EXPECT_EQ(choose("b1_h8_s512_d20_fp16", gpu("h200", "sm_90")).candidate.family->name(), "ref_fwd");
}

// Every default must be a config that its family calls valid, for shapes no suite has.
TEST(Dispatch, ChoicesAreValidForOddProblems) {
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"}) {
    const DeviceInfo device = gpu("none", arch);
    for (const char* id : {"b1_h1_s1_d8_fp16", "b3_h7_hk1_sq1_sk100000_d256_bf16", "b2_h12_s197_d64_bf16",
                           "b1_h16_s2048_d192_dv128_bf16_causal", "b1_h5_hk1_sq17_sk33_d248_fp16_causal",
                           "b1_h64_hk1_sq8_sk4096_d128_bf16", "b1_h128_hk1_sq1_sk8192_d192_dv128_bf16"}) {
      const Problem problem = Problem::parse(id);
      const Choice choice = dispatch(problem, device);
      EXPECT_FALSE(choice.candidate.family->why_invalid(choice.candidate.config, problem, device.limits))
          << id << " on " << arch << ": " << choice.candidate.print();
    }
  }
}

}  // namespace
}  // namespace flashcore
