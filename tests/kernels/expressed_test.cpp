// Functions of the user's own in GPU families: those that say what a built-in one says have its results.

#include <gtest/gtest.h>

#include "core/problem_expressions.h"
#include "kernels/candidates.h"
#include "kernels/emulator_run.h"

namespace flashcore::testing {
namespace {

constexpr const char* kCandidates[] = {
    kRef,
    "sm80_fwd:block_m=16,block_n=32,num_warps=1,num_stages=2",
    "sm80_fwd:block_m=64,block_n=48,num_warps=4,num_stages=1",
    "sm80_fwd:block_m=32,block_n=32,num_warps=2,num_stages=3,persistent=1",
    "sm90_fwd:num_consumers=2,block_n=32,num_stages=2,scheduler=1",
    "sm90_fwd:num_consumers=3,block_n=48,num_stages=2,scheduler=2,q_stages=1",
    "sm90_fwd:num_consumers=1,block_n=64,num_stages=2,ping_pong=0,scheduler=0,q_stages=1",
    kDecode,
    kDecodeParts,
};

// Of ragged batches, which go round tiles and leave fewer registers.
constexpr const char* kRaggedCandidates[] = {
    kRef,
    kCandidates[1],
    kCandidates[2],
    kCandidates[3],
    "sm90_fwd:num_consumers=2,block_n=32,num_stages=2,scheduler=1",
    "sm90_fwd:num_consumers=1,block_n=64,num_stages=2,ping_pong=0,scheduler=2,q_stages=1",
    kDecode,
    kDecodeParts,
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

// Each sequence has its own lengths and its place in the batch, and lists of blocks for tiles that it has; rows and
// keys of a page end before the tile does.
TEST(Expressed, InRaggedBatches) {
  struct Ragged {
    const char* problem;
    const char* score;
    const char* mask;
    const char* tensors;
  };
  constexpr Ragged kCases[] = {
      {"b3_h2_hk1_sq150_sk170_d64_fp16_raggedhalving", "", "j <= i + seqlen_kv - seqlen_q && (b != 1 || j % 2 == 0)",
       ""},
      {"b3_h2_hk1_sq150_sk170_d64_fp16_causal_raggedhalving", "s + bias[b, h, i, j]", "", "bias: float[4]"},
      {"b5_h2_sq70_sk130_d64_bf16_causal_wl90_raggedrandom", "s - 0.02 * b * (seqlen_kv - j)",
       "document_q[b, i] == document_kv[b, j] || j < 8 * b", "document_q: int[2], document_kv: int[2]"},
      {"b4_h2_hk1_sq90_sk300_d64_fp16_softcap2_sink_raggedhalving", "s + 0.1 * h", "i // 37 == j // 37 || h == b", ""},
      {"b2_h2_sq150_sk170_d64_fp16_raggedhalving", "",
       "j >= 20 * (start[b, h, i] % 5) && j < 100 - 20 * (end[b, h, i] % 5) || j >= 150 && j < 160 + end[b, h, i] % 9",
       "start: int[3], end: int[3]"},
      {"b3_h2_hk1_sq40_sk260_d64_fp16_causal_raggedhalving_page16", "0.5 * s + gain[b]", "j % 64 < 40 && keep[b, j]",
       "gain: float[1], keep: bool[2]"},
      {"b2_h2_sq33_sk90_d64_bf16_raggedfull_page7", "", "(i + j + b) % 3 != 0", ""},
  };
  for (const Ragged& one : kCases) {
    Problem problem = Problem::parse(one.problem);
    set_expressions(problem, one.score, one.mask, parse_tensors(one.tensors));
    for (const char* candidate : kRaggedCandidates) {
      if (problem.paged() && std::string_view(candidate).starts_with("sm90_fwd")) continue;  // refused by name
      EXPECT_EQ(run_on_emulator(device_sources(), candidate, {problem, Layout::kBshd}, 3).verdict(), "passed")
          << candidate << " " << one.problem << " " << one.score << " " << one.mask;
    }
  }
}

struct Decoding {
  const char* problem;
  const char* score;
  const char* mask;
  const char* tensors;
};

// Rows of several heads and positions in a tile, parts of a row's keys in several CTAs, heads of more than 128 columns;
// rows and keys that see nothing of each other.
TEST(Expressed, OfFewRowsOnManyKeys) {
  constexpr Decoding kCases[] = {
      {"b2_h6_hk2_sq1_sk700_d64_fp16", "s * (1 + h) - 0.01 * (seqlen_kv - 1 - j)", "(j + h) % 3 != b", ""},
      {"b1_h5_hk1_sq7_sk300_d64_dv32_bf16_causal_wl200_softcap5_alibi_sink", "s + bias[b, h, i, j]",
       "keep[h, j] || j == seqlen_kv - seqlen_q + i", "bias: float[4], keep: bool[2]"},
      {"b3_h8_hk2_sq2_sk500_d72_fp16_raggedhalving", "s + bias[b, h, i, j]", "document_q[b, i] == document_kv[b, j]",
       "bias: float[4], document_q: int[2], document_kv: int[2]"},
      {"b4_h4_hk1_sq3_sk400_d144_bf16_causal_raggedrandom_page16", "where(keep[j], s, -inf)",
       "i % 2 == 0 || j < 40 * b", "keep: bool[1]"},
      {"b40_h4_hk2_sq1_sk60_d32_fp16_sink_raggedrandom_page7", "", "j >= seqlen_kv - 10 - h && hk * b != 3", ""},
      {"b2_h2_sq1_sk400_d64_fp16", "s + 0.1 * h", "j < 0 * b", ""},
  };
  for (const Decoding& one : kCases) {
    Problem problem = Problem::parse(one.problem);
    set_expressions(problem, one.score, one.mask, parse_tensors(one.tensors));
    for (const char* candidate : {kDecode, kDecodeParts, "sm80_decode_fwd"})
      EXPECT_EQ(run_on_emulator(device_sources(), candidate, {problem, Layout::kBhsd}, 3).verdict(), "passed")
          << candidate << " " << one.problem << " " << one.score << " " << one.mask;
  }
}

// Functions take what codes stand for: with a factor for all, for each head, for each key; of rows that are scaled into
// fp16's range and of heads whose Q stays in shared memory.
TEST(Expressed, OfQuantisedCaches) {
  constexpr Decoding kCases[] = {
      {"b2_h4_hk2_sq2_sk300_d64_fp16_kve4m3_perhead", "s + bias[b, h, i, j]", "(j + h) % 5 != i", "bias: float[4]"},
      {"b2_h4_hk2_sq2_sk300_d64_bf16_kve5m2_causal", "2 * tanh(s / 2)", "keep[b, j]", "keep: bool[2]"},
      {"b2_h4_hk2_sq1_sk300_d64_fp16_kvint8_pertoken", "s * (1 + h) + 0.01 * j", "", ""},
      {"b2_h4_hk2_sq1_sk200_d64_fp16_kvint4_perhead_softcap5_alibi_sink", "s - slope[h]", "", "slope: float[1]"},
      {"b3_h4_hk2_sq3_sk300_d64_bf16_kvint4_causal_raggedhalving", "max(s, -1)", "h % 2 == 0 || j % 2 == 0", ""},
      {"b3_h4_hk2_sq3_sk300_d64_bf16_kvint8_perhead_raggedhalving_page16", "", "allowed[b, h, i, j]",
       "allowed: bool[4]"},
      {"b3_h4_hk2_sq1_sk200_d192_dv64_fp16_kve4m3_pertoken_wl90_raggedrandom_page16", "0.5 * s + gain[b]",
       "j % 64 < 40", "gain: float[1]"},
  };
  for (const Decoding& one : kCases) {
    Problem problem = Problem::parse(one.problem);
    set_expressions(problem, one.score, one.mask, parse_tensors(one.tensors));
    for (const char* candidate : {kRef, kDecode, kDecodeParts, "sm80_decode_fwd"})
      EXPECT_EQ(run_on_emulator(device_sources(), candidate, {problem, Layout::kBshd}, 3).verdict(), "passed")
          << candidate << " " << one.problem << " " << one.score << " " << one.mask;
  }
}

// Of heads whose O no warp holds: lists of blocks where a tile has one head and all its keys, and else every pair; rows
// of several heads in a tile, parts of a tile's keys, pages, and on Ampere codes with a factor of each head and key.
TEST(Expressed, OfWideHeads) {
  constexpr Decoding kCases[] = {
      {"b1_h2_hk1_sq90_sk130_d264_dv72_fp16_causal", "s + bias[b, h, i, j]", "i // 70 == j // 40 || j >= 120",
       "bias: float[4]"},
      {"b2_h4_hk2_sq20_sk70_d264_dv72_bf16_alibi_sink", "2 * tanh(s / 2)", "(j + h) % 3 != b", ""},
      {"b3_h4_hk1_sq3_sk200_d328_dv272_bf16_causal_raggedhalving_page16", "s * (1 + h) - 0.01 * j",
       "keep[b, j] || j == 0", "keep: bool[2]"},
      {"b3_h2_hk1_sq90_sk80_d264_dv72_fp16_causal_softcap5_raggedhalving", "s - 0.02 * b * (seqlen_kv - j)",
       "document_q[b, i] == document_kv[b, j] || j < 8 * b", "document_q: int[2], document_kv: int[2]"},
      {"b2_h4_hk2_sq9_sk100_d272_dv144_fp16_kvint8_pertoken_causal", "max(s, -1)", "h % 2 == 0 || j % 2 == 0", ""},
      {"b2_h4_hk2_sq9_sk100_d272_dv144_bf16_kve4m3_perhead", "s * s", "", ""},
  };
  for (const Decoding& one : kCases) {
    Problem problem = Problem::parse(one.problem);
    set_expressions(problem, one.score, one.mask, parse_tensors(one.tensors));
    for (const char* candidate :
         {kWideHeads, kWideSplit, kHopperWide, kHopperWideSplit, kHopperWidePacked, kHopperWideListed}) {
      const bool is_hopper = std::string_view(candidate).starts_with("sm90");
      if (is_hopper && problem.has_quantised_cache()) continue;                                     // refused by name
      if (problem.group_size() == 2 && std::string_view(candidate) == kHopperWidePacked) continue;  // packs four
      EXPECT_EQ(run_on_emulator(device_sources(), candidate, {problem, Layout::kBshd}, 3).verdict(), "passed")
          << candidate << " " << one.problem << " " << one.score << " " << one.mask;
    }
  }
}

// The same of q, k and v of 8 bits, with a factor for all, for each key head, and for each row and key; of tiles of
// several row groups, some of whose blocks only one of them sees; and of V that lies transposed.
TEST(Expressed, OfEightBits) {
  constexpr Decoding kCases[] = {
      {"b2_h2_hk1_sq150_sk170_d64_e4m3_perhead_causal", "s + bias[b, h, i, j]",
       "(j // 40 - h) % 3 != b || i % 64 == j % 50", "bias: float[4]"},
      {"b1_h2_sq200_sk300_d64_e4m3_wl90", "", "i // 70 == j // 70 || j >= 290", ""},
      {"b1_h2_hk1_sq130_sk150_d128_e4m3_ofp16_softcap5_alibi_sink", "where(j < i, s, -1e9)", "", ""},
      {"b1_h2_sq70_sk150_d48_e4m3_pertoken_causal", "2 * tanh(s / 2)", "keep[b, j]", "keep: bool[2]"},
      {"b1_h1_sq70_sk150_d64_e4m3_pertoken_softcap5_sink", "s - slope[h]", "", "slope: float[1]"},
      {"b1_h2_sq70_sk150_d192_e4m3_causal", "s * (1 + h) - 0.01 * j", "j % 100 < 40 || i == j", ""},
      {"b3_h2_hk1_sq150_sk170_d64_e4m3_causal_raggedhalving", "s + bias[b, h, i, j]",
       "(j // 40 - h) % 3 != b || (seqlen_kv - j) % 64 == i % 50", "bias: float[4]"},
      {"b5_h2_sq70_sk130_d64_e4m3_perhead_causal_wl90_softcap5_raggedrandom", "s - 0.02 * b * (seqlen_kv - j)",
       "document_q[b, i] == document_kv[b, j] || j < 8 * b", "document_q: int[2], document_kv: int[2]"},
      {"b3_h4_hk2_sq9_sk150_d64_e4m3_perhead_causal_raggedhalving_page16", "max(s, -1)", "h % 2 == 0 || j % 2 == 0",
       ""},
      {"b1_h2_sq40_sk90_d64_e4m3_vdn", "s + 0.1 * h", "(i + j) % 3 != 0", ""},
      {"b2_h2_hk1_sq70_sk150_d128_e4m3_perhead_causal_softcap5_sink_vdn", "s + bias[b, h, i, j]", "", "bias: float[4]"},
      {"b1_h2_sq130_sk203_d64_e4m3_pertoken_alibi_vdn", "where(j < i, s, -1e9)",
       "document_q[b, i] == document_kv[b, j] || j < 8", "document_q: int[2], document_kv: int[2]"},
      {"b1_h1_s150_d256_e5m2_vdn", "", "i // 40 == j // 40 || j < 9", ""},
      {"b1_h2_sq40_sk90_d64_e5m2", "s + 0.1 * h", "(i + j) % 3 != 0", ""},
      {"b1_h2_hk1_sq70_sk170_d64_e5m2_pertoken_causal", "", "i // 40 == j // 40 || j < 9", ""},
  };
  for (const Decoding& one : kCases) {
    Problem problem = Problem::parse(one.problem);
    set_expressions(problem, one.score, one.mask, parse_tensors(one.tensors));
    int takers = 0;
    for (const std::string& candidate :
         {std::string(kRef), std::string(kDecode), std::string(kAda), std::string("sm89_fp8_fwd"),
          std::string(kSm90Fp8), with(kSm90Fp8Single, "block_n", 64), std::string("sm90_fp8_fwd")}) {
      const std::size_t colon = candidate.find(':');
      const Family& family = family_by_name(candidate.substr(0, colon));
      const DeviceLimits limits = limits_of_arch("sm_90");
      if (family.why_unsupported(problem, limits)) continue;
      // Some leave too few registers for some of these.
      if (colon != candidate.npos &&
          family.why_invalid(
              family.space().parse(candidate.substr(colon + 1), family.default_config(problem, limits), family.name()),
              problem, limits))
        continue;
      ++takers;
      EXPECT_EQ(run_on_emulator(device_sources(), candidate, {problem, Layout::kBshd}, 3).verdict(), "passed")
          << candidate << " " << one.problem << " " << one.score << " " << one.mask;
    }
    // Pages have no kernels with functions but the naive one and that of few rows; V that lies transposed has Hopper's.
    const bool is_usual = !problem.paged() && !problem.has_transposed_v();
    EXPECT_GE(takers, problem.has_transposed_v() ? 2 : is_usual && problem.head_dim <= 128 ? 4 : 1) << one.problem;
  }
}

}  // namespace
}  // namespace flashcore::testing
