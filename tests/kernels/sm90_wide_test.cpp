// sm90_wide_fwd on the emulated GPU: blocks of every size, values of one piece, packed heads; and what it refuses.

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "kernels/candidates.h"
#include "kernels/emulator_run.h"
#include "kernels/family.h"

namespace flashcore::testing {
namespace {

void expect_passes(const std::string& candidate, std::initializer_list<const char*> problems) {
  for (const char* problem : problems) {
    EXPECT_EQ(run_on_emulator(device_sources(), candidate, PlacedProblem::parse(problem), 2).verdict(), "passed")
        << candidate << " " << problem;
  }
}

// Halves of 48, 80 and 96 keys, and blocks of them that are no four steps of P.
TEST(Sm90Wide, BlocksOfEverySize) {
  for (const int keys : {96, 160, 192})
    expect_passes(with(kHopperWide, "block_n", keys),
                  {"b1_h1_sq100_sk400_d264_dv272_bf16_causal", "b2_h1_sq70_sk200_d264_dv136_fp16_wl30_raggedhalving"});
}
// The second consumer has no columns of O, or fewer than the first.
TEST(Sm90Wide, ValuesOfOnePieceAndOfAnOddNumber) {
  expect_passes(kHopperWide, {"b1_h2_sq70_sk100_d264_dv64_bf16_causal", "b1_h1_sq20_sk50_d320_dv8_fp16",
                              "b1_h1_sq70_sk90_d264_dv320_bf16_bshd"});
  expect_passes(kHopperWideSplit, {"b1_h2_sq9_sk150_d264_dv64_bf16_causal", "b1_h1_sq9_sk150_d72_dv320_fp16"});
}
// Four heads in a cluster's tiles, whose keys are split: dense, ragged with empty sequences, paged.
TEST(Sm90Wide, PackedHeadsInClusters) {
  expect_passes(kHopperWidePacked, {"b2_h8_hk2_sq40_sk200_d264_bf16_causal_alibi_sink",
                                    "b3_h4_hk1_sq3_sk300_d264_dv320_fp16_causal_sink_raggedhalving",
                                    "b5_h8_hk2_sq2_sk150_d264_bf16_bshd_raggedrandom",
                                    "b3_h4_hk1_sq40_sk200_d264_fp16_causal_wl50_raggedhalving_page16"});
}
TEST(Sm90Wide, SaysWhatItDoesNotTake) {
  const DeviceLimits limits = limits_of_arch("sm_90");
  const Family& family = family_by_name("sm90_wide_fwd");
  const auto reason = [&](const char* id) { return family.why_unsupported(Problem::parse(id), limits).value_or(""); };
  EXPECT_EQ(reason("b1_h8_s100_d576_dv512_bf16"), "");
  EXPECT_NE(reason("b1_h8_s100_d256_bf16").find("264 at the least"), std::string::npos);
  EXPECT_NE(reason("b1_h8_s100_d576_bf16").find("head_dim_v of up to 512"), std::string::npos);
  EXPECT_NE(reason("b1_h8_s100_d600_dv512_bf16").find("up to 576 only"), std::string::npos);
  EXPECT_NE(reason("b1_h8_s100_d512_bf16_kve4m3").find("cache"), std::string::npos);
  const Problem problem = Problem::parse("b1_h6_hk2_s100_d512_bf16");
  const ConfigValues config = family.space().parse("pack_heads=2", family.default_config(problem, limits), "");
  EXPECT_NE(family.why_invalid(config, problem, limits).value_or("").find("must divide the 3 query heads"),
            std::string::npos);
}

}  // namespace
}  // namespace flashcore::testing
