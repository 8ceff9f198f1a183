#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/problem_expressions.h"
#include "core/problem_fields.h"
#include "kernels/batch_invariant.h"
#include "kernels/embedded.h"
#include "kernels/family.h"
#include "kernels/gpu_family.h"
#include "kernels/sm80_decode_fwd/config.h"

namespace flashcore {
namespace {

DeviceInfo gpu(const char* key, const char* arch) {
  DeviceInfo device;
  device.limits = limits_of_arch(arch);
  device.key = key;
  device.id = "cuda:0";
  return device;
}

Choice choose(const char* problem, const DeviceInfo& device) { return dispatch(Problem::parse(problem), device); }

TEST(Dispatch, TakesTheTunedEntryOfAProblem) {
  const Choice choice = choose("b1_h8_s512_d64_fp16", gpu("h200", "sm_90"));
  EXPECT_EQ(choice.candidate.family->name(), "sm90_short_fwd");
  EXPECT_NE(choice.reason.find("tuned table: b1_h8_s512_d64_fp16"), std::string::npos) << choice.reason;
}

// One that did not fit would be passed over without a word.
TEST(Dispatch, EveryEntryFitsItsOwnProblem) {
  const auto table = nlohmann::json::parse(embedded_device_sources().at("tuned.json"));
  for (const auto& [key, entries] : table.items()) {
    for (const auto& [id, candidate] : entries.items()) {
      const Choice choice = choose(id.c_str(), gpu(key.c_str(), "sm_90"));
      EXPECT_TRUE(choice.reason.starts_with("tuned table: ")) << id << " " << candidate << ": " << choice.reason;
      const std::string name = choice.candidate.family->name();
      EXPECT_EQ(candidate.get<std::string>().substr(0, name.size() + 1), name + ":") << id;
    }
  }
}

TEST(Dispatch, TakesTheEntryOfANeighbour) {
  const Choice choice = choose("b1_h8_s500_d64_bf16", gpu("h200", "sm_90"));
  EXPECT_EQ(choice.candidate.family->name(), "sm90_short_fwd");
  EXPECT_NE(choice.reason.find("nearest entry"), std::string::npos) << choice.reason;
}

// A device without a table: few rows or few tiles to the family made for them, the rest to the other.
TEST(Dispatch, PrefersByProblemWhereNoTableSpeaks) {
  const DeviceInfo device = gpu("h100", "sm_90");
  for (const char* small : {"b1_h8_s512_d64_fp16", "b64_h32_hk8_sq1_sk4096_d128_bf16", "b1_h7_s547_d128_fp16_causal"})
    EXPECT_EQ(choose(small, device).candidate.family->name(), "sm90_short_fwd") << small;
  for (const char* large : {"b16_h16_s2048_d64_fp16", "b1_h32_hk8_s4096_d128_bf16_causal"})
    EXPECT_EQ(choose(large, device).candidate.family->name(), "sm90_fwd") << large;
}

// Where all is over before a pipeline would have started, and decoding on what is no Hopper.
TEST(Dispatch, TakesTheShortestWayForTheShortest) {
  for (const char* arch : {"sm_80", "sm_89", "sm_90", "sm_120"}) {
    for (const char* id : {"b1_h8_s32_d64_fp16", "b1_h12_s64_d64_bf16_causal", "b1_h16_s100_d64_fp16"})
      EXPECT_EQ(choose(id, gpu("none", arch)).candidate.family->name(), "sm80_short_fwd") << id << " " << arch;
  }
  EXPECT_EQ(choose("b64_h32_hk8_sq1_sk4096_d128_bf16", gpu("a100", "sm_80")).candidate.print(),
            "sm80_short_fwd:row_blocks=1,key_warps=8,block_n=16,pack_heads=4,early_launch=0");
  EXPECT_EQ(choose("b4_h12_s512_d64_fp16", gpu("a100", "sm_80")).candidate.family->name(), "sm80_fwd");
}

// Keys that are packed, in pages or quantised, and few rows; more rows go to families for prefill, dense decoding to
// the others.
TEST(Dispatch, DecodesPagesAndRaggedBatchesWithKeysDealtOut) {
  for (const char* arch : {"sm_80", "sm_89", "sm_90", "sm_120"}) {
    for (const char* id :
         {"b4_h28_hk4_sq1_sk20000_d128_fp16_raggedfull_page1", "b4_h28_hk4_sq1_sk20000_d128_fp16_raggedfull_page4",
          "b64_h32_hk8_sq1_sk4096_d128_bf16_raggedrandom",
          "b64_h32_hk8_sq1_sk4096_d128_bf16_kve4m3_raggedrandom_page16"})
      EXPECT_EQ(choose(id, gpu("none", arch)).candidate.family->name(), "sm80_decode_fwd") << id << " " << arch;
    for (const char* id : {"b64_h32_hk8_sq1_sk4096_d128_bf16", "b8_h32_s2048_d128_bf16_causal_raggedhalving"})
      EXPECT_NE(choose(id, gpu("none", arch)).candidate.family->name(), "sm80_decode_fwd") << id << " " << arch;
  }
}

// q of 8 bits in the same way; of dense ones those that no family of 8-bit tensor cores has, and few rows of e5m2.
TEST(Dispatch, DecodesEightBitsWithKeysDealtOut) {
  for (const auto& [device, arch] :
       {std::pair("a100", "sm_80"), {"none", "sm_89"}, {"h100", "sm_90"}, {"h200", "sm_90"}, {"none", "sm_120"}}) {
    for (const char* id :
         {"b64_h32_hk8_sq1_sk4096_d128_e4m3_raggedrandom_page16",
          "b4_h28_hk4_sq16_sk20000_d128_e5m2_perhead_causal_raggedfull_page1",
          "b64_h32_hk8_sq4_sk4096_d128_e4m3_raggedrandom", "b64_h32_hk8_sq16_sk4096_d128_e4m3_raggedrandom",
          "b4_h32_hk8_sq16_sk4096_d64_e4m3_perhead_causal_softcap30_raggedfull_page64",
          "b64_h32_hk8_sq1_sk4096_d128_e5m2", "b4_h32_hk8_sq16_sk4096_d128_e5m2_perhead_causal"})
      EXPECT_EQ(choose(id, gpu(device, arch)).candidate.family->name(), "sm80_decode_fwd") << id << " " << arch;
    EXPECT_EQ(choose("b4_h32_hk8_sq500_sk4096_d128_e5m2_causal_raggedrandom_page16", gpu(device, arch))
                  .candidate.family->name(),
              arch == std::string_view("sm_90") ? "sm90_fp8_fwd" : "sm80_decode_fwd")
        << arch;
  }
  for (const char* id : {"b64_h32_hk8_sq1_sk4096_d128_e4m3", "b8_h32_hk8_s2048_d128_e4m3_causal_raggedhalving",
                         "b8_h32_hk8_s2048_d128_e5m2_causal_raggedhalving", "b4_h32_hk8_sq17_sk4096_d128_e5m2"}) {
    EXPECT_EQ(choose(id, gpu("none", "sm_89")).candidate.family->name(), "sm89_fp8_fwd") << id;
    EXPECT_EQ(choose(id, gpu("a100", "sm_80")).candidate.family->name(), "sm80_decode_fwd") << id;
  }
  EXPECT_EQ(choose("b64_h32_hk8_sq1_sk4096_d128_e4m3", gpu("h100", "sm_90")).candidate.family->name(), "sm90_fp8_fwd");
  // A CTA for each of eight heads would read 65,536 keys.
  for (const char* arch : {"sm_89", "sm_90"}) {
    EXPECT_EQ(choose("b1_h8_sq1_sk65536_d128_e4m3", gpu("none", arch)).candidate.family->name(), "sm80_decode_fwd");
    EXPECT_NE(choose("b1_h8_sq1_sk1024_d128_e4m3", gpu("none", arch)).candidate.family->name(), "sm80_decode_fwd");
    EXPECT_NE(choose("b1_h8_sq17_sk65536_d128_e4m3", gpu("none", arch)).candidate.family->name(), "sm80_decode_fwd");
  }
}

// More rows than decoding's, whatever the batch, the cache and the scores are; what its boxes of TMA cannot
// bring goes to decoding all the same.
TEST(Dispatch, PrefillsEightBitsByWgmmaOnHopper) {
  for (const char* device : {"h100", "h200", "none"}) {
    for (const char* id :
         {"b4_h32_hk8_sq500_sk4096_d128_e4m3_causal_raggedrandom_page16",
          "b8_h32_hk8_s2048_d128_e4m3_causal_raggedhalving",
          "b4_h32_hk8_sq17_sk4096_d64_e4m3_perhead_causal_raggedrandom_page2",
          "b4_h32_hk8_sq17_sk4096_d128_e4m3_raggedfull_page1", "b4_h32_hk8_s2048_d128_e4m3_causal_softcap30",
          "b4_h32_hk8_s2048_d64_e4m3_pertoken_causal_alibi_sink",
          "b4_h32_hk8_s2048_d64_e5m2_pertoken_causal_alibi_sink",
          "b4_h32_hk8_sq17_sk4096_d64_e5m2_perhead_causal_raggedrandom_page2", "b4_h32_hk8_sq17_sk4096_d128_e5m2",
          "b4_h32_hk8_sq1_sk4096_d128_e5m2_causal_amax", "b4_h32_hk8_s2048_d128_e5m2_causal_vdn",
          "b4_h32_hk8_s2048_d256_e4m3_perhead_causal_softcap30_alibi_sink_raggedhalving"})
      EXPECT_EQ(choose(id, gpu(device, "sm_90")).candidate.family->name(), "sm90_fp8_fwd") << id << " " << device;
    EXPECT_EQ(choose("b4_h32_hk8_sq500_sk4096_d64_e4m3_causal_raggedrandom_page1", gpu(device, "sm_90"))
                  .candidate.family->name(),
              "sm80_decode_fwd");
  }
}

// Pages of multiples of eight keys, which TMA loads; more than 16 rows are no decoding.
TEST(Dispatch, DecodesPagesOnHopperByTma) {
  for (const char* id :
       {"b64_h32_hk8_sq1_sk1024_d128_bf16_raggedrandom_page16", "b1_h32_hk8_sq1_sk8192_d128_bf16_raggedfull_page8",
        "b8_h64_hk8_sq16_sk900_d64_bf16_causal_raggedfull_page64",
        "b2_h8_sq2_sk900_d128_fp16_causal_softcap5_alibi_sink_raggedhalving_page24"}) {
    for (const char* device : {"h100", "h200", "none"})
      EXPECT_EQ(choose(id, gpu(device, "sm_90")).candidate.family->name(), "sm90_short_fwd") << id << " " << device;
    for (const char* arch : {"sm_80", "sm_89", "sm_120"})
      EXPECT_EQ(choose(id, gpu("none", arch)).candidate.family->name(), "sm80_decode_fwd") << id << " " << arch;
  }
  // One long sequence among short ones would wait for the few CTAs that the bounds give it, but where the others hide
  // it: 48 sequences are too few, 16,384 keys too many, and of 56 sequences the rounds of CTAs come out badly.
  for (const auto& [id, family] : {std::pair("b32_h32_hk8_sq1_sk131072_d128_bf16_raggedfull_page16", "sm80_decode_fwd"),
                                   {"b64_h128_hk8_sq1_sk16384_d128_bf16_raggedfull_page16", "sm80_decode_fwd"},
                                   {"b48_h32_hk8_sq1_sk4096_d128_bf16_raggedfull_page16", "sm80_decode_fwd"},
                                   {"b56_h32_hk8_sq1_sk4096_d128_bf16_raggedfull_page16", "sm80_decode_fwd"},
                                   {"b64_h32_hk8_sq1_sk4096_d128_bf16_raggedrandom_page16", "sm90_short_fwd"},
                                   {"b128_h64_hk8_sq1_sk2048_d128_bf16_raggedfull_page16", "sm90_short_fwd"},
                                   {"b128_h32_hk8_sq1_sk4096_d128_bf16_raggedfull_page16", "sm90_short_fwd"}}) {
    for (const double gbps : {4916.736, 4814.304}) {  // as built in, and as drivers told it of the cards measured
      DeviceInfo device = gpu("h200", "sm_90");
      device.limits.dram_peak_gbps = gbps;
      EXPECT_EQ(choose(id, device).candidate.family->name(), family) << id << " " << gbps;
    }
  }
  const char* prompt = "b8_h64_hk8_sq17_sk9000_d64_bf16_causal_raggedfull_page64";
  EXPECT_EQ(choose(prompt, gpu("none", "sm_90")).candidate.family->name(), "sm90_fwd");
}

// The CTAs of one sequence read what an H100's memory gives, and less than an H200's.
TEST(Dispatch, DealsKeysOutWhereFewCtasWouldReadThemAll) {
  for (const auto& [gbps, family] : {std::pair(4916.7, "sm80_decode_fwd"), {3352.3, "sm90_short_fwd"}}) {
    DeviceInfo device = gpu("none", "sm_90");
    device.limits.clock_mhz = 1980, device.limits.dram_peak_gbps = gbps;
    const char* id = "b2_h32_hk8_sq1_sk16384_d128_bf16_raggedfull_page16";
    EXPECT_EQ(choose(id, device).candidate.family->name(), family) << gbps;
    EXPECT_EQ(choose("b1_h32_hk8_sq1_sk65536_d128_bf16_raggedfull_page16", device).candidate.family->name(),
              "sm80_decode_fwd");
    EXPECT_EQ(choose("b1_h32_hk8_sq1_sk4096_d128_bf16_raggedfull_page16", device).candidate.family->name(),
              "sm90_short_fwd");
  }
}

Choice decoded(const std::string& id, const DeviceInfo& device) {
  Choice choice = dispatch(Problem::parse(id), device);
  EXPECT_EQ(choice.candidate.family->name(), "sm80_decode_fwd") << id;
  return choice;
}
unsigned ctas_of(const std::string& id, const DeviceInfo& device) {
  const Candidate candidate = decoded(id, device).candidate;
  const PlacedProblem problem = PlacedProblem::parse(id);
  return candidate.family->program(candidate.config, problem, device.limits, make_layouts(problem))
      .steps.at(0)
      .launch.grid.x;
}

// Two CTAs of each of 132 SMs have a sequence's key head each, and nothing merges.
TEST(Dispatch, DealsKeysOutWhereEachCtaHasATile) {
  const DeviceInfo device = gpu("h200", "sm_90");
  for (const char* group : {"h8", "h32_hk8", "h64_hk8", "h128_hk8"}) {
    const auto id = [&](int batch, int keys) {
      return fmt::format("b{}_{}_sq1_sk{}_d128_bf16_raggedfull_page16", batch, group, keys);
    };
    EXPECT_EQ(ctas_of(id(32, 1000), device), 256) << group;
    EXPECT_EQ(ctas_of(id(33, 1000), device), 264) << group;
    EXPECT_EQ(choose(id(32, 500).c_str(), device).candidate.family->name(), "sm90_short_fwd") << group;
    EXPECT_EQ(choose(id(34, 1000).c_str(), device).candidate.family->name(), "sm90_short_fwd") << group;
  }
}

// Equal lengths give each CTA whole tiles, or each tile a whole number of CTAs, where that leaves few CTAs out.
TEST(Dispatch, CtasThatShareKeysComeOutEven) {
  const DeviceInfo device = gpu("h200", "sm_90");
  for (const auto& [batch, cache, ctas] : {std::tuple(4, "", 384),
                                           {5, "", 396},
                                           {32, "", 256},
                                           {33, "", 264},
                                           {48, "", 384},
                                           {64, "", 396},
                                           {64, "_kve4m3", 512},
                                           {62, "_kve4m3", 496},
                                           {61, "_kve4m3", 264},
                                           {66, "_kve4m3", 528},
                                           {65, "_kve4m3", 520},
                                           {128, "_kvint8_perhead", 512},
                                           {192, "_kve5m2", 512},
                                           {100, "_kve4m3", 264},
                                           {16, "_kve4m3", 256},
                                           {17, "_kve4m3", 264},
                                           {1, "_kve4m3", 264},
                                           {64, "_kvint4", 512},
                                           {16, "_kvint4", 512}}) {
    const auto id = fmt::format("b{}_h32_hk8_sq1_sk32768_d128_bf16{}_raggedfull_page16", batch, cache);
    EXPECT_EQ(ctas_of(id, device), ctas) << id;
    const bool four = ctas > 3 * 132;
    EXPECT_EQ(decoded(id, device).candidate.print().find("ctas_per_sm=4") != std::string::npos, four) << id;
  }
  // Four CTAs of 8 bits where they were timed.
  for (const char* id : {"b64_h32_hk8_sq1_sk32768_d64_bf16_kve4m3_raggedfull_page16",
                         "b64_h32_hk8_sq1_sk900_d128_bf16_kve4m3_raggedfull_page16",
                         "b64_h32_hk8_sq1_sk32768_d128_bf16_kve4m3_causal_wl63_raggedfull_page16",
                         "b64_h128_hk8_sq1_sk32768_d128_bf16_kve4m3_raggedfull_page16"})
    EXPECT_EQ(decoded(id, device).candidate.print().find("ctas_per_sm=4"), std::string::npos) << id;
  EXPECT_EQ(decoded("b54_h32_hk8_sq1_sk32768_d128_bf16_kve4m3_raggedfull_page16", gpu("a100", "sm_80"))
                .candidate.print()
                .find("ctas_per_sm=4"),
            std::string::npos);
}

// Nine to sixteen query rows: one CTA of eight warps where many share a tile.
TEST(Dispatch, SixteenRowsGoByTheNumberOfTiles) {
  const DeviceInfo device = gpu("h200", "sm_90");
  const auto config = [&](const char* id) { return choose(id, device).candidate.print(); };
  for (const char* id :
       {"b1_h128_hk8_sq1_sk65536_d128_bf16_raggedfull_page16", "b2_h8_hk8_sq16_sk65536_d128_bf16_raggedfull_page16"})
    EXPECT_NE(config(id).find("key_warps=8,block_n=128,num_stages=2,ctas_per_sm=1"), std::string::npos) << config(id);
  const auto many = config("b100_h128_hk8_sq1_sk65536_d128_bf16_raggedfull_page16");
  EXPECT_NE(many.find("num_stages=2,ctas_per_sm=3"), std::string::npos) << many;
  EXPECT_NE(config("b32_h128_hk8_sq1_sk1000_d128_bf16_raggedfull_page16").find("num_stages=3,ctas_per_sm=2"),
            std::string::npos);
}

// Functions of the user's own beside few rows, whatever the keys are: families for prefill do not split a row's keys.
TEST(Dispatch, DecodesWithFunctionsWithKeysDealtOut) {
  for (const char* id :
       {"b64_h32_hk8_sq1_sk4096_d128_bf16", "b1_h32_hk8_sq16_sk32768_d128_bf16_causal",
        "b64_h32_hk8_sq1_sk1024_d128_bf16_raggedrandom_page16", "b8_h32_hk8_sq1_sk9000_d128_bf16_raggedhalving",
        "b64_h32_hk8_sq1_sk4096_d128_bf16_kve4m3_raggedrandom_page16",
        "b2_h8_sq4_sk900_d128_fp16_kvint4_pertoken_softcap5"}) {
    Problem problem = Problem::parse(id);
    set_expressions(problem, "s + bias[h, j]", "j % 7 != 0 || allowed[b, j]",
                    parse_tensors("bias: float[2], allowed: bool[2]"));
    for (const auto& [device, arch] : {std::pair("a100", "sm_80"), {"none", "sm_89"}, {"h200", "sm_90"}})
      EXPECT_EQ(dispatch_as_built(problem, gpu(device, arch)).candidate.family->name(), "sm80_decode_fwd")
          << id << " " << arch;
  }
  Problem prompt = Problem::parse("b1_h32_hk8_sq17_sk4096_d128_bf16_causal");
  set_expressions(prompt, "s + 0.1 * h", "", {});
  EXPECT_EQ(dispatch_as_built(prompt, gpu("h200", "sm_90")).candidate.family->name(), "sm90_fwd");
  EXPECT_EQ(dispatch_as_built(prompt, gpu("a100", "sm_80")).candidate.family->name(), "sm80_fwd");
}

// The parts of a row in sm90_short_fwd go by the bounds of its batch.
TEST(Dispatch, BatchInvariantDecodingKeepsPartsOfAFixedSizeOnHopper) {
  for (const char* id :
       {"b64_h32_hk8_sq1_sk4096_d128_bf16_raggedrandom_page16", "b2_h8_sq16_sk900_d64_fp16_raggedfull_page8"}) {
    const Choice choice = batch_invariant_choice(Problem::parse(id), gpu("h100", "sm_90"));
    EXPECT_EQ(choice.candidate.family->name(), "sm80_decode_fwd") << id;
  }
}

nlohmann::json invariant_config(const std::string& id, const DeviceInfo& device) {
  const Choice choice = batch_invariant_choice(Problem::parse(id), device);
  EXPECT_EQ(choice.candidate.family->name(), "sm80_decode_fwd") << id;
  return choice.candidate.family->space().to_json(choice.candidate.config);
}

int parts_at_once(const std::string& id, const nlohmann::json& config) {
  const sm80_decode_fwd::Config own = {.warp_rows = config.at("warp_rows"),
                                       .row_warps = config.at("row_warps"),
                                       .key_warps = config.at("key_warps"),
                                       .ctas_per_sm = config.at("ctas_per_sm")};
  return sm80_decode_fwd::parts_at_once(own, traits_of(Problem::parse(id)));
}

// Of up to sixteen rows the warps and blocks that decide a row's bits are those of any other number of rows, and one
// row is not computed as if there were sixteen.
TEST(Dispatch, BatchInvariantDecodingFitsItsRowsAndKeepsItsBits) {
  for (const char* arch : {"sm_80", "sm_86", "sm_90", "sm_120"}) {
    for (const char* group : {"h8", "h32_hk8", "h64_hk8", "h64_hk4", "h71_hk1"}) {
      for (const char* rest : {"d128_bf16", "d192_fp16", "d64_dv32_bf16", "d128_bf16_kve4m3",
                               "d192_fp16_kvint8_pertoken", "d128_bf16_kvint4_pertoken"}) {
        nlohmann::json of_one;
        for (const int rows : {1, 2, 4, 5, 16}) {
          for (const int batch : {1, 64}) {
            const auto id = fmt::format("b{}_{}_sq{}_sk4096_{}_raggedfull_page16", batch, group, rows, rest);
            const auto config = invariant_config(id, gpu("none", arch));
            if (of_one.empty()) of_one = config;
            EXPECT_EQ(parts_at_once(id, config), parts_at_once(id, of_one)) << id << " " << arch;
            for (const char* deciding : {"warp_rows", "key_warps", "block_n", "split_keys"})
              EXPECT_EQ(config.at(deciding), of_one.at(deciding)) << id << " " << arch << " " << deciding;
          }
        }
      }
    }
  }
  for (const auto& [id, row_warps, ctas_per_sm] :
       {std::tuple("b64_h32_hk8_sq1_sk4096_d128_bf16_raggedfull_page16", 1, 2),
        {"b64_h32_hk8_sq16_sk4096_d128_bf16_raggedfull_page16", 2, 1}}) {
    const auto config = invariant_config(id, gpu("h200", "sm_90"));
    EXPECT_EQ(config.at("row_warps"), row_warps) << id;
    EXPECT_EQ(config.at("ctas_per_sm"), ctas_per_sm) << id;
    EXPECT_EQ(config.at("key_warps"), 4) << id;
    EXPECT_EQ(config.at("split_keys"), 1024) << id;
  }
}

TEST(Dispatch, FallsBackByArchitectureAndDtype) {
  EXPECT_EQ(choose("b1_h8_s512_d64_fp16", gpu("a100", "sm_80")).candidate.family->name(), "sm80_fwd");
  EXPECT_EQ(choose("b1_h8_s512_d64_fp16", gpu("rtx", "sm_120")).candidate.family->name(), "sm80_fwd");
  EXPECT_EQ(choose("b1_h8_s512_d64_fp32", gpu("h200", "sm_90")).candidate.family->name(), "ref_fwd");
  EXPECT_EQ(choose("b1_h8_s512_d20_fp16", gpu("h200", "sm_90")).candidate.family->name(), "ref_fwd");
}

// What is wider than other families go, dense, ragged and in pages; up to there they are preferred.
TEST(Dispatch, TakesTheWideFamilyForWideHeadDims) {
  for (const char* arch : {"sm_80", "sm_86", "sm_90", "sm_120"}) {
    for (const char* id :
         {"b1_h8_s512_d264_fp16", "b1_h8_hk2_s4096_d512_bf16_causal", "b64_h128_hk1_sq1_sk4096_d576_dv512_bf16",
          "b4_h16_hk1_sq2_sk900_d576_dv512_bf16_raggedhalving",
          "b64_h128_hk1_sq1_sk4096_d576_dv512_bf16_raggedrandom_page64",
          R"({"id":"b1_h8_s512_d512_bf16","mask":"i // 64 == j // 64","score":"s + 0.1 * h"})"})
      EXPECT_EQ(choose(id, gpu("none", arch)).candidate.family->name(),
                arch == std::string_view("sm_90") ? "sm90_wide_fwd" : "sm80_wide_fwd")
          << id << " " << arch;
    for (const char* id :
         {"b4_h128_hk1_sq1_sk4096_d576_dv512_bf16_kve4m3_raggedfull_page64",
          "b4_h128_hk1_sq1_sk4096_d576_dv512_bf16_kve4m3_pertoken_raggedfull_page64",
          "b1_h16_hk1_sq40_sk900_d320_fp16_kvint4_causal", "b64_h8_sq1_sk900_d512_fp16_kvint8_raggedrandom"})
      EXPECT_EQ(choose(id, gpu("none", arch)).candidate.family->name(), "sm80_wide_fwd") << id << " " << arch;
    for (const char* id : {"b1_h8_s512_d256_fp16", "b1_h8_sq2_sk512_d192_bf16_raggedfull",
                           "b1_h8_sq2_sk512_d192_bf16_kvint8_raggedfull"})
      EXPECT_NE(choose(id, gpu("none", arch)).candidate.family->name(), "sm80_wide_fwd") << id << " " << arch;
    // Where a CTA has 99 KB of shared memory, no config of decoding fits codes of head dim 256.
    const bool has_99_kb = arch == std::string_view("sm_86") || arch == std::string_view("sm_120");
    for (const char* id :
         {"b4_h32_hk8_sq1_sk4096_d256_bf16_kve4m3_causal", "b4_h32_hk8_sq1_sk4096_d256_bf16_kvint8_raggedfull_page16"})
      EXPECT_EQ(choose(id, gpu("none", arch)).candidate.family->name(), has_99_kb ? "sm80_wide_fwd" : "sm80_decode_fwd")
          << id << " " << arch;
    for (const char* id : {"b1_h8_s512_d584_fp16", "b1_h8_s512_d260_fp16", "b1_h8_s512_d512_fp32"})
      EXPECT_EQ(choose(id, gpu("none", arch)).candidate.family->name(), "ref_fwd") << id << " " << arch;
  }
}

// Whoever cannot use the first choice finds another: nearer entries first, every family's default after them.
TEST(Dispatch, RanksAllThatCouldRun) {
  const Problem problem = Problem::parse("b1_h8_s500_d64_bf16");
  const DeviceInfo device = gpu("h200", "sm_90");
  const std::vector<Choice> choices = ranked_choices(problem, device);
  EXPECT_EQ(choices.front().reason, dispatch(problem, device).reason);
  std::vector<std::string> defaults;
  for (const Choice& choice : choices) {
    EXPECT_FALSE(choice.candidate.family->why_invalid(choice.candidate.config, problem, device.limits))
        << choice.reason;
    if (choice.reason.starts_with("default")) defaults.push_back(choice.candidate.family->name());
    else EXPECT_TRUE(defaults.empty()) << "a tuned entry after a default: " << choice.reason;
  }
  EXPECT_EQ(std::count(defaults.begin(), defaults.end(), "sm90_fwd"), 1);
  EXPECT_EQ(defaults.back(), "ref_fwd");
}

TEST(Dispatch, DistanceIsZeroForItselfAndInfiniteForAnotherKernel) {
  const auto distance = [](const char* a, const char* b) {
    return problem_distance(Problem::parse(a), Problem::parse(b));
  };
  EXPECT_EQ(distance("b1_h8_s512_d64_fp16", "b1_h8_s512_d64_fp16"), 0);
  EXPECT_EQ(distance("b2_h8_s512_d64_fp16", "b1_h8_s512_d64_fp16"), 1);
  EXPECT_TRUE(std::isinf(distance("b1_h8_s512_d64_fp16", "b1_h8_s512_d128_fp16")));
  EXPECT_TRUE(std::isinf(distance("b1_h8_s512_d64_fp16", "b1_h8_s512_d64_fp16_causal")));
}

// Every default must be a config that its family calls valid, for shapes no suite has.
TEST(Dispatch, ChoicesAreValidForOddProblems) {
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"}) {
    const DeviceInfo device = gpu("none", arch);
    for (const char* id :
         {"b1_h1_s1_d8_fp16", "b3_h7_hk1_sq1_sk100000_d256_bf16", "b2_h12_s197_d64_bf16",
          "b1_h16_s2048_d192_dv128_bf16_causal", "b1_h5_hk1_sq17_sk33_d248_fp16_causal",
          "b1_h64_hk1_sq8_sk4096_d128_bf16", "b1_h128_hk1_sq1_sk8192_d192_dv128_bf16",
          "b1_h1_sq1_sk1_d8_fp16_raggedfull_page8", "b3_h7_hk1_sq1_sk100000_d256_bf16_raggedfull_page24",
          "b300_h64_hk1_sq16_sk40_d72_dv40_fp16_causal_raggedrandom_page256",
          "b9_h128_hk2_sq3_sk8192_d192_dv128_bf16_wl99_raggedhalving_page48"}) {
      const Problem problem = Problem::parse(id);
      const Choice choice = dispatch(problem, device);
      EXPECT_FALSE(choice.candidate.family->why_invalid(choice.candidate.config, problem, device.limits))
          << id << " on " << arch << ": " << choice.candidate.print();
    }
  }
}

}  // namespace
}  // namespace flashcore
