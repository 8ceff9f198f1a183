#pragma once
// Problems with tails, empty rows and uneven sequences, and small configs of every GPU family, for tests on the
// emulator.

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace flashcore::testing {

// Problems. Causal with tails, more tiles than the emulator has SMs; rows that see no key; one head group of two.
inline constexpr const char* kCausal = "b1_h4_s200_d64_fp16_causal";
inline constexpr const char* kNoKeys = "b1_h1_sq200_sk33_d64_fp16_causal";
inline constexpr const char* kGrouped = "b1_h2_hk1_sq70_sk100_d64_bf16";
inline constexpr const char* kShortKeys = "b1_h8_sq600_sk20_d64_fp16";  // one block of keys a tile
// Bounded on both sides: tiles of rows whose upper ones see nothing on the right, and whose lower ones nothing on the
// left.
inline constexpr const char* kWindow = "b1_h2_s260_d64_fp16_causal_wl40";
inline constexpr const char* kLeftOnly = "b1_h2_sq70_sk200_d64_fp16_wl30";
// Functions of the user's own: blocks in the middle of a tile's keys that nobody sees, another mask for each head.
inline constexpr const char* kListed =
    R"({"id":"b2_h2_sq150_sk170_d64_fp16_causal","score":"s + bias[b, h, i, j]",)"
    R"("mask":"(j // 40 - h) % 3 != b || i % 64 == j % 50","tensors":"bias: float[4]"})";
// The same of sequences of 150, 75 and 38 rows and of 170, 85 and 43 keys.
inline constexpr const char* kListedRagged =
    R"({"id":"b3_h2_hk1_sq150_sk170_d64_fp16_causal_bshd_raggedhalving","score":"s + bias[b, h, i, j]",)"
    R"("mask":"(j // 40 - h) % 3 != b || (seqlen_kv - j) % 64 == i % 50","tensors":"bias: float[4]"})";
inline constexpr const char* kListedPaged =
    R"({"id":"b2_h2_sq40_sk300_d64_fp16_bshd_raggedhalving_page16","mask":"j // 64 % 2 == b || i == j"})";
// Of tiles that pack three heads, or two, on keys that CTAs share, without and with factors of the keys' codes.
inline constexpr const char* kPackedFunctions =
    R"({"id":"b2_h6_hk2_sq3_sk300_d64_fp16_causal","score":"s * (1 + 0.2 * h) + bias[b, j]",)"
    R"("mask":"(j + h) % 3 != i || j < 40 * b","tensors":"bias: float[2]"})";
inline constexpr const char* kCodedFunctions =
    R"({"id":"b2_h4_hk2_sq2_sk200_d64_fp16_kve4m3_perhead","score":"2 * tanh(s / 2) + bias[b, j]",)"
    R"("tensors":"bias: float[2]"})";
// Of wide heads: tiles that pack three heads, or four; codes; and lists of the blocks that 64 rows see.
inline constexpr const char* kWideFunctions =
    R"({"id":"b2_h12_hk3_sq9_sk100_d264_dv72_fp16_causal","score":"s * (1 + 0.2 * h) + bias[b, j]",)"
    R"("mask":"(j + h) % 3 != i || j < 40 * b","tensors":"bias: float[2]"})";
inline constexpr const char* kWideCodedFunctions =
    R"({"id":"b1_h2_sq9_sk100_d272_dv144_bf16_kve4m3_perhead","score":"2 * tanh(s / 2) + 0.01 * j"})";
inline constexpr const char* kWideListed =
    R"({"id":"b2_h2_sq150_sk170_d264_dv72_fp16_causal","score":"s + bias[b, h, i, j]",)"
    R"("mask":"(j // 40 - h) % 3 != b || i % 64 == j % 50","tensors":"bias: float[4]"})";
// Functions of scores, and rows that see nothing but their sink.
inline constexpr const char* kSoftcap = "b1_h2_s100_d64_fp16_causal_softcap5";
inline constexpr const char* kAlibi = "b2_h3_sq100_sk150_d64_fp16_alibibatch";
inline constexpr const char* kSink = "b1_h3_sq90_sk60_d64_bf16_causal_sink";
// Sequences of 70, 35 and 17 rows and of 100, 50 and 25 keys; the last ends with the tensors.
inline constexpr const char* kRagged = "b3_h2_hk1_sq70_sk100_d64_fp16_causal_bshd_alibibatch_raggedhalving";
inline constexpr const char* kRaggedFull = "b3_h2_hk1_sq70_sk100_d64_bf16_bshd_raggedhalving";
// More tiles than CTAs, of one block each.
inline constexpr const char* kRaggedShort = "b12_h4_s30_d64_fp16_raggedfull";
// Sequences of 130, 65, 32, 16 and 8 rows, so that one section has levels of several.
inline constexpr const char* kRaggedLevels = "b5_h1_s130_d64_fp16_causal_raggedhalving";
// Sequences of 50, 25 and 12 keys: last pages of 2, 9 and 12 of 16 keys.
inline constexpr const char* kPagedCache = "b3_h2_hk1_sq5_sk50_d64_dv32_bf16_raggedhalving_page16";
// Pages of one key, and of more keys than a block.
inline constexpr const char* kPagedKeys = "b3_h2_hk1_sq5_sk150_d64_dv32_bf16_raggedhalving_page1";
// Tiles without keys, between which nothing but the slots makes lanes wait for each other.
inline constexpr const char* kPagedNoKeys = "b12_h4_sq5_sk1_d64_fp16_raggedrandom_page1";
inline constexpr const char* kPagedTable = "b2_h1_sq5_sk33_d64_fp16_raggedfull_page1";  // that ends with its last row
inline constexpr const char* kPagedLarge = "b3_h2_hk1_sq5_sk150_d64_dv32_bf16_raggedhalving_page128";
// Two tiles of 19 blocks of 32 keys, of which eight CTAs get five or four each.
inline constexpr const char* kSplitTiles = "b2_h4_hk1_sq1_sk600_d64_fp16";
// More parts of 128 keys than are merged at once; the last keys have the highest scores.
inline constexpr const char* kManyParts = "b1_h2_hk1_sq1_sk4700_d16_fp16_alibi";
// So many that they merge in groups.
inline constexpr const char* kGroupsOfParts = "b1_h2_hk1_sq1_sk7000_d16_fp16_alibi";
// More than 64 groups of 16 parts: a lane has more of them than it holds. The last one is full, but for some keys.
inline constexpr const char* kManyGroups = "b1_h1_sq1_sk133100_d16_fp16";
// By way of pages, sequences of different lengths.
inline constexpr const char* kPagedCodes = "b3_h4_hk2_sq3_sk300_d64_bf16_kve4m3_perhead_causal_raggedhalving_page16";
// q of 8 bits too: tiles of 16 rows and of two.
inline constexpr const char* kPagedBytes = "b2_h4_hk2_sq9_sk150_d64_e4m3_perhead_causal_raggedhalving_page16";
// Uneven pieces of O, rows of three heads, tiles of rows that do not exist; parts of a tile, and pages.
inline constexpr const char* kWideRows = "b1_h6_hk2_sq15_sk100_d264_dv144_fp16_causal";
inline constexpr const char* kWidePages = "b2_h16_hk1_sq1_sk200_d576_dv512_bf16_raggedhalving_page16";
// Quantised caches of wide heads: a factor of each key, in pages; a factor of each head; int4 beneath a softcap.
inline constexpr const char* kWideCodes =
    "b2_h6_hk2_sq5_sk150_d272_dv144_fp16_kvint8_pertoken_causal_raggedhalving_page16";
inline constexpr const char* kWideHeadCodes = "b2_h6_hk2_sq9_sk100_d272_dv144_bf16_kve4m3_perhead_causal_raggedhalving";
inline constexpr const char* kWideNibbles = "b2_h6_hk2_sq9_sk100_d288_dv160_fp16_kvint4_perhead_causal_softcap5";
inline constexpr const char* kPagedDecode = "b3_h4_hk2_sq3_sk300_d64_bf16_causal_raggedhalving_page16";
// A tile of two row groups; five sequences as long as each other on an emulated GPU of four SMs.
inline constexpr const char* kPagedChunk = "b3_h2_hk1_sq70_sk150_d64_bf16_causal_raggedhalving_page16";
inline constexpr const char* kPagedAlike = "b5_h2_sq1_sk100_d64_fp16_raggedfull_page8";
inline constexpr const char* kShortTable = "b2_h1_sq5_sk33_d64_fp16_raggedfull_page8";  // that ends with its last row
// 8 bits: a factor for each key head, functions of scores, sequences of 70, 35 and 17 rows.
inline constexpr const char* kBytes = "b2_h4_hk2_s200_d64_e4m3_perhead_causal";
inline constexpr const char* kBytesScored = "b2_h4_hk2_sq70_sk100_d64_e4m3_perhead_softcap5_alibibatch_sink";
inline constexpr const char* kBytesRagged = "b3_h4_hk2_sq70_sk100_d64_e4m3_perhead_causal_raggedhalving";
// More tiles than CTAs, of one block each; sequences without keys; last pages of 2, 9 and 12 of 16 keys; head dims
// whose V comes in two parts.
inline constexpr const char* kBytesRaggedFull = "b3_h4_hk2_sq70_sk100_d64_e4m3_perhead_bshd_raggedhalving";
inline constexpr const char* kBytesRaggedShort = "b12_h4_s30_d64_e4m3_raggedfull";
inline constexpr const char* kBytesNoKeys = "b6_h2_sq70_sk90_d48_e4m3_bshd_raggedrandom";
inline constexpr const char* kBytesPaged = "b3_h2_hk1_sq5_sk50_d64_dv32_e4m3_perhead_raggedhalving_page16";
inline constexpr const char* kBytesPagedParts = "b2_h2_hk1_sq40_sk150_d192_e4m3_causal_raggedhalving_page16";
// Functions of the user's own, as kListed and kListedRagged have them.
inline constexpr const char* kBytesListed =
    R"({"id":"b2_h2_hk1_sq150_sk170_d64_e4m3_perhead_causal","score":"s + bias[b, h, i, j]",)"
    R"("mask":"(j // 40 - h) % 3 != b || i % 64 == j % 50","tensors":"bias: float[4]"})";
inline constexpr const char* kBytesListedRagged =
    R"({"id":"b3_h2_hk1_sq150_sk170_d64_e4m3_perhead_causal_bshd_raggedhalving","score":"s + bias[b, h, i, j]",)"
    R"("mask":"(j // 40 - h) % 3 != b || (seqlen_kv - j) % 64 == i % 50","tensors":"bias: float[4]"})";
// Blocks of 64 keys that no tile lists, and that one row group of a tile sees alone.
inline constexpr const char* kBytesBands =
    R"({"id":"b1_h6_sq200_sk300_d64_e4m3","mask":"i // 70 == j // 70 || j >= 290"})";
inline constexpr const char* kBytesScoreOfRows = R"({"id":"b1_h2_s70_d64_e4m3_pertoken","score":"tanh(s) * 2"})";
inline constexpr const char* kBytesSoftcapOfRows = "b1_h2_s70_d64_e4m3_pertoken_softcap5";
inline constexpr const char* kBytesOdd = "b1_h2_s70_d64_dv48_e4m3";
inline constexpr const char* kWide = "b1_h1_s100_d128_fp16";
inline constexpr const char* kHalfBlock = "b1_h1_s100_d96_fp16";  // of 64 columns

inline constexpr const char* kSm80 =
    "sm80_fwd:block_m=64,block_n=32,num_warps=4,num_stages=2,smem_layout=1,q_in_registers=0,persistent=1,ctas_per_sm=1";
inline constexpr const char* kSm80Deep =
    "sm80_fwd:block_m=64,block_n=32,num_warps=4,num_stages=3,smem_layout=1,q_in_registers=0,persistent=0,ctas_per_sm=1";
inline constexpr const char* kSm80One =
    "sm80_fwd:block_m=64,block_n=32,num_warps=4,num_stages=1,smem_layout=1,q_in_registers=0,persistent=1,ctas_per_sm=1";
inline constexpr const char* kSm80Padded =
    "sm80_fwd:block_m=64,block_n=32,num_warps=4,num_stages=2,smem_layout=0,q_in_registers=0,persistent=0,ctas_per_sm=1";
inline constexpr const char* kSm90 =
    "sm90_fwd:num_consumers=2,block_n=32,num_stages=2,q_stages=2,ping_pong=1,rescale_threshold=0,scheduler=2,cluster=1,"
    "key_groups=1";
// Turns of the softmax.
inline constexpr const char* kSm90Softmax =
    "sm90_fwd:num_consumers=2,block_n=32,num_stages=2,q_stages=1,ping_pong=4,rescale_threshold=8,scheduler=1,cluster=1,"
    "key_groups=1";
// Steps of 16 keys: four in one asm, and three.
inline constexpr const char* kSm90Seven =
    "sm90_fwd:num_consumers=2,block_n=112,num_stages=2,q_stages=1,ping_pong=1,rescale_threshold=8,scheduler=0,cluster="
    "1,key_groups=1";
inline constexpr const char* kSm90Cluster =
    "sm90_fwd:num_consumers=2,block_n=32,num_stages=2,q_stages=2,ping_pong=1,rescale_threshold=0,scheduler=1,cluster=2,"
    "key_groups=1";
inline constexpr const char* kSm90Groups =
    "sm90_fwd:num_consumers=4,block_n=32,num_stages=4,q_stages=2,ping_pong=1,rescale_threshold=0,scheduler=2,cluster=1,"
    "key_groups=2";
// Blocks of more keys than a warp has lanes.
inline constexpr const char* kSm90Boxes =
    "sm90_fwd:num_consumers=2,block_n=80,num_stages=2,q_stages=1,ping_pong=0,rescale_threshold=8,scheduler=1,cluster=1,"
    "key_groups=1";
// More keys to a block than four warps have lanes.
inline constexpr const char* kSm90Tall =
    "sm90_fwd:num_consumers=2,block_n=160,num_stages=2,q_stages=1,ping_pong=0,rescale_threshold=8,scheduler=1,cluster="
    "1,"
    "key_groups=1";
// One row group of 64, whose one consumer has no turns.
inline constexpr const char* kSm90Single =
    "sm90_fwd:num_consumers=1,block_n=48,num_stages=2,q_stages=1,ping_pong=0,rescale_threshold=8,scheduler=1,cluster=1,"
    "key_groups=1";
// Without turns, which order much else as well.
inline constexpr const char* kSm90GroupsNoTurns =
    "sm90_fwd:num_consumers=2,block_n=32,num_stages=4,q_stages=2,ping_pong=0,rescale_threshold=0,scheduler=1,cluster=1,"
    "key_groups=2";
inline constexpr const char* kShort =
    "sm90_short_fwd:row_groups=1,key_groups=2,cluster=2,block_n=32,num_stages=2,pack_heads=1,early_launch=1";
inline constexpr const char* kShortOne =
    "sm90_short_fwd:row_groups=1,key_groups=2,cluster=1,block_n=32,num_stages=2,pack_heads=1,early_launch=0";
inline constexpr const char* kShortRing =
    "sm90_short_fwd:row_groups=2,key_groups=1,cluster=2,block_n=32,num_stages=1,pack_heads=1,early_launch=0";
inline constexpr const char* kShortFour =
    "sm90_short_fwd:row_groups=1,key_groups=1,cluster=4,block_n=32,num_stages=2,pack_heads=1,early_launch=0";
inline constexpr const char* kShortPacked =
    "sm90_short_fwd:row_groups=1,key_groups=1,cluster=2,block_n=32,num_stages=2,pack_heads=8,early_launch=0";
// On pages: one part, whose stages are filled again and again; four parts; two row groups, of which one loads.
inline constexpr const char* kShortPages =
    "sm90_short_fwd:row_groups=1,key_groups=1,cluster=1,block_n=32,num_stages=2,pack_heads=2,early_launch=0";
inline constexpr const char* kShortPagesParts =
    "sm90_short_fwd:row_groups=1,key_groups=2,cluster=2,block_n=32,num_stages=1,pack_heads=4,early_launch=0";
inline constexpr const char* kShortPagesRows =
    "sm90_short_fwd:row_groups=2,key_groups=1,cluster=1,block_n=64,num_stages=1,pack_heads=1,early_launch=0";
inline constexpr const char* kDirect = "sm80_short_fwd:row_blocks=1,key_warps=4,block_n=16,pack_heads=1,early_launch=0";
inline constexpr const char* kDirectOne =
    "sm80_short_fwd:row_blocks=2,key_warps=1,block_n=16,pack_heads=2,early_launch=0";
inline constexpr const char* kDecode =
    "sm80_decode_fwd:warp_rows=16,row_warps=1,key_warps=2,block_n=32,num_stages=3,ctas_per_sm=2,min_blocks=1,split_"
    "keys=0";
inline constexpr const char* kDecodeEight =
    "sm80_decode_fwd:warp_rows=8,row_warps=1,key_warps=2,block_n=32,num_stages=2,ctas_per_sm=2,min_blocks=1,split_keys="
    "0";
inline constexpr const char* kDecodeShortParts =
    "sm80_decode_fwd:warp_rows=16,row_warps=1,key_warps=1,block_n=128,num_stages=2,ctas_per_sm=2,min_blocks=1,"
    "split_keys=128";
inline constexpr const char* kDecodeParts =
    "sm80_decode_fwd:warp_rows=16,row_warps=2,key_warps=1,block_n=16,num_stages=2,ctas_per_sm=1,min_blocks=1,split_"
    "keys=128";
inline constexpr const char* kWideHeads =
    "sm80_wide_fwd:row_warps=2,column_warps=2,block_n=32,num_stages=3,num_splits=1,ctas_per_sm=1";
inline constexpr const char* kWideSplit =
    "sm80_wide_fwd:row_warps=1,column_warps=4,block_n=32,num_stages=2,num_splits=4,ctas_per_sm=1";
// Of wgmma, in clusters: one head's rows; heads packed, whose keys are split.
inline constexpr const char* kHopperWide =
    "sm90_wide_fwd:block_n=32,num_slots=4,scheduler=1,cluster=2,pack_heads=1,num_splits=1";
inline constexpr const char* kHopperWideSplit =
    "sm90_wide_fwd:block_n=32,num_slots=3,scheduler=2,cluster=1,pack_heads=1,num_splits=4";
inline constexpr const char* kHopperWidePacked =
    "sm90_wide_fwd:block_n=64,num_slots=5,scheduler=1,cluster=2,pack_heads=4,num_splits=3";
inline constexpr const char* kHopperWideListed =
    "sm90_wide_fwd:block_n=32,num_slots=5,scheduler=1,cluster=1,pack_heads=1,num_splits=1";
// The problem, or one as wide as the candidate's family wants it.
inline std::string widened(std::string_view candidate, std::string id) {
  if (candidate.find("_wide_fwd") == candidate.npos) return id;
  for (const auto& [narrow, wide] : {std::pair("_d64_", "_d264_dv144_"),
                                     {"_d72_", candidate.starts_with("sm90") ? "_d264_" : "_d136_"},
                                     {"_d24_dv40_", "_d24_dv264_"}})
    if (const std::size_t at = id.find(narrow); at != id.npos)
      return id.replace(at, std::string_view(narrow).size(), wide);
  return id;
}
// The candidate with another value of a field that it names.
inline std::string with(std::string candidate, std::string_view field, int value) {
  const std::size_t name = candidate.find(std::string(field) + "="), at = name + field.size() + 1;
  return candidate.replace(at, std::min(candidate.find(',', at), candidate.size()) - at, std::to_string(value));
}
inline constexpr const char* kAda =
    "sm89_fp8_fwd:block_m=64,block_n=32,num_warps=4,num_stages=2,q_in_registers=0,promote_keys=32,p_exponent=6,"
    "persistent=1,ctas_per_sm=1";
inline constexpr const char* kAdaDeep =
    "sm89_fp8_fwd:block_m=64,block_n=32,num_warps=4,num_stages=3,q_in_registers=1,promote_keys=0,p_exponent=6,"
    "persistent=0,ctas_per_sm=1";
// Of 8 bits by wgmma: tiles of two consumers, of three, with turns until their multiplies are done, of two with turns
// of the softmax, and of one.
inline constexpr const char* kSm90Fp8 =
    "sm90_fp8_fwd:num_consumers=2,block_n=64,num_stages=2,v_stages=2,q_stages=2,ping_pong=1,overlap=0,promote_every=1,"
    "pv_columns=64,p_exponent=6,scheduler=2";
inline constexpr const char* kSm90Fp8Three =
    "sm90_fp8_fwd:num_consumers=3,block_n=32,num_stages=3,v_stages=1,q_stages=1,ping_pong=3,overlap=1,promote_every=1,"
    "pv_columns=64,p_exponent=8,scheduler=1";
inline constexpr const char* kSm90Fp8Softmax =
    "sm90_fp8_fwd:num_consumers=2,block_n=64,num_stages=2,v_stages=2,q_stages=1,ping_pong=4,overlap=2,promote_every=1,"
    "pv_columns=64,p_exponent=6,scheduler=1";
inline constexpr const char* kSm90Fp8Single =
    "sm90_fp8_fwd:num_consumers=1,block_n=96,num_stages=2,v_stages=1,q_stages=1,ping_pong=0,overlap=0,promote_every=0,"
    "pv_columns=256,p_exponent=6,scheduler=1";
inline constexpr const char* kRef = "ref_fwd:num_warps=4";

}  // namespace flashcore::testing
