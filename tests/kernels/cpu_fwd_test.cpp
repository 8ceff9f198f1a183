#include "kernels/cpu_fwd_harness.h"

#include <cmath>
#include <limits>

#include "device/cpu/ceilings.h"
#include "device/cpu/simd_targets.h"

#include <hwy/targets.h>

namespace flashcore::cpu_fwd {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

PlacedProblem problem_of(std::string_view id) {
  const PlacedProblem problem = PlacedProblem::parse(id);
  problem.validate();
  return problem;
}

void expect_correct(const PlacedProblem& problem, const Config& config, Pattern pattern = Pattern::kNormal) {
  const Judgement judgement = check(problem, config, pattern);
  EXPECT_TRUE(judgement.correct) << describe(problem, config) << " " << to_string(pattern) << ": " << judgement.text;
}

// Small blocks, so that short sequences still have several of them, and ragged ones.
Config small_blocks() {
  Config config;
  config.block_m = 24;
  config.block_n = 32;
  return config;
}

// Windows of one key, within a block, over several; symmetric, shifted, without a right or a left end.
constexpr Mask kMasks[] = {Mask(),
                           Mask::causal(),
                           Mask::causal(Alignment::kTopLeft),
                           {Alignment::kBottomRight, 0, 0},
                           {Alignment::kBottomRight, 9, 0},
                           {Alignment::kTopLeft, 40, 0},
                           {Alignment::kBottomRight, 20, 20},
                           {Alignment::kTopLeft, 35, 3},
                           {Alignment::kBottomRight, 50, std::nullopt},
                           {Alignment::kTopLeft, std::nullopt, 21}};

TEST(CpuForward, EveryPairOfLengths) {
  constexpr int kLengths[] = {0, 1, 17, 33, 63, 65, 100, 129};
  int index = 0;
  for (int seqlen_q : kLengths) {
    for (int seqlen_kv : kLengths) {
      for (const Mask& mask : kMasks) {
        PlacedProblem problem;
        problem.dtype = static_cast<DType>(index % 3);
        problem.layout = static_cast<Layout>(index / 3 % 3);
        problem.heads_q = 2;
        problem.seqlen_q = seqlen_q;
        problem.seqlen_kv = seqlen_kv;
        problem.head_dim = problem.head_dim_v = 40;
        problem.mask = mask;
        expect_correct(problem, small_blocks());
        ++index;
      }
    }
  }
}

TEST(CpuForward, EveryHeadDim) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int head_dim : {1, 2, 3, 7, 8, 15, 17, 31, 33, 40, 64, 80, 100, 128, 255, 256}) {
      for (int head_dim_v : {head_dim, 1, 48, 256}) {
        PlacedProblem problem;
        problem.dtype = dtype;
        problem.heads_q = problem.heads_kv = 2;
        problem.seqlen_q = 30;
        problem.seqlen_kv = 70;
        problem.head_dim = head_dim;
        problem.head_dim_v = head_dim_v;
        problem.mask = Mask::causal();
        problem.layout = Layout::kStrided;
        expect_correct(problem, small_blocks());
      }
    }
  }
}

TEST(CpuForward, EveryGroupSize) {
  for (int group : {1, 2, 3, 5, 6, 7, 8, 12}) {
    for (int seqlen_q : {1, 5, 33}) {
      for (const Mask& mask : kMasks) {
        PlacedProblem problem;
        problem.dtype = DType::kBF16;
        problem.batch = 2;
        problem.heads_kv = 2;
        problem.heads_q = 2 * group;
        problem.seqlen_q = seqlen_q;
        problem.seqlen_kv = 90;
        problem.mask = mask;
        problem.layout = Layout::kBshd;
        expect_correct(problem, small_blocks());
      }
    }
  }
}

TEST(CpuForward, EveryPattern) {
  for (Pattern pattern : all_patterns()) {
    for (const char* id :
         {"b1_h4_hk2_sq65_sk129_d64_fp32_causal", "b1_h4_hk2_sq65_sk129_d64_fp16", "b1_h2_s100_d80_bf16_causaltl",
          "b2_h2_sq3_sk200_d128_fp16_causal", "b1_h4_hk2_sq65_sk129_d64_fp32_causal_wl50",
          "b1_h2_s100_d80_bf16_wl7_wr30_tl", "b1_h2_sq3_sk200_d64_fp16_causal_wl99"}) {
      const PlacedProblem problem = problem_of(id);
      Config split = small_blocks();
      split.kv_split = 2;
      expect_correct(problem, small_blocks(), pattern);
      expect_correct(problem, split, pattern);
      expect_correct(problem, default_config(problem), pattern);
    }
  }
}

