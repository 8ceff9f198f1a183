// sm89_fp8_fwd on the emulated GPU, which configs it refuses, and where dispatch takes it.

#include <gtest/gtest.h>

#include "kernels/emulator_run.h"
#include "kernels/family.h"
#include "kernels/registry.h"

namespace flashcore::testing {
namespace {

// One and two fragments of rows a warp, Q kept and not, rings of 2 to 4, sums of 32 to 128 keys and of all.
constexpr const char* kAdaPlain =
    "sm89_fp8_fwd:block_m=64,block_n=64,num_warps=4,num_stages=2,q_in_registers=1,promote_keys=64,p_exponent=6,"
    "persistent=0,ctas_per_sm=1";
constexpr const char* kAdaTwo =
    "sm89_fp8_fwd:block_m=64,block_n=32,num_warps=2,num_stages=3,q_in_registers=0,promote_keys=32,p_exponent=8,"
    "persistent=1,ctas_per_sm=1";
constexpr const char* kAdaWide =
    "sm89_fp8_fwd:block_m=16,block_n=32,num_warps=1,num_stages=4,q_in_registers=0,promote_keys=32,p_exponent=8,"
    "persistent=0,ctas_per_sm=1";
constexpr const char* kAdaNever =
    "sm89_fp8_fwd:block_m=32,block_n=32,num_warps=2,num_stages=2,q_in_registers=1,promote_keys=0,p_exponent=6,"
    "persistent=1,ctas_per_sm=2";

constexpr const char* kAdaUneven =
    "sm89_fp8_fwd:block_m=32,block_n=96,num_warps=2,num_stages=2,q_in_registers=1,promote_keys=32,p_exponent=6,"
    "persistent=1,ctas_per_sm=2";

void expect_ada_passes(const char* candidate, std::initializer_list<const char*> problems) {
  for (const char* problem : problems) {
    EXPECT_EQ(run_on_emulator(device_sources(), candidate, PlacedProblem::parse(problem), 2).verdict(), "passed")
        << candidate << " " << problem;
  }
}

TEST(Sm89Fp8, HeadsShareKeysAndFactors) {
  expect_ada_passes(kAdaPlain, {"b2_h4_hk2_sq70_sk150_d64_e4m3_perhead", "b1_h2_sq130_sk200_d80_e4m3_ofp16_causal",
                                "b1_h2_sq70_sk100_d64_e4m3_unscaled_strided"});
}
TEST(Sm89Fp8, RowsMayHaveTheirOwnFactors) {
  expect_ada_passes(kAdaPlain, {"b2_h4_hk2_sq70_sk150_d64_e4m3_pertoken", "b1_h2_sq130_sk200_d80_e4m3_pertoken_causal",
                                "b2_h4_hk2_sq70_sk100_d64_e4m3_pertoken_bshd_softcap5_alibibatch_sink"});
  expect_ada_passes(kAdaTwo, {"b1_h2_s130_d48_e4m3_oe4m3_pertoken_causal_wl40", "b1_h2_sq0_sk40_d48_e4m3_pertoken",
                              "b1_h2_sq40_sk0_d48_e4m3_pertoken_sink", "b1_h2_s70_d48_e4m3_pertoken_softcap1000"});
  EXPECT_FALSE(family_by_name("sm89_fp8_fwd")
                   .why_unsupported(Problem::parse("b1_h1_s64_d256_e4m3_pertoken_softcap5_alibi_sink"),
                                    limits_of_arch("sm_89")));
  expect_ada_passes(kAdaUneven, {"b1_h2_s200_d64_dv32_e4m3_pertoken_wl9_wr4_tl_strided"});
}
TEST(Sm89Fp8, HeadDimsThatFillNoStep) {
  expect_ada_passes(kAdaTwo, {"b1_h2_s100_d48_e4m3", "b1_h1_sq200_sk33_d32_e4m3_causal", "b1_h1_s70_d16_e4m3_oe4m3"});
  expect_ada_passes(kAdaNever, {"b1_h1_sq70_sk130_d80_dv16_e4m3", "b1_h1_s70_d112_e4m3_oe5m2"});
  expect_ada_passes(kAdaWide, {"b1_h1_s70_d192_dv64_e4m3", "b1_h1_s140_d256_dv48_e4m3_causal"});
}
TEST(Sm89Fp8, Windows) {
  expect_ada_passes(kAdaNever, {"b1_h2_s260_d64_e4m3_causal_wl40", "b1_h2_sq70_sk200_d64_e4m3_wl30"});
  expect_ada_passes(kAdaTwo, {"b1_h6_s260_d48_e4m3_causal_wl40"});
  expect_ada_passes(kAdaUneven, {"b1_h1_s200_d64_e4m3_wl9_wr4_tl", "b1_h1_s250_d64_e4m3_causal"});
}
TEST(Sm89Fp8, FunctionsOfScoresTakeWhatQAndKStandFor) {
  expect_ada_passes(kAdaPlain, {"b2_h4_hk2_sq70_sk100_d64_e4m3_perhead_softcap5_alibibatch_sink",
                                "b1_h2_sq100_sk33_d64_e4m3_causal_sink"});
  expect_ada_passes(kAdaTwo, {"b1_h2_s130_d48_e4m3_perhead_causal_alibi", "b1_h2_s70_d48_e4m3_softcap1000"});
}
TEST(Sm89Fp8, RaggedBatchesHaveTheirOwnFactors) {
  for (const char* candidate : {kAdaPlain, kAdaNever})
    expect_ada_passes(candidate, {"b3_h4_hk2_sq70_sk100_d64_e4m3_perhead_causal_raggedhalving",
                                  "b6_h2_sq70_sk90_d48_e4m3_bshd_raggedrandom",
                                  "b3_h2_sq66_sk90_d64_e4m3_perhead_softcap5_alibibatch_sink_raggedhalving"});
}
// Q·K of e5m2, and P of e4m3 with V of e5m2.
TEST(Sm89Fp8, E5m2) {
  expect_ada_passes(kAdaPlain, {"b2_h4_hk2_sq70_sk150_d64_e5m2_perhead", "b1_h2_sq130_sk200_d80_e5m2_pertoken_causal",
                                "b2_h4_hk2_sq70_sk100_d64_e5m2_perhead_softcap5_alibibatch_sink",
                                "b3_h4_hk2_sq70_sk100_d64_e5m2_perhead_causal_raggedhalving"});
  expect_ada_passes(kAdaTwo, {"b1_h2_s100_d48_e5m2_oe5m2_causal_wl40", "b1_h2_sq40_sk0_d48_e5m2_sink"});
  expect_ada_passes(kAdaWide, {"b1_h1_s140_d256_dv48_e5m2_causal"});
  expect_ada_passes(kAdaNever, {"b1_h2_sq70_sk100_d64_e5m2_unscaled_strided"});
  expect_ada_passes(kAdaUneven, {"b1_h1_s200_d64_e5m2_wl9_wr4_tl"});
}
TEST(Sm89Fp8, NothingToDo) {
  expect_ada_passes(kAdaTwo, {"b1_h2_sq0_sk40_d48_e4m3", "b1_h2_sq40_sk0_d48_e4m3", "b1_h2_sq40_sk0_d48_e4m3_sink"});
}

const Family& ada() { return family_by_name("sm89_fp8_fwd"); }

TEST(Sm89Fp8, RefusesWhatItCannotDo) {
  const auto reason = [&](const char* id, const char* arch) {
    return ada().why_unsupported(Problem::parse(id), limits_of_arch(arch)).value_or("");
  };
  for (const char* arch : {"sm_89", "sm_90", "sm_100", "sm_120"}) {
    EXPECT_EQ(reason("b1_h1_s64_d64_e4m3", arch), "");
    EXPECT_EQ(reason("b1_h1_s64_d64_e5m2", arch), "");
    EXPECT_EQ(reason("b2_h1_s64_d128_e4m3_causal_softcap5_alibi_sink_raggedfull", arch), "");
  }
  // Without the instruction its operands are unpacked, which takes registers.
  for (const char* arch : {"sm_89", "sm_120"})
    EXPECT_EQ(reason("b2_h1_s64_d256_e4m3_causal_softcap5_alibi_sink_raggedfull", arch), "");
  for (const char* arch : {"sm_90", "sm_100"})
    EXPECT_NE(reason("b1_h1_s64_d256_e4m3", arch).find("registers"), std::string::npos);
  EXPECT_NE(reason("b1_h1_s64_d64_e4m3", "sm_80").find("8.9"), std::string::npos);
  EXPECT_NE(reason("b1_h1_s64_d64_e4m3", "sm_86"), "");
  EXPECT_EQ(reason("b1_h1_s64_d64_bf16", "sm_89"), "e4m3 and e5m2 only");
  EXPECT_NE(reason("b1_h1_s64_d72_e4m3", "sm_89").find("multiples of 16"), std::string::npos);
  EXPECT_NE(reason("b1_h1_s64_d272_e4m3", "sm_89"), "");
  EXPECT_NE(reason("b2_h1_s64_d64_e4m3_raggedfull_page16", "sm_89").find("block table"), std::string::npos);
}

TEST(Sm89Fp8, RefusesConfigsThatCannotBe) {
  const DeviceLimits limits = limits_of_arch("sm_89");
  const auto reason = [&](const char* id, const char* config) {
    const Problem problem = Problem::parse(id);
    return ada()
        .why_invalid(ada().space().parse(config, ada().default_config(problem, limits), ada().name()), problem, limits)
        .value_or("");
  };
  EXPECT_EQ(reason("b1_h1_s64_d64_e4m3", "block_m=64,block_n=64,num_warps=4,promote_keys=32,ctas_per_sm=1"), "");
  EXPECT_NE(reason("b1_h1_s64_d64_e4m3", "block_n=32,promote_keys=64").find("promote_keys"), std::string::npos);
  EXPECT_NE(reason("b1_h1_s64_d64_e4m3", "block_n=96,promote_keys=64").find("promote_keys"), std::string::npos);
  EXPECT_NE(reason("b1_h1_s64_d64_e4m3", "block_m=16,num_warps=4").find("multiple of 16 rows"), std::string::npos);
  EXPECT_NE(reason("b1_h1_s64_d64_e4m3", "block_m=128,num_warps=2").find("32 rows"), std::string::npos);
  EXPECT_NE(reason("b1_h1_s64_d256_e4m3", "block_m=128,block_n=128,num_warps=8,num_stages=2").find("shared memory"),
            std::string::npos);
  EXPECT_NE(reason("b1_h1_s64_d256_e4m3", "block_m=64,block_n=64,num_warps=2,ctas_per_sm=1").find("registers"),
            std::string::npos);
}

// Hopper keeps its wgmma kernel where that has one. Few rows of few heads go to the family that splits their keys.
TEST(Sm89Fp8, WhereDispatchTakesIt) {
  const auto chosen = [](const char* id, const char* arch) {
    DeviceInfo device;
    device.limits = limits_of_arch(arch);
    device.key = arch;
    device.id = "cuda:0";
    return dispatch(Problem::parse(id), device).candidate.family->name();
  };
  for (const char* arch : {"sm_89", "sm_100", "sm_120"}) {
    EXPECT_EQ(chosen("b1_h8_s4096_d128_e4m3_causal", arch), "sm89_fp8_fwd") << arch;
    EXPECT_EQ(chosen("b32_h8_sq1_sk4096_d128_e4m3", arch), "sm89_fp8_fwd") << arch;
    EXPECT_EQ(chosen("b1_h8_sq1_sk2048_d128_e4m3", arch), "sm89_fp8_fwd") << arch;
    EXPECT_EQ(chosen("b1_h8_sq1_sk4096_d128_e4m3", arch), "sm80_decode_fwd") << arch;
    EXPECT_EQ(chosen("b1_h8_s4096_d128_e5m2", arch), "sm89_fp8_fwd") << arch;
    EXPECT_EQ(chosen("b1_h8_s4096_d128_e5m2_pertoken_causal_amax", arch), "sm89_fp8_fwd") << arch;
  }
  EXPECT_EQ(chosen("b1_h8_s4096_d128_e4m3", "sm_90"), "sm90_fp8_fwd");
  EXPECT_EQ(chosen("b1_h8_s4096_d128_e4m3_softcap30", "sm_90"), "sm90_fp8_fwd");
  EXPECT_EQ(chosen("b1_h8_s4096_d128_e4m3_oe4m3", "sm_90"), "sm89_fp8_fwd");
  EXPECT_EQ(chosen("b1_h8_s4096_d128_e4m3", "sm_80"), "sm80_decode_fwd");
}

}  // namespace
}  // namespace flashcore::testing
