// Turns of ping-pong of sm90_fwd that last until multiplies are done, or are of the softmax (tile/consumer.cuh): no
// consumer waits for ever, whatever blocks and tiles the others let pass. Those of 8 bits: sm90_fp8_test.cpp.

#include <gtest/gtest.h>

#include "kernels/candidates.h"
#include "kernels/emulator_run.h"

namespace flashcore::testing {
namespace {

// Two consumers, three, and four in two key groups, one of which may have a block more.
constexpr const char* kThree =
    "sm90_fwd:num_consumers=3,block_n=48,num_stages=2,q_stages=1,ping_pong=1,rescale_threshold=8,scheduler=1,cluster=1,"
    "key_groups=1";

class TurnsTest : public ::testing::TestWithParam<int> {};

TEST_P(TurnsTest, EndWhateverBlocksConsumersLetPass) {
  for (const char* candidate : {kSm90, kThree, kSm90Groups})
    for (const char* id :
         {"b1_h2_sq200_sk260_d64_fp16_causal", "b1_h1_s260_d64_bf16_causal_wl40", "b1_h8_s90_d64_fp16"}) {
      const std::string turns = with(candidate, "ping_pong", GetParam());
      EXPECT_EQ(run_on_emulator(device_sources(), turns, PlacedProblem::parse(id), 2).verdict(), "passed")
          << turns << " " << id;
    }
}

TEST_P(TurnsTest, EndInRaggedBatchesAndBesideFunctions) {
  for (const char* candidate : {kSm90, kThree})
    for (const char* id : {"b3_h2_hk1_sq200_sk150_d64_fp16_causal_raggedhalving", kSoftcap, kListed}) {
      const std::string turns = with(candidate, "ping_pong", GetParam());
      EXPECT_EQ(run_on_emulator(device_sources(), turns, PlacedProblem::parse(id), 2).verdict(), "passed")
          << turns << " " << id;
    }
}

INSTANTIATE_TEST_SUITE_P(All, TurnsTest, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace flashcore::testing