TEST(CpuForward, EveryValidConfig) {
  const Family& family = family_by_name("cpu_fwd");
  const PlacedProblem problem = problem_of("b1_h4_hk2_sq70_sk150_d24_dv40_fp16_causal_strided");
  const AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 3);
  const Reference reference = reference_forward(problem, inputs, RowSample());
  const auto configs = feasible_configs(family, problem, cpu().info().limits);
  ASSERT_GT(configs.size(), 20u);
  for (const ConfigValues& values : configs) {
    const Config config = config_from<Config>(values);
    const Judgement judgement = judge(problem, reference, run(problem, config, inputs));
    EXPECT_TRUE(judgement.correct) << describe(problem, config) << ": " << judgement.text;
  }
}

// Machines with less than this one's instruction set run other code: it is tested here too.
TEST(CpuForward, EveryInstructionSetOfThisMachine) {
  hwy::SetSupportedTargetsForTest(0);
  for (std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(hwy::TargetName(target));
    EXPECT_STREQ(simd_target_name(), hwy::TargetName(target));
    for (const char* id : {"b1_h4_hk2_sq65_sk129_d64_fp32_causal", "b1_h5_hk1_sq13_sk70_d33_dv50_fp16_causal_strided",
                           "b1_h2_s100_d80_dv1_bf16", "b1_h7_hk1_sq1_sk200_d1_dv9_fp16"}) {
      const PlacedProblem problem = problem_of(id);
      expect_correct(problem, small_blocks());
      expect_correct(problem, default_config(problem), Pattern::kNonFinite);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(CpuForward, SameBitsEachTimeWhateverTheThreads) {
  const PlacedProblem problem = problem_of("b2_h4_hk2_sq150_sk300_d64_bf16_causal");
  const AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 5);
  for (int kv_split : {1, 4}) {
    Config config = small_blocks();
    config.kv_split = kv_split;
    config.threads = 1;
    const Outcome first = run(problem, config, inputs);
    for (int threads : {0, 1, 0}) {
      config.threads = threads;
      const Outcome again = run(problem, config, inputs);
      EXPECT_EQ(first.o.data, again.o.data);
      EXPECT_EQ(0, std::memcmp(first.lse.data(), again.lse.data(), first.lse.size() * sizeof(float)));
    }
  }
}

TEST(CpuForward, OneObjectCanBeCalledAgain) {
  const PlacedProblem problem = problem_of("b1_h2_s64_d32_fp32");
  AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 1);
  HostTensor o(problem.dtype, make_layouts(problem).o);
  const AttentionArgs args{inputs.q.data.data(), inputs.k.data.data(), inputs.v.data.data(), o.data.data(), nullptr,
                           make_layouts(problem)};
  const Launch launch = family_by_name("cpu_fwd").cpu_launch(values_of(default_config(problem)), problem, args);
  launch();
  // New input in the same place, and nobody wants the lse.
  const AttentionInputs others = make_inputs(problem, Pattern::kNormal, 2);
  inputs.q.data = others.q.data;
  launch();
  const AttentionInputs mixed{others.q, inputs.k, inputs.v};
  EXPECT_EQ(o.data, run(problem, default_config(problem), mixed).o.data);
}

TEST(CpuForward, MaskedKeysContributeNothingEvenIfTheirValuesAreNan) {
  const PlacedProblem problem = problem_of("b1_h2_s70_d32_fp32_causal");
  AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 1);
  const Outcome before = run(problem, small_blocks(), inputs);
  constexpr int kKey = 50;
  for (int h = 0; h < 2; ++h) {
    for (int c = 0; c < 32; ++c) {
      inputs.v.set(0, h, kKey, c, kNan);
      inputs.k.set(0, h, kKey, c, kNan);
    }
  }
  const Outcome after = run(problem, small_blocks(), inputs);
  for (int row = 0; row < 70; ++row) {
    if (row < kKey) {
      EXPECT_EQ(before.o.at(0, 1, row, 7), after.o.at(0, 1, row, 7)) << row;
      EXPECT_EQ(before.lse[70 + static_cast<std::size_t>(row)], after.lse[70 + static_cast<std::size_t>(row)]) << row;
    } else {
      EXPECT_TRUE(std::isnan(after.o.at(0, 1, row, 7))) << row;
      EXPECT_TRUE(std::isnan(after.lse[70 + static_cast<std::size_t>(row)])) << row;
    }
  }
}

