// sm90_fp8_fwd on the emulated GPU, and which configs it refuses.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/problem_expressions.h"
#include "kernels/candidates.h"
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
    "sm90_fp8_fwd:num_consumers=3,block_n=128,num_stages=2,v_stages=2,q_stages=2,ping_pong=1,overlap=0,promote_every=1,"
    "pv_columns=64,p_exponent=6,scheduler=1";
// Sums that take the registers of the scores of wide blocks; V waits in two parts, in one slot or in two.
constexpr const char* kFp8WideBlocks =
    "sm90_fp8_fwd:num_consumers=2,block_n=128,num_stages=2,v_stages=2,q_stages=1,ping_pong=0,overlap=0,promote_every=1,"
    "pv_columns=128,p_exponent=6,scheduler=2";
constexpr const char* kFp8WideBlocksOfOneSlot =
    "sm90_fp8_fwd:num_consumers=2,block_n=96,num_stages=2,v_stages=1,q_stages=1,ping_pong=1,overlap=0,promote_every=1,"
    "pv_columns=96,p_exponent=6,scheduler=1";

void expect_passes(const std::string& candidate, std::initializer_list<const char*> problems) {
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
  expect_passes(kFp8Shared, {"b1_h1_sq70_sk300_d64_e4m3_causal"});
  expect_passes(with(kFp8Shared, "block_n", 64), {"b1_h1_sq70_sk300_d128_e4m3_causal"});
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
  expect_passes(with(kFp8Shared, "block_n", 64), {"b1_h2_hk1_sq70_sk300_d128_e4m3_pertoken"});
  expect_passes(kFp8WideBlocks, {"b1_h1_sq70_sk200_d256_dv128_e4m3_pertoken"});
}
// Lines of 32, 64 and 128 keys in one box of TMA or several; keys that fill no 16 bytes; a single key, of which K's
// odd rows have none.
TEST(Sm90Fp8, VMayLieTransposed) {
  const auto of_v = [](const char* candidate) { return with(candidate, "v_stages", 0); };
  expect_passes(of_v(kFp8Apart), {"b2_h4_hk2_sq70_sk150_d64_e4m3_perhead_vdn", "b2_h2_sq3_sk1_d64_e4m3_vdn",
                                  "b1_h2_sq130_sk203_d128_e4m3_ofp16_causal_strided_vdn",
                                  "b1_h2_sq130_sk203_d128_e4m3_pertoken_causal_vdn",
                                  "b2_h4_hk2_sq70_sk150_d64_e4m3_perhead_causal_softcap5_alibi_sink_vdn",
                                  "b1_h2_sq70_sk150_d64_e5m2_pertoken_wl40_alibi_vdn"});
  expect_passes(of_v(kFp8ScoresFirst), {"b1_h2_s100_d48_e4m3_vdn", "b1_h2_s260_d64_e4m3_causal_wl40_vdn",
                                        "b1_h4_hk2_s100_d48_e4m3_pertoken_vdn", "b1_h2_s100_d48_e4m3_softcap5_vdn"});
  expect_passes(of_v(kFp8ValuesFirst), {"b1_h1_sq70_sk300_d128_e4m3_bshd_vdn"});
  expect_passes(of_v(kFp8WideBlocks), {"b1_h1_s200_d256_e4m3_causal_vdn"});
  const auto read = [](const std::string& candidate, const char* problem) {
    (void)parse_candidate(candidate, Problem::parse(problem), limits_of_arch("sm_90"));
  };
  EXPECT_THROW(read(kFp8Apart, "b1_h1_s64_d64_e4m3_vdn"), Error);
  EXPECT_THROW(read(of_v(kFp8Apart), "b1_h1_s64_d64_e4m3"), Error);
}
// Sequences of other lengths than the bounds, some without rows or keys, each with factors of its own.
TEST(Sm90Fp8, RaggedBatches) {
  expect_passes(kFp8Apart, {"b3_h4_hk2_sq70_sk100_d64_e4m3_perhead_causal_raggedhalving",
                            "b6_h2_sq70_sk90_d48_e4m3_bshd_raggedrandom",
                            "b3_h2_sq140_sk200_d128_e4m3_ofp16_perhead_wl30_wr5_strided_raggedhalving"});
  expect_passes(kFp8ScoresFirst, {"b3_h4_hk2_sq200_sk100_d48_e4m3_perhead_raggedhalving",
                                  "b4_h2_hk1_sq200_sk150_d64_e4m3_causaltl_bshd_raggedrandom"});
  expect_passes(kFp8Blocks, {"b5_h1_s170_d64_e4m3_unscaled_causal_raggedrandom"});
  expect_passes(with(kFp8Shared, "block_n", 64), {"b3_h1_sq200_sk300_d128_e4m3_perhead_causal_raggedhalving"});
  expect_passes(kFp8WideBlocks, {"b3_h2_hk1_sq70_sk300_d256_e4m3_perhead_wl90_raggedhalving"});
  expect_passes(kSm90Fp8Single, {"b300_h1_s20_d64_e4m3_causal_raggedrandom"});
}
// Pages smaller and larger than a block of keys, and of an odd number of keys.
TEST(Sm90Fp8, PagedCaches) {
  expect_passes(kFp8Apart, {"b3_h4_hk2_sq70_sk150_d64_e4m3_perhead_causal_raggedhalving_page2",
                            "b3_h2_sq70_sk150_d128_e4m3_perhead_causal_bshd_raggedrandom_page2",
                            "b3_h4_hk2_sq70_sk150_d64_e4m3_perhead_wl40_wr5_bshd_raggedhalving_page16",
                            "b3_h2_sq40_sk150_d128_e4m3_perhead_raggedrandom_page1"});
  expect_passes(kFp8Blocks, {"b3_h2_hk1_sq70_sk150_d48_e4m3_causal_strided_raggedhalving_page16",
                             "b2_h1_sq40_sk300_d64_dv32_e4m3_raggedfull_page256"});
  expect_passes(kSm90Fp8Single, {"b3_h2_hk1_sq70_sk150_d128_e4m3_perhead_causal_raggedhalving_page16",
                                 "b2_h1_sq40_sk300_d128_e4m3_causal_wl100_bshd_raggedhalving_page256",
                                 "b3_h2_sq40_sk150_d128_e4m3_ofp16_causal_bshd_raggedhalving_page3"});
  expect_passes(kFp8WideBlocks, {"b2_h2_hk1_sq70_sk300_d256_e4m3_perhead_causal_raggedhalving_page16"});
}
// Of factors for all, for each head, and for each row and key.
TEST(Sm90Fp8, FunctionsOfScoresTakeWhatQAndKStandFor) {
  expect_passes(kFp8Apart, {"b1_h2_sq70_sk150_d64_e4m3_causal_softcap5",
                            "b2_h4_hk2_sq70_sk100_d64_e4m3_perhead_softcap5_alibibatch_sink",
                            "b2_h4_hk2_sq70_sk150_d128_e4m3_pertoken_causal_bshd_softcap5_alibi_sink"});
  expect_passes(kFp8ScoresFirst, {"b1_h2_sq200_sk100_d48_e4m3_perhead_causal_alibi", "b1_h2_s70_d48_e4m3_softcap1000",
                                  "b1_h2_sq200_sk33_d64_e4m3_pertoken_causal_sink"});
  expect_passes(with(kFp8ValuesFirst, "scheduler", 1), {"b1_h2_hk1_sq130_sk200_d128_e4m3_pertoken_wl40_softcap5"});
  expect_passes(kFp8WideBlocks, {"b1_h2_sq70_sk200_d256_e4m3_perhead_softcap5_alibi"});
}
// Q·K of e5m2, and P of e4m3 with V of e5m2: each way to sum, and each way in which V, rows and keys come.
TEST(Sm90Fp8, E5m2) {
  expect_passes(kFp8Apart,
                {"b2_h4_hk2_sq70_sk150_d64_e5m2_perhead", "b1_h2_sq130_sk203_d128_e5m2_ofp16_pertoken_causal_bshd",
                 "b2_h4_hk2_sq70_sk100_d64_e5m2_unscaled_causal_wl40_softcap5_alibibatch_sink",
                 "b3_h4_hk2_sq70_sk100_d64_e5m2_perhead_causal_raggedhalving",
                 "b3_h4_hk2_sq70_sk150_d64_e5m2_perhead_wl40_wr5_bshd_raggedhalving_page16"});
  expect_passes(kFp8ScoresFirst, {"b1_h2_s100_d48_e5m2", "b1_h1_sq200_sk33_d32_e5m2_causal"});
  expect_passes(kFp8ValuesFirst, {"b1_h1_sq70_sk300_d128_e5m2"});
  expect_passes(kFp8Blocks, {"b1_h2_s170_d64_e5m2_causal"});
  expect_passes(kFp8Never, {"b1_h1_sq70_sk130_d80_dv16_e5m2"});
  expect_passes(kFp8Shared, {"b1_h1_sq70_sk300_d64_e5m2_causal"});
  expect_passes(with(kFp8Shared, "block_n", 64), {"b1_h1_sq70_sk300_d128_e5m2_causal"});
  expect_passes(kFp8WideBlocks, {"b1_h1_s200_d256_e5m2_causal"});
  expect_passes(with(kFp8Apart, "v_stages", 0), {"b2_h4_hk2_sq70_sk150_d64_e5m2_perhead_vdn",
                                                 "b1_h2_sq130_sk203_d128_e5m2_pertoken_causal_strided_vdn"});
}
TEST(Sm90Fp8, FunctionsOfScoresInRaggedBatchesAndPagedCaches) {
  expect_passes(kFp8Apart, {"b3_h2_sq66_sk90_d64_e4m3_perhead_causal_softcap5_alibibatch_sink_raggedhalving",
                            "b3_h2_hk1_sq70_sk150_d128_e4m3_perhead_softcap5_alibi_raggedhalving_page16"});
  expect_passes(kSm90Fp8Three, {"b3_h2_sq200_sk90_d64_e4m3_perhead_softcap5_alibibatch_sink_raggedhalving"});
  expect_passes(kSm90Fp8Single, {"b3_h2_hk1_sq70_sk150_d64_e4m3_ofp16_wl60_softcap5_sink_raggedrandom_page2"});
}
// Two consumers and three: under a causal mask and in windows some let blocks pass, in ragged batches tiles.
TEST(Sm90Fp8, TurnsThatLastUntilMultipliesOrSoftmaxesAreDone) {
  for (const int turn : {2, 3, 4}) {
    for (const char* candidate : {kFp8Apart, kSm90Fp8Three})
      expect_passes(
          with(candidate, "ping_pong", turn),
          {"b1_h2_sq200_sk260_d64_e4m3_causal", "b1_h1_s260_d64_e4m3_causal_wl40",
           "b3_h2_sq200_sk150_d64_e4m3_perhead_causal_raggedhalving", "b1_h2_sq130_sk100_d64_e4m3_pertoken_softcap5"});
    expect_passes(with(kFp8ValuesFirst, "ping_pong", turn), {"b1_h1_sq130_sk300_d128_e4m3_causal"});
    expect_passes(with(kFp8WideBlocks, "ping_pong", turn), {"b1_h1_sq130_sk300_d256_e4m3_causal"});
  }
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
  EXPECT_EQ(reason("b1_h1_s64_d64_bf16"), "e4m3 and e5m2 only");
  EXPECT_NE(reason("b1_h1_s64_d72_e4m3"), "");
  EXPECT_NE(reason("b1_h1_s64_d64_e4m3_oe4m3"), "");
  for (const char* id :
       {"b1_h1_s64_d64_e5m2", "b1_h1_s64_d64_e5m2_pertoken_causal_amax", "b1_h1_s64_d64_e5m2_vdn",
        "b1_h1_s64_d64_e4m3_softcap5_alibi_sink", "b1_h1_s64_d64_e4m3_softcap5_alibi_sink_vdn",
        "b2_h1_s64_d64_e4m3_raggedfull", "b2_h1_s64_d64_e4m3_raggedfull_page2", "b2_h1_s64_d128_e4m3_raggedfull_page1"})
    EXPECT_EQ(reason(id), "") << id;
  for (const char* id : {"b2_h1_s64_d64_e4m3_raggedfull_page1", "b2_h1_s64_d128_dv64_e4m3_raggedfull_page3",
                         "b2_h1_s64_d48_dv128_e4m3_raggedfull_page7"})
    EXPECT_NE(reason(id).find("pages of an odd number of keys"), std::string::npos) << id;
  const auto reason_with_mask = [&](const char* id) {
    Problem problem = Problem::parse(id);
    set_expressions(problem, "", "i // 37 == j // 37", {});
    return (*family)->why_unsupported(problem, limits).value_or("");
  };
  for (const char* id : {"b1_h1_s64_d64_e4m3_pertoken", "b1_h1_s64_d64_e4m3_vdn"}) EXPECT_EQ(reason_with_mask(id), "");
  EXPECT_NE(reason_with_mask("b2_h1_s64_d64_e4m3_raggedfull_page2").find("lists of blocks"), std::string::npos);
}

