// Score and mask functions of the user's own on the CPU: beside the reference on every instruction set, and NaN behind
// a mask.
#include <cmath>
#include <limits>

#include "core/problem_expressions.h"
#include "device/cpu/simd_targets.h"
#include "kernels/cpu_fwd_harness.h"

#include <hwy/targets.h>

namespace flashcore::cpu_fwd {
namespace {

PlacedProblem problem_with(const char* id, const char* score, const char* mask, const char* tensors) {
  PlacedProblem p = PlacedProblem::parse(id);
  set_expressions(p, score, mask, parse_tensors(tensors));
  return p;
}

// Many blocks of rows and keys.
Config config_of_parts(int kv_split) {
  Config config;
  config.block_m = 24, config.block_n = 32, config.kv_split = kv_split;
  return config;
}

void expect_right(const PlacedProblem& problem, const Config& config, Pattern pattern = Pattern::kNormal) {
  const Judgement judgement = check(problem, config, pattern);
  EXPECT_TRUE(judgement.correct) << problem.portable() << " " << to_string(pattern) << ": " << judgement.text;
}

struct Asked {
  const char *id, *score, *mask, *tensors;
};
constexpr Asked kAsked[] = {
    {"b1_h4_hk2_sq65_sk129_d64_fp32", "30 * tanh(s / 30) + slope[h] * (j - i)", "i // 20 == j // 20",
     "slope: float[1]"},
    {"b2_h6_hk2_sq70_sk70_d40_bf16_causal_strided", "s + bias[b, h, i, j]", "q[b, i] == k[b, j]",
     "bias: float[4], q: int[2], k: int[2]"},
    {"b1_h4_hk2_sq70_sk150_d33_dv50_fp16", "", "j < 40 || j <= i + 3 || keep[h, j]", "keep: bool[2]"},
    {"b1_h3_hk1_sq2_sk200_d64_fp16_softcap5_alibi", "max(s, -1) * (1 + hk)", "(i + j) % 7 != 3 && j >= 64", ""},
    {"b1_h2_s90_d16_fp32_wl30_wr9_sink", "where(j % 2 == 0, s, s / 2)", "abs(i - j) > 4", ""},
};

TEST(CpuFunctions, EveryInstructionSetOfThisMachine) {
  hwy::SetSupportedTargetsForTest(0);
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(hwy::TargetName(target));
    for (const auto& [id, score, mask, tensors] : kAsked) {
      const PlacedProblem problem = problem_with(id, score, mask, tensors);
      for (const int kv_split : {1, 2}) expect_right(problem, config_of_parts(kv_split));
      expect_right(problem, default_config(problem), Pattern::kNonFinite);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(CpuFunctions, HiddenKeysContributeNothingEvenIfTheirValuesAreNan) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const char* mask : {"j != 50 || i >= 60", "shown[j] || i >= 60"}) {
    const bool tensor = mask[0] == 's';
    const PlacedProblem problem = problem_with("b1_h2_s70_d32_fp32", "s * 0.5", mask, tensor ? "shown: bool[1]" : "");
    AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 1);
    if (tensor) {
      std::fill(inputs.tensors[0].data.begin(), inputs.tensors[0].data.end(), std::byte{1});
      inputs.tensors[0].data[50] = std::byte{0};
    }
    const Outcome before = run(problem, config_of_parts(1), inputs);
    for (int c = 0; c < 32; ++c) inputs.v.set(0, 1, 50, c, kNan), inputs.k.set(0, 1, 50, c, kNan);
    const Outcome after = run(problem, config_of_parts(1), inputs);
    for (int row = 0; row < 70; ++row) {
      if (row < 60) EXPECT_NEAR(before.o.at(0, 1, row, 7), after.o.at(0, 1, row, 7), 1e-6) << mask << row;
      else EXPECT_TRUE(std::isnan(after.o.at(0, 1, row, 7))) << mask << row;
    }
  }
}

}  // namespace
}  // namespace flashcore::cpu_fwd