TEST(CpuForward, RowsThatSeeNothingAreZeroAndMinusInfinity) {
  for (const char* id : {"b1_h2_sq33_sk0_d32_fp32", "b1_h2_sq33_sk5_d32_fp16_causal"}) {
    const PlacedProblem problem = problem_of(id);
    const Outcome result = run(problem, default_config(problem), make_inputs(problem, Pattern::kNormal, 1));
    for (int row = 0; row < (problem.seqlen_kv == 0 ? 33 : 28); ++row) {
      for (int c = 0; c < 32; ++c) EXPECT_EQ(result.o.at(0, 1, row, c), 0.0f);
      EXPECT_EQ(result.lse[33 + static_cast<std::size_t>(row)], -std::numeric_limits<float>::infinity());
    }
  }
}

TEST(CpuForward, AnyScale) {
  for (double scale : {1e-6, 0.01, 5.0, 1e3}) {
    PlacedProblem problem = problem_of("b1_h2_sq40_sk100_d16_fp32_causal");
    problem.scale = scale;
    expect_correct(problem, small_blocks());
    Config split = small_blocks();
    split.kv_split = 2;
    expect_correct(problem, split);
  }
}

TEST(CpuForward, DefaultConfigIsValidOnEveryMachine) {
  const Family& family = family_by_name("cpu_fwd");
  for (int cores : {1, 2, 3, 16, 128}) {
    DeviceLimits limits = cpu().info().limits;
    limits.multiprocessors = cores;
    for (const char* id : {"b1_h1_sq1_sk1_d1_fp32", "b1_h8_s2048_d128_fp16", "b1_h8_hk1_sq1_sk131072_d128_bf16",
                           "b1_h1_sq0_sk0_d64_fp32", "b64_h32_s64_d256_fp32", "b1_h2_sq40_sk7_d40_bf16_causal"}) {
      const PlacedProblem problem = PlacedProblem::parse(id);
      const ConfigValues config = family.default_config(problem, limits);
      EXPECT_EQ(family.why_invalid(config, problem, limits), std::nullopt)
          << id << " on " << cores << " cores: " << family.space().print(config);
    }
  }
}

TEST(CpuForward, SaysWhyNot) {
  const Family& family = family_by_name("cpu_fwd");
  DeviceLimits limits = cpu().info().limits;
  limits.multiprocessors = 2;
  const PlacedProblem problem = PlacedProblem::parse("b1_h1_sq100_sk100_d64_fp32");
  const auto reason = [&](const char* text) {
    return family
        .why_invalid(family.space().parse(text, family.default_config(problem, limits), "cpu_fwd"), problem, limits)
        .value_or("valid");
  };
  EXPECT_EQ(reason("threads=2"), "valid");
  EXPECT_NE(reason("threads=4").find("cores"), std::string::npos);
  EXPECT_EQ(reason("block_n=32,kv_split=4"), "valid");
  EXPECT_NE(reason("block_n=64,kv_split=4").find("kv_split=4"), std::string::npos);
  const PlacedProblem large = PlacedProblem::parse("b1_h32_s16384_d128_bf16");
  const ConfigValues split = family.space().parse("kv_split=32", family.default_config(large, limits), "cpu_fwd");
  EXPECT_NE(family.why_invalid(split, large, limits).value_or("").find("MB"), std::string::npos);
  EXPECT_NE(family.why_unsupported(PlacedProblem::parse("b1_h1_s8_d264_fp32"), limits).value_or("").find("264"),
            std::string::npos);
  limits.kind = DeviceKind::kCuda;
  EXPECT_TRUE(family.why_unsupported(problem, limits).has_value());
}

}  // namespace
}  // namespace flashcore::cpu_fwd
