// Functions of the user's own in GPU families: those that say what a built-in one says have its results.

#include <gtest/gtest.h>

#include "core/problem_expressions.h"
#include "kernels/emulator_run.h"
#include "kernels/mutation_faults.h"

namespace flashcore::testing {
namespace {

constexpr const char* kCandidates[] = {
    kRef,
    "sm80_fwd:block_m=16,block_n=32,num_warps=1,num_stages=2",
    "sm80_fwd:block_m=64,block_n=48,num_warps=4,num_stages=1",
    "sm80_fwd:block_m=32,block_n=32,num_warps=2,num_stages=3,persistent=1",
    "sm90_fwd:num_consumers=2,block_n=32,num_stages=2,scheduler=1",
    "sm90_fwd:num_consumers=3,block_n=48,num_stages=2,scheduler=2",
    "sm90_fwd:num_consumers=1,block_n=64,num_stages=2,ping_pong=0,scheduler=0,q_stages=1",
};

struct Case {
  const char* problem;
  const char* score;
  const char* mask;
  const char* meaning;
};

TEST(Expressed, WhatIsSaidOtherwiseIsTheSame) {
  constexpr Case kCases[] = {
      {"b2_h2_hk1_sq150_sk170_d64_fp16", "", "j <= i + seqlen_kv - seqlen_q", "b2_h2_hk1_sq150_sk170_d64_fp16_causal"},
      {"b1_h2_hk1_sq100_sk300_d64_fp16_causal", "", "j >= i + 200 - 40", "b1_h2_hk1_sq100_sk300_d64_fp16_causal_wl40"},
      {"b1_h2_sq130_sk90_d64_fp16", "0.7 * tanh(s / 0.7)", "", "b1_h2_sq130_sk90_d64_fp16_softcap0.7"},
      {"b1_h2_sq130_sk90_d64_bf16_causal", "2 * s - s", "h < 5 && j >= 0", "b1_h2_sq130_sk90_d64_bf16_causal"},
      // Rows that see no key, and blocks that nobody sees.
      {"b1_h2_sq200_sk70_d32_fp16", "", "j <= i + seqlen_kv - seqlen_q", "b1_h2_sq200_sk70_d32_fp16_causal"},
      {"b1_h1_sq80_sk400_d64_fp16_sink", "", "j <= i + 320 && j >= i + 320 - 20",
       "b1_h1_sq80_sk400_d64_fp16_causal_wl20_sink"},
  };
  for (const Case& one : kCases) {
    Problem problem = Problem::parse(one.problem);
    set_expressions(problem, one.score, one.mask, {});
    for (const char* candidate : kCandidates) {
      EXPECT_EQ(run_on_emulator(device_sources(), candidate, {problem, Layout::kBshd}, 3, std::nullopt,
                                PlacedProblem::parse(std::string(one.meaning)))
                    .verdict(),
                "passed")
          << candidate << " " << one.problem << " " << one.score << " " << one.mask;
    }
  }
}

}  // namespace
}  // namespace flashcore::testing
