// Broken copies of the kernel, compiled here and nowhere else: the correctness bound must catch each of them, and must
// pass the same code without the fault.
#include "kernels/cpu_fwd_harness.h"

#include <cmath>

#include "device/cpu/simd_targets.h"
#include "kernels/cpu_fwd/attend-inl.h"

namespace flashcore::cpu_fwd {
namespace {

template <Fault kFault>
void broken_attend(const Plan& plan, const Task& task, float* scratch) {
  HWY_NAMESPACE::attend_any<kFault>(plan, task, scratch);
}

// Lengths that are no multiple of block_n, several blocks of keys, edges of the mask inside them.
const char* const kProblems[] = {"b1_h2_s100_d64_fp32_causal", "b1_h4_hk2_sq65_sk129_d40_fp16_causal",
                                 "b1_h2_sq70_sk90_d32_bf16_causaltl", "b1_h2_s100_d32_fp32_wl20",
                                 "b1_h2_sq70_sk90_d32_fp16_causal_wl37"};

Config small_blocks() {
  Config config;
  config.block_m = 24;
  config.block_n = 32;
  return config;
}

template <Fault kFault>
void expect_caught() {
  for (const char* id : kProblems) {
    const PlacedProblem problem = PlacedProblem::parse(id);
    const Judgement judgement = check(problem, small_blocks(), Pattern::kNormal, 1, broken_attend<kFault>);
    EXPECT_FALSE(judgement.correct) << id << " passed: " << judgement.text;
  }
}

TEST(CpuForwardFaults, WithoutAFaultTheCopyIsCorrect) {
  for (const char* id : kProblems) {
    const Judgement judgement =
        check(PlacedProblem::parse(id), small_blocks(), Pattern::kNormal, 1, broken_attend<Fault::kNone>);
    EXPECT_TRUE(judgement.correct) << id << ": " << judgement.text;
  }
}
TEST(CpuForwardFaults, WrongTailIsCaught) { expect_caught<Fault::kWrongTail>(); }
TEST(CpuForwardFaults, MissingMaskIsCaught) { expect_caught<Fault::kMissingMask>(); }
TEST(CpuForwardFaults, MissingRescaleIsCaught) { expect_caught<Fault::kMissingRescale>(); }

TEST(CpuForwardFaults, AWriteOutsideTheOutputIsCaught) {
  const PlacedProblem problem = PlacedProblem::parse("b1_h1_s16_d8_fp32_strided");
  const AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 1);
  const auto one_column_more = [](const Plan& plan, const Task& task, float* scratch) {
    attend(plan, task, scratch);
    static_cast<float*>(plan.params.o)[plan.traits.head_dim_v] = 0.0f;
  };
  const Reference reference = reference_forward(problem, inputs, RowSample());
  EXPECT_FALSE(judge(problem, reference, run(problem, Config(), inputs, one_column_more)).correct);
}

// The stated accuracy of the exponential, and its edges.
TEST(CpuForwardExp2, AccurateToTheLastBitAndAtTheEdges) {
  namespace simd = HWY_NAMESPACE;
  const simd::FloatTag d;
  const auto exp2 = [&](float x) {
    return simd::hn::GetLane(simd::exp2_scaled(simd::hn::Set(d, x), simd::hn::Set(d, 1.0f)));
  };
  double worst = 0;
  for (int i = 0; i <= 1'000'000; ++i) {
    const float x = -126.0f * static_cast<float>(i) / 1e6f;
    const double exact = std::exp2(static_cast<double>(x));
    worst = std::max(worst, std::abs(exp2(x) - exact) / exact);
  }
  EXPECT_LT(worst, 1.7 * 0x1p-24);
  EXPECT_EQ(exp2(0.0f), 1.0f);
  EXPECT_EQ(exp2(-1.0f), 0.5f);
  EXPECT_EQ(exp2(-127.0f), 0.0f);
  EXPECT_EQ(exp2(-3e38f), 0.0f);
  EXPECT_EQ(exp2(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_TRUE(std::isnan(exp2(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace flashcore::cpu_fwd
