// sm90_fp8_fwd on the emulated GPU, and which configs it refuses.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/error.h"
#include "kernels/emulator_run.h"
#include "kernels/family.h"

namespace flashcore::testing {
namespace {

// Every overlap, with and without promotion, in one chunk of columns, in two that share the scores' registers or not,
// and over several blocks; lines of 32, 64 and 128 keys.
constexpr const char* kFp8Apart =
    "sm90_fp8_fwd:num_consumers=2,block_n=64,num_stages=2,v_stages=2,q_stages=2,ping_pong=1,overlap=0,promote_every=1,"
    "pv_columns=64,p_exponent=6,scheduler=2";
constexpr const char* kFp8ScoresFirst =
    "sm90_fp8_fwd:num_consumers=3,block_n=32,num_stages=3,v_stages=1,q_stages=1,ping_pong=1,overlap=1,promote_every=1,"
    "pv_columns=64,p_exponent=8,scheduler=1";
constexpr const char* kFp8ValuesFirst =
    "sm90_fp8_fwd:num_consumers=2,block_n=96,num_stages=2,v_stages=2,q_stages=1,ping_pong=0,overlap=2,promote_every=1,"
    "pv_columns=64,p_exponent=8,scheduler=0";
constexpr const char* kFp8Blocks =
    "sm90_fp8_fwd:num_consumers=2,block_n=32,num_stages=2,v_stages=2,q_stages=1,ping_pong=1,overlap=1,promote_every=2,"
    "pv_columns=64,p_exponent=6,scheduler=1";
constexpr const char* kFp8Never =
    "sm90_fp8_fwd:num_consumers=1,block_n=96,num_stages=2,v_stages=1,q_stages=1,ping_pong=0,overlap=0,promote_every=0,"
    "pv_columns=256,p_exponent=6,scheduler=1";
constexpr const char* kFp8Wide =
    "sm90_fp8_fwd:num_consumers=1,block_n=64,num_stages=2,v_stages=1,q_stages=1,ping_pong=0,overlap=0,promote_every=0,"
    "pv_columns=256,p_exponent=6,scheduler=1";
constexpr const char* kFp8Shared =
    "sm90_fp8_fwd:num_consumers=3,block_n=96,num_stages=2,v_stages=2,q_stages=1,ping_pong=1,overlap=0,promote_every=1,"
    "pv_columns=64,p_exponent=6,scheduler=1";
// Sums that take the registers of the scores of wide blocks; V waits in two parts, in one slot or in two.
constexpr const char* kFp8WideBlocks =
    "sm90_fp8_fwd:num_consumers=2,block_n=128,num_stages=2,v_stages=2,q_stages=1,ping_pong=0,overlap=0,promote_every=1,"
    "pv_columns=128,p_exponent=6,scheduler=2";
constexpr const char* kFp8WideBlocksOfOneSlot =
    "sm90_fp8_fwd:num_consumers=2,block_n=96,num_stages=2,v_stages=1,q_stages=1,ping_pong=1,overlap=0,promote_every=1,"
    "pv_columns=96,p_exponent=6,scheduler=1";

void expect_passes(const char* candidate, std::initializer_list<const char*> problems) {
  for (const char* problem : problems) {
    EXPECT_EQ(run_on_emulator(device_sources(), candidate, PlacedProblem::parse(problem), 2).verdict(), "passed")
        << candidate << " " << problem;
  }
}

TEST(Sm90Fp8, HeadsShareKeysAndFactors) {
  expect_passes(kFp8Apart, {"b2_h4_hk2_sq70_sk150_d64_e4m3_perhead", "b1_h2_sq130_sk200_d128_e4m3_ofp16_causal"});
}
TEST(Sm90Fp8, HeadDimsThatFillNoBlock) {
  expect_passes(kFp8ScoresFirst, {"b1_h2_s100_d48_e4m3", "b1_h1_sq200_sk33_d32_e4m3_causal"});
  expect_passes(kFp8Never, {"b1_h1_sq70_sk130_d80_dv16_e4m3"});
  expect_passes(kFp8Wide, {"b1_h1_s70_d192_dv144_e4m3"});
}
TEST(Sm90Fp8, Windows) {
  expect_passes(kFp8ScoresFirst, {"b1_h2_s260_d64_e4m3_causal_wl40", "b1_h2_sq70_sk200_d64_e4m3_wl30"});
}
TEST(Sm90Fp8, SumsOfSeveralBlocksAndOfSeveralChunks) {
  expect_passes(kFp8Blocks, {"b1_h1_sq70_sk170_d64_e4m3", "b1_h2_s170_d64_e4m3_causal"});
  expect_passes(kFp8ValuesFirst, {"b1_h1_sq70_sk300_d128_e4m3"});
  expect_passes(kFp8Shared, {"b1_h1_sq70_sk300_d128_e4m3_causal"});
}
TEST(Sm90Fp8, WideBlocksOfWideHeads) {
  expect_passes(kFp8WideBlocks, {"b1_h2_hk1_sq70_sk300_d256_e4m3", "b1_h1_s200_d256_e4m3_causal",
                                 "b1_h1_sq70_sk200_d192_dv128_e4m3_causal"});
  expect_passes(kFp8WideBlocksOfOneSlot, {"b1_h1_sq70_sk250_d192_e4m3_causal"});
}
// Blocks of 32 to 128 keys that end within the keys and do not; of V that lies transposed too.
TEST(Sm90Fp8, RowsMayHaveTheirOwnFactors) {
  expect_passes(kFp8Apart,
                {"b2_h4_hk2_sq70_sk150_d64_e4m3_pertoken", "b1_h2_sq130_sk203_d128_e4m3_pertoken_causal_bshd"});
  expect_passes(kFp8ScoresFirst, {"b1_h2_sq100_sk64_d48_e4m3_ofp16_pertoken_strided"});
  expect_passes(kFp8Blocks, {"b1_h2_s170_d64_e4m3_pertoken_causal_wl40"});
  expect_passes(kFp8Shared, {"b1_h2_hk1_sq70_sk300_d128_e4m3_pertoken"});
  expect_passes(kFp8WideBlocks, {"b1_h1_sq70_sk200_d256_dv128_e4m3_pertoken"});
}
// Lines of 32, 64 and 128 keys in one box of TMA or several; keys that fill no 16 bytes; a single key, of which K's
// odd rows have none.
TEST(Sm90Fp8, VMayLieTransposed) {
  const auto of_v = [](std::string candidate) {
    const std::size_t at = candidate.find("v_stages=");
    return candidate.replace(at, 10, "v_stages=0");
  };
  expect_passes(of_v(kFp8Apart).c_str(), {"b2_h4_hk2_sq70_sk150_d64_e4m3_perhead_vdn", "b2_h2_sq3_sk1_d64_e4m3_vdn",
                                          "b1_h2_sq130_sk203_d128_e4m3_ofp16_causal_strided_vdn",
                                          "b1_h2_sq130_sk203_d128_e4m3_pertoken_causal_vdn"});
  expect_passes(of_v(kFp8ScoresFirst).c_str(), {"b1_h2_s100_d48_e4m3_vdn", "b1_h2_s260_d64_e4m3_causal_wl40_vdn",
                                                "b1_h4_hk2_s100_d48_e4m3_pertoken_vdn"});
  expect_passes(of_v(kFp8ValuesFirst).c_str(), {"b1_h1_sq70_sk300_d128_e4m3_bshd_vdn"});
  expect_passes(of_v(kFp8WideBlocks).c_str(), {"b1_h1_s200_d256_e4m3_causal_vdn"});
  const auto read = [](const std::string& candidate, const char* problem) {
    (void)parse_candidate(candidate, Problem::parse(problem), limits_of_arch("sm_90"));
  };
  EXPECT_THROW(read(kFp8Apart, "b1_h1_s64_d64_e4m3_vdn"), Error);
  EXPECT_THROW(read(of_v(kFp8Apart), "b1_h1_s64_d64_e4m3"), Error);
}
TEST(Sm90Fp8, DefaultsOfWideHeadsTakeTheWidestBlocksThatTheirSumsFit) {
  const DeviceLimits limits = limits_of_arch("sm_90");
  const Family& family = family_by_name("sm90_fp8_fwd");
  const auto block_of = [&](const char* id) {
    return family.space().to_json(family.default_config(Problem::parse(id), limits)).at("block_n");
  };
  EXPECT_EQ(block_of("b1_h1_s64_d256_e4m3"), 128);
  EXPECT_EQ(block_of("b1_h1_s64_d192_e4m3"), 96);
  EXPECT_EQ(block_of("b1_h1_s64_d192_dv128_e4m3"), 128);
  EXPECT_EQ(block_of("b1_h1_s64_d256_e4m3_pertoken"), 128);
}

TEST(Sm90Fp8, RefusesWhatItCannotDo) {
  const DeviceLimits limits = limits_of_arch("sm_90");
  const auto& families = all_families();
  const auto family = std::ranges::find_if(families, [](const Family* f) { return f->name() == "sm90_fp8_fwd"; });
  ASSERT_NE(family, families.end());
  const auto reason = [&](const char* id) {
    return (*family)->why_unsupported(Problem::parse(id), limits).value_or("");
  };
  EXPECT_EQ(reason("b1_h1_s64_d64_e4m3"), "");
  EXPECT_NE(reason("b1_h1_s64_d64_bf16"), "");
  EXPECT_NE(reason("b1_h1_s64_d64_e5m2"), "");
  EXPECT_NE(reason("b1_h1_s64_d72_e4m3"), "");
  EXPECT_NE(reason("b1_h1_s64_d64_e4m3_oe4m3"), "");
}

}  // namespace
}  // namespace flashcore::testing