// Wherever the family takes the problem without them; but for 256 columns a score function that reads tensors leaves no
// registers in a ragged batch, or beside a softcap.
TEST(Sm90Fp8, FunctionsOfTheUsersOwnAtAllHeadDims) {
  const DeviceLimits limits = limits_of_arch("sm_90");
  const Family& family = family_by_name("sm90_fp8_fwd");
  for (int dim = 16; dim <= 256; dim += 16)
    for (const std::string rest : {"", "_causal", "_ofp16_causal_wl40_softcap5_alibi_sink", "_raggedfull"})
      for (const auto& [score, mask] :
           {std::pair("s + bias[h]", ""), {"tanh(s)", ""}, {"", "i % 3 == 0"}, {"s + bias[h]", "i % 3 == 0"}}) {
        Problem problem = Problem::parse(fmt::format("b4_h16_s2048_d{}_e4m3{}", dim, rest));
        const bool has_tensors = std::string_view(score).ends_with("[h]"), is_plain = rest.empty() || rest == "_causal";
        const bool is_taken = !family.why_unsupported(problem, limits) && (dim < 256 || !has_tensors || is_plain);
        set_expressions(problem, score, mask, parse_tensors(has_tensors ? "bias: float[1]" : ""));
        EXPECT_EQ(!family.why_unsupported(problem, limits), is_taken) << dim << rest << " " << score << " " << mask;
      }
}

