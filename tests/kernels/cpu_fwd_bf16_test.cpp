#include "kernels/cpu_fwd/bf16.h"

#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/cpu_fwd_harness.h"

namespace flashcore::cpu_fwd {
namespace {

Config small_blocks() {
  Config config;
  config.block_m = 48;
  config.block_n = 64;
  return config;
}

PlacedProblem parse_valid(std::string_view id) {
  const PlacedProblem problem = PlacedProblem::parse(id);
  problem.validate();
  return problem;
}

std::atomic<int> g_taken{0}, g_refused{0};
template <Bf16Unit kUnit>
void attend_and_count(const Plan& plan, const Task& task, float* scratch) {
  if (task.row_count < kLeastBf16Rows) return attend(plan, task, scratch);
  if (attend_bf16(kUnit, plan, task, scratch)) {
    ++g_taken;
  } else {
    ++g_refused;
    attend(plan, task, scratch);
  }
}

// Each on the unit that it names, whichever the library would take.
class CpuForwardBf16 : public testing::TestWithParam<Bf16Unit> {
 protected:
  void SetUp() override {
    if (!has_bf16(GetParam())) {
      GTEST_SKIP() << (GetParam() == Bf16Unit::kTiles
                           ? "this machine has no AMX-BF16 or does not let the process use it"
                           : "this machine has no AVX512-BF16");
    }
    g_taken = g_refused = 0;
  }
  static AttendFunction attend_counted() {
    return GetParam() == Bf16Unit::kTiles ? attend_and_count<Bf16Unit::kTiles> : attend_and_count<Bf16Unit::kDots>;
  }
};

// Ragged rows, keys and head dims, all masks' edges, both sides of 16 and 32 rows.
TEST_P(CpuForwardBf16, ComputesWithinTheBound) {
  for (const char* id : {"b1_h2_s100_d80_bf16_causaltl", "b1_h2_sq97_sk161_d64_bf16_causal",
                         "b2_h6_hk2_sq33_sk131_d33_dv50_bf16_causal_strided", "b1_h2_sq12_sk300_d128_bf16",
                         "b1_h2_sq49_sk64_d256_dv17_bf16_bshd", "b1_h2_s130_d64_bf16_wl7_wr30_tl",
                         "b1_h2_s150_d1_dv1_bf16_causal_wl40", "b1_h2_sq70_sk20_d40_bf16_causal"}) {
    for (int kv_split : {1, 2}) {
      const PlacedProblem problem = parse_valid(id);
      Config config = small_blocks();
      config.kv_split = kv_split;
      const Judgement judgement = check(problem, config, Pattern::kNormal, 1, attend_counted());
      EXPECT_TRUE(judgement.correct) << describe(problem, config) << ": " << judgement.text;
    }
  }
  EXPECT_GT(g_taken, 0);
  EXPECT_EQ(g_refused, 0);
}

// All keys of a block are weighed, and 0 times NaN or infinity is NaN.
TEST_P(CpuForwardBf16, LeavesNonFiniteValuesToTheOtherPath) {
  const PlacedProblem problem = parse_valid("b1_h2_s70_d32_bf16_causal");
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 1);
    const Outcome before = run(problem, small_blocks(), inputs);
    for (int h = 0; h < 2; ++h) inputs.v.set(0, h, 50, 3, bad);
    const Outcome after = run(problem, small_blocks(), inputs, attend_counted());
    for (int row = 0; row < 70; ++row) {
      EXPECT_EQ(std::isfinite(after.o.at(0, 1, row, 3)), row < 50) << row;
      EXPECT_NEAR(before.o.at(0, 1, row, 7), after.o.at(0, 1, row, 7), 0.02) << row;
    }
  }
  EXPECT_GT(g_refused, 0);
}

// The instructions flush what is subnormal, of their inputs and of their sums.
TEST_P(CpuForwardBf16, LeavesTinyValuesToTheOtherPath) {
  const PlacedProblem problem = parse_valid("b1_h1_s64_d32_bf16");
  AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 1);
  for (int key = 0; key < 64; ++key) {
    for (int c = 0; c < 32; ++c) inputs.v.set(0, 0, key, c, std::ldexp(inputs.v.at(0, 0, key, c), -125));
  }
  const Outcome outcome = run(problem, small_blocks(), inputs, attend_counted());
  EXPECT_EQ(g_taken, 0);
  bool all_zero = true;
  for (int c = 0; c < 32; ++c) all_zero &= outcome.o.at(0, 0, 5, c) == 0.0f;
  EXPECT_FALSE(all_zero);
}

// A NaN in one key of K makes NaN of the rows that see it and of no other.
TEST_P(CpuForwardBf16, ANanScoreStaysInItsRows) {
  const PlacedProblem problem = parse_valid("b1_h1_s70_d32_bf16_causal");
  AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 1);
  inputs.k.set(0, 0, 41, 5, std::numeric_limits<float>::quiet_NaN());
  const Outcome outcome = run(problem, small_blocks(), inputs, attend_counted());
  EXPECT_EQ(g_refused, 0);
  for (int row = 0; row < 70; ++row) {
    EXPECT_EQ(std::isnan(outcome.o.at(0, 0, row, 9)), row >= 41) << row;
    EXPECT_EQ(std::isnan(outcome.lse[static_cast<std::size_t>(row)]), row >= 41) << row;
  }
}

// Tiles where the machine has them, else dot products.
TEST_P(CpuForwardBf16, IsWhatBf16RunsOn) {
  if (GetParam() == Bf16Unit::kDots && has_bf16(Bf16Unit::kTiles)) GTEST_SKIP() << "this machine has AMX-BF16 as well";
  const PlacedProblem problem = parse_valid("b1_h2_s64_d64_bf16");
  const AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 1);
  EXPECT_EQ(run(problem, small_blocks(), inputs).o.data, run(problem, small_blocks(), inputs, attend_counted()).o.data);
  EXPECT_GT(g_taken, 0);
}

INSTANTIATE_TEST_SUITE_P(Units, CpuForwardBf16, testing::Values(Bf16Unit::kDots, Bf16Unit::kTiles),
                         [](const auto& unit) { return unit.param == Bf16Unit::kTiles ? "Tiles" : "Dots"; });

}  // namespace
}  // namespace flashcore::cpu_fwd
