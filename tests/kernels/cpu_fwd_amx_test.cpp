#include "kernels/cpu_fwd/amx.h"

#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/cpu_fwd_harness.h"

namespace flashcore::cpu_fwd {
namespace {

Config amx_blocks() {
  Config config;
  config.block_m = 48;
  config.block_n = 64;
  return config;
}

PlacedProblem amx_problem(std::string_view id) {
  const PlacedProblem problem = PlacedProblem::parse(id);
  problem.validate();
  return problem;
}

std::atomic<int> g_taken{0}, g_refused{0};
void attend_and_count(const Plan& plan, const Task& task, float* scratch) {
  if (task.row_count < kLeastAmxRows) return attend(plan, task, scratch);
  if (attend_amx(plan, task, scratch)) {
    ++g_taken;
  } else {
    ++g_refused;
    attend(plan, task, scratch);
  }
}

class CpuForwardAmx : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_amx()) GTEST_SKIP() << "this machine has no AMX-BF16 or does not let the process use it";
    g_taken = g_refused = 0;
  }
};

// Ragged rows, keys and head dims, all masks' edges, both sides of 16 and 32 rows.
TEST_F(CpuForwardAmx, ComputesWithinTheBound) {
  for (const char* id : {"b1_h2_s100_d80_bf16_causaltl", "b1_h2_sq97_sk161_d64_bf16_causal",
                         "b2_h6_hk2_sq33_sk131_d33_dv50_bf16_causal_strided", "b1_h2_sq12_sk300_d128_bf16",
                         "b1_h2_sq49_sk64_d256_dv17_bf16_bshd", "b1_h2_s130_d64_bf16_wl7_wr30_tl",
                         "b1_h2_s150_d1_dv1_bf16_causal_wl40", "b1_h2_sq70_sk20_d40_bf16_causal"}) {
    for (int kv_split : {1, 2}) {
      const PlacedProblem problem = amx_problem(id);
      Config config = amx_blocks();
      config.kv_split = kv_split;
      const Judgement judgement = check(problem, config, Pattern::kNormal, 1, attend_and_count);
      EXPECT_TRUE(judgement.correct) << describe(problem, config) << ": " << judgement.text;
    }
  }
  EXPECT_GT(g_taken, 0);
  EXPECT_EQ(g_refused, 0);
}

// A tile weighs all keys of a block, and 0 times NaN or infinity is NaN.
TEST_F(CpuForwardAmx, LeavesNonFiniteValuesToTheOtherPath) {
  const PlacedProblem problem = amx_problem("b1_h2_s70_d32_bf16_causal");
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 1);
    const Outcome before = run(problem, amx_blocks(), inputs);
    for (int h = 0; h < 2; ++h) inputs.v.set(0, h, 50, 3, bad);
    const Outcome after = run(problem, amx_blocks(), inputs, attend_and_count);
    for (int row = 0; row < 70; ++row) {
      EXPECT_EQ(std::isfinite(after.o.at(0, 1, row, 3)), row < 50) << row;
      EXPECT_NEAR(before.o.at(0, 1, row, 7), after.o.at(0, 1, row, 7), 0.02) << row;
    }
  }
  EXPECT_GT(g_refused, 0);
}

// The instructions flush what is subnormal, of their inputs and of their sums.
TEST_F(CpuForwardAmx, LeavesTinyValuesToTheOtherPath) {
  const PlacedProblem problem = amx_problem("b1_h1_s64_d32_bf16");
  AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 1);
  for (int key = 0; key < 64; ++key) {
    for (int c = 0; c < 32; ++c) inputs.v.set(0, 0, key, c, std::ldexp(inputs.v.at(0, 0, key, c), -125));
  }
  const Outcome outcome = run(problem, amx_blocks(), inputs, attend_and_count);
  EXPECT_EQ(g_taken, 0);
  bool all_zero = true;
  for (int c = 0; c < 32; ++c) all_zero &= outcome.o.at(0, 0, 5, c) == 0.0f;
  EXPECT_FALSE(all_zero);
}

// A NaN in one key of K makes NaN of the rows that see it and of no other.
TEST_F(CpuForwardAmx, ANanScoreStaysInItsRows) {
  const PlacedProblem problem = amx_problem("b1_h1_s70_d32_bf16_causal");
  AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 1);
  inputs.k.set(0, 0, 41, 5, std::numeric_limits<float>::quiet_NaN());
  const Outcome outcome = run(problem, amx_blocks(), inputs, attend_and_count);
  EXPECT_EQ(g_refused, 0);
  for (int row = 0; row < 70; ++row) {
    EXPECT_EQ(std::isnan(outcome.o.at(0, 0, row, 9)), row >= 41) << row;
    EXPECT_EQ(std::isnan(outcome.lse[static_cast<std::size_t>(row)]), row >= 41) << row;
  }
}

TEST_F(CpuForwardAmx, IsWhatBf16RunsOn) {
  const PlacedProblem problem = amx_problem("b1_h2_s64_d64_bf16");
  const AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 1);
  EXPECT_EQ(run(problem, amx_blocks(), inputs).o.data, run(problem, amx_blocks(), inputs, attend_and_count).o.data);
  EXPECT_GT(g_taken, 0);
}

}  // namespace
}  // namespace flashcore::cpu_fwd