TEST(Sm90Fp8, RefusesConfigsThatCannotBe) {
  const DeviceLimits limits = limits_of_arch("sm_90");
  const Family& family = family_by_name("sm90_fp8_fwd");
  const auto reason = [&](const char* id, const char* config) {
    const Problem problem = Problem::parse(id);
    return family
        .why_invalid(family.space().parse(config, family.default_config(problem, limits), family.name()), problem,
                     limits)
        .value_or("");
  };
  const char *three = "num_consumers=3,block_n=32,num_stages=2,v_stages=1,q_stages=1,overlap=0,scheduler=1",
             *one_tile = "num_consumers=2,block_n=32,num_stages=2,v_stages=1,q_stages=1,overlap=0,scheduler=0";
  EXPECT_EQ(reason("b2_h1_s64_d64_e4m3_raggedfull", three), "");
  EXPECT_NE(reason("b2_h1_s64_d64_e4m3_raggedfull_page16", three).find("for a paged cache"), std::string::npos);
  EXPECT_EQ(reason("b2_h1_s64_d64_e4m3", one_tile), "");
  for (const char* id : {"b2_h1_s64_d64_e4m3_raggedfull", "b2_h1_s64_d64_e4m3_raggedfull_page16"})
    EXPECT_NE(reason(id, one_tile).find("counted on the device"), std::string::npos) << id;
  const std::string shared =
      "num_consumers=3,block_n=128,num_stages=2,q_stages=2,overlap=0,promote_every=1,pv_columns=64,"
      "scheduler=1,v_stages=";
  EXPECT_EQ(reason("b1_h1_s64_d64_e4m3_perhead_causal", (shared + "2").c_str()), "");
  for (const auto& [id, v_stages] : {std::pair("b2_h1_s64_d64_e4m3_raggedfull", "2"),
                                     {"b1_h1_s64_d64_e4m3_softcap5", "2"},
                                     {"b1_h1_s64_d64_e4m3_pertoken", "2"},
                                     {"b1_h1_s64_d64_e4m3_vdn", "0"}})
    EXPECT_NE(reason(id, (shared + v_stages).c_str()).find("C7511"), std::string::npos) << id;
  const auto reason_with_score = [&](const char* config) {
    Problem problem = Problem::parse("b2_h1_s64_d64_e4m3");
    set_expressions(problem, "s - 1e9", "", {});
    return family
        .why_invalid(family.space().parse(config, family.default_config(problem, limits), family.name()), problem,
                     limits)
        .value_or("");
  };
  EXPECT_EQ(reason_with_score("p_exponent=6"), "");
  EXPECT_NE(reason_with_score("p_exponent=8").find("saturate"), std::string::npos);
  for (const char* config : {"p_exponent=4", "p_exponent=5"})
    EXPECT_THROW((void)reason("b1_h1_s64_d64_e4m3", config), Error) << config;
}

}  // namespace
}  // namespace flashcore::testing
