#pragma once
// Faults to plant in copies of the kernel sources: one substitution each, and what must be said of it.

#include <algorithm>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
inline constexpr const char* kManyParts = "b1_h2_hk1_sq1_sk2500_d16_fp16_alibi";
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

struct Mutation {
  const char* name;
  const char* candidate;
  const char* problem;
  const char* file;
  const char* from;  // must stand in the file
  const char* to;
  const char* named;  // a part of what must be said; "" : benign, see `why`
  const char* why = "";
};

inline void PrintTo(const Mutation& mutation, std::ostream* out) { *out << mutation.name; }

inline const std::vector<Mutation>& mutations() {
  static constexpr const char* kK80 = "sm80_fwd/kernel.cuh";
  static constexpr const char* kK89 = "sm89_fp8_fwd/kernel.cuh";
  static constexpr const char* kConsumer8 = "sm90_fp8_fwd/consumer.cuh";
  static constexpr const char* kContext8 = "sm90_fp8_fwd/context.cuh";
  static constexpr const char* kLoader8 = "sm90_fp8_fwd/loader.cuh";
  static constexpr const char* kPagedLoader8 = "sm90_fp8_fwd/paged_loader.cuh";
  static constexpr const char* kTransposer8 = "sm90_fp8_fwd/transposer.cuh";
  static constexpr const char* kStore = "tile/store_fragment.cuh";
  static constexpr const char* kK90 = "sm90_fwd/kernel.cuh";
  static constexpr const char* kConsumer = "sm90_fwd/consumer.cuh";
  static constexpr const char* kLoader = "sm90_fwd/loader.cuh";
  static constexpr const char* kPagedLoader = "sm90_fwd/paged_loader.cuh";
  static constexpr const char* kPageBoxes = "tile/page_boxes.cuh";
  static constexpr const char* kPages80 = "sm80_fwd/pages.cuh";
  static constexpr const char* kProducer = "tile/producer.cuh";
  static constexpr const char* kShares = "tile/consumer.cuh";
  static constexpr const char* kContext = "sm90_fwd/context.cuh";
  static constexpr const char* kKShort = "sm90_short_fwd/kernel.cuh";
  static constexpr const char* kPagesShort = "sm90_short_fwd/pages.cuh";
  static constexpr const char* kMerge = "sm90_short_fwd/merge.cuh";
  static constexpr const char* kKDirect = "sm80_short_fwd/kernel.cuh";
  static constexpr const char* kKDecode = "sm80_decode_fwd/kernel.cuh";
  static constexpr const char* kBatchTiles = "tile/batch_tiles.cuh";
  static constexpr const char* kContextDecode = "sm80_decode_fwd/context.cuh";
  static constexpr const char* kLoaderDecode = "sm80_decode_fwd/loader.cuh";
  static constexpr const char* kScoresDecode = "sm80_decode_fwd/scores.cuh";
  static constexpr const char* kValuesDecode = "sm80_decode_fwd/values.cuh";
  static constexpr const char* kDeal = "sm80_decode_fwd/deal.cuh";
  static constexpr const char* kCodes = "sm80_decode_fwd/quantised.cuh";
  static constexpr const char* kWiden = "tile/cache_element.cuh";
  static constexpr const char* kNibbles = "sm80_decode_fwd/nibbles.cuh";
  static constexpr const char* kWidenNibbles = "tile/cache_nibbles.cuh";
  static constexpr const char* kNibbleCache = "b2_h4_hk2_sq3_sk70_d64_bf16_kvint4_perhead_causal_raggedfull_page16";
  static constexpr const char* kMergeParts = "sm80_decode_fwd/merge.cuh";
  static constexpr const char* kKeysFirst = "sm80_decode_fwd/keys_first.cuh";
  static constexpr const char* kKWide = "sm80_wide_fwd/kernel.cuh";
  static constexpr const char* kFinishWide = "sm80_wide_fwd/finish.cuh";
  static constexpr const char* kWorkWide = "sm80_wide_fwd/tile_of_cta.cuh";
  static constexpr const char* kPagesWide = "sm80_wide_fwd/pages.cuh";
  static constexpr const char* kCodesWide = "sm80_wide_fwd/codes.cuh";
  static constexpr const char* kConsumerHopperWide = "sm90_wide_fwd/consumer.cuh";
  static constexpr const char* kFinishHopperWide = "sm90_wide_fwd/finish.cuh";
  static constexpr const char* kContextHopperWide = "sm90_wide_fwd/context.cuh";
  static constexpr const char* kLoaderHopperWide = "sm90_wide_fwd/loader.cuh";
  static constexpr const char* kPagesHopperWide = "sm90_wide_fwd/paged_loader.cuh";
  static constexpr const char* kPartsHopperWide = "sm90_wide_fwd/parts.cuh";
  static constexpr const char* kMergeOfParts = "tile/merge_parts.cuh";
  static constexpr const char* kTornWrong = "race|uninitialised|wrong result|deadlock";
  static constexpr const char* kWarpgroup = "tile/warpgroup.cuh";
  static constexpr const char* kRefKernel = "ref_fwd/kernel.cuh";
  static constexpr const char* kTmaTile = "tile/tma_tile.cuh";
  static constexpr const char* kScheduler = "tile/scheduler.cuh";
  static constexpr const char* kMask = "tile/mask.cuh";
  static constexpr const char* kEpilogue = "tile/epilogue.cuh";
  static constexpr const char* kPartial = "tile/partial.cuh";
  static constexpr const char* kRowSoftmax = "tile/row_softmax.cuh";
  static constexpr const char* kTile = "tile/shared_tile.cuh";
  static constexpr const char* kScore = "tile/score.cuh";
  static constexpr const char* kExpressed = "tile/expressed.cuh";
  static constexpr const char* kExpressedDecode = "sm80_decode_fwd/expressed.cuh";
  static constexpr const char* kLister = "tile/list_blocks.cuh";
  static constexpr const char* kSequence = "tile/sequence.cuh";
  static constexpr const char* kRaggedTiles = "tile/ragged_tiles.cuh";
  static constexpr const char* kSoftmax = "tile/softmax.cuh";
  static constexpr const char* kSinkSum = "ptx::fma(total, of_keys, weight(sink_log2, common))";
  static constexpr const char* kSinkTwice = "ptx::fma(total, of_keys, 2.0f * weight(sink_log2, common))";
  static constexpr const char* kCapped = "element(scores, i) * params->tanh_scale";
  static constexpr const char* kSlope = "? batch * problem.heads_q : 0) + head)";
  static constexpr const char* kWrong = "wrong result";
  static const std::vector<Mutation> all = {
      // --- functions of scores and sinks, of every family that has them ---
      {"sm80_sink_twice", kSm80, kSink, kSoftmax, kSinkSum, kSinkTwice, kWrong},
      {"sm90_sink_twice", kSm90, kSink, kSoftmax, kSinkSum, kSinkTwice, kWrong},
      {"sm90_groups_sink_twice", kSm90Groups, kSink, kSoftmax, kSinkSum, kSinkTwice, kWrong},
      {"ref_sink_twice", kRef, kSink, kSoftmax, kSinkSum, kSinkTwice, kWrong},
      {"sm90_sink_not_in_lse", kSm90, kSink, kSoftmax, "lse = log_sum_exp(common, all);",
       "lse = log_sum_exp(max_scaled, total);", kWrong},
      {"sm90_sink_natural", kSm90, kSink, kScore, "ptx::ld_global_f32(params->sink + head) * kLog2E",
       "ptx::ld_global_f32(params->sink + head)", kWrong},
      {"sm80_sink_of_another_head", kSm80, kSink, kScore, "params->sink + head)",
       "params->sink + (head + 1) % problem.heads_q)", kWrong},
      {"sm80_softcap_after_mask", kSm80, kSoftcap, kK80, "mask_scores(acc_s, keys, cut);\n",
       "mask_scores(acc_s, keys, cut), transform_scores(acc_s, keys);\n", kWrong},
      {"sm90_softcap_after_mask", kSm90, kSoftcap, kWarpgroup,
       "transform_where_asked(block);\n    if constexpr (kMayBeCut) mask_where_cut(block);",
       "if constexpr (kMayBeCut) mask_where_cut(block);\n    transform_where_asked(block);", kWrong},
      {"sm90_first_softcap_after_mask", kSm90, kSoftcap, kConsumer,
       "Base::transform_where_asked(block);\n    Base::mask_where_cut(block);",
       "Base::mask_where_cut(block);\n    Base::transform_where_asked(block);", kWrong},
      {"sm80_softcap_without_scale", kSm80, kSoftcap, kScore, kCapped, "element(scores, i)", kWrong},
      {"sm90_softcap_without_scale", kSm90, kSoftcap, kScore, kCapped, "element(scores, i)", kWrong},
      {"ref_softcap_without_scale", kRef, kSoftcap, kScore, kCapped, "element(scores, i)", kWrong},
      {"sm80_slope_of_another_head", kSm80, kAlibi, kScore, kSlope,
       "? batch * problem.heads_q : 0) + (head + 1) % problem.heads_q)", kWrong},
      {"sm90_slope_of_another_head", kSm90, kAlibi, kScore, kSlope,
       "? batch * problem.heads_q : 0) + (head + 1) % problem.heads_q)", kWrong},
      {"sm90_slope_of_another_batch", kSm90, kAlibi, kScore, kSlope, "? 0 : 0) + head)", kWrong},
      {"ref_slope_of_another_head", kRef, kAlibi, kScore, kSlope,
       "? batch * problem.heads_q : 0) + (head + 1) % problem.heads_q)", kWrong},
      {"sm90_alibi_side_one_off", kSm90, kAlibi, kScore, ">= kBlockN - 1 ? Side::kLeft", ">= 0 ? Side::kLeft", kWrong},
      {"sm80_alibi_from_the_first_key", kSm80, kAlibi, kScore, "return problem.seqlen_kv - problem.seqlen_q;",
       "return 0;", kWrong},
      // --- ragged batches ---
      {"sm80_ragged_key_too_many", kSm80, kRaggedFull, kSequence, "one.seqlen_kv = s.len_kv;",
       "one.seqlen_kv = s.len_kv + 1;", "wrong result|out of bounds"},
      {"ref_ragged_key_too_many", kRef, kRaggedFull, kSequence, "one.seqlen_kv = s.len_kv;",
       "one.seqlen_kv = s.len_kv + 1;", "wrong result|out of bounds"},
      {"sm80_ragged_key_too_few", kSm80, kRaggedFull, kSequence, "one.seqlen_kv = s.len_kv;",
       "one.seqlen_kv = s.len_kv - 1;", kWrong},
      {"sm80_ragged_row_too_few", kSm80, kRaggedFull, kSequence, "one.seqlen_q = s.len_q;",
       "one.seqlen_q = s.len_q - 1;", kWrong},
      {"sm80_ragged_row_of_the_next", kSm80, kRaggedFull, kSequence, "one.seqlen_q = s.len_q;",
       "one.seqlen_q = s.len_q + 1;", "wrong result|out of bounds|race"},
      {"sm80_ragged_keys_of_the_bound", kSm80, kRaggedFull, kSequence, "one.seqlen_kv = s.len_kv;", "",
       "wrong result|out of bounds"},
      {"sm80_ragged_values_of_the_first", kSm80, kRaggedFull, kSequence, "s.first_kv * bounds.v_stride.row",
       "0 * bounds.v_stride.row", kWrong},
      {"ref_ragged_keys_by_rows", kRef, kRaggedFull, kSequence, "s.first_kv * bounds.k_stride.row",
       "s.first_q * bounds.k_stride.row", kWrong},
      {"sm80_ragged_mask_of_the_bounds", kSm80, kRagged, kSequence, "one.right_offset += s.diagonal;",
       "one.right_offset += bounds.seqlen_kv - bounds.seqlen_q;", kWrong},
      {"sm80_ragged_slopes_of_the_first", kSm80, kRagged, kSequence, "one.alibi += static_cast<long long>(batch)",
       "one.alibi += static_cast<long long>(0 * batch)", kWrong},
      {"sm80_ragged_lse_by_the_bound", kSm80, kRaggedFull, kSequence, "(ragged.total_q - s.len_q)",
       "(bounds.seqlen_q - s.len_q)", "wrong result|race"},
      {"ref_ragged_boundary_of_the_next", kRef, kRaggedFull, kSequence, "load_length(boundaries + batch),",
       "load_length(boundaries + batch + 1),", "wrong result|out of bounds"},
      {"sm80_ragged_tile_not_left", kSm80, kRaggedFull, kK80, "else if (at.first_row < sequence.len_q)", "else",
       "wrong result|out of bounds|race"},
      {"sm80_ragged_tile_barrier", kSm80, kRaggedFull, kK80, "if (wrote) ptx::bar_sync();", "", "race"},
      {"sm90_ragged_keys_past_the_end", kSm90, kRaggedFull, kBatchTiles,
       "- slot.len_kv, tile.keys_end = sequence.first_kv", "- slot.len_kv, tile.keys_end = 1 + sequence.first_kv",
       "wrong result|out of bounds"},
      {"sm90_ragged_keys_of_the_bound", kSm90, kRaggedFull, kBatchTiles,
       "problem.seqlen_kv - slot.len_kv, tile.keys_end = sequence.first_kv + slot.len_kv",
       "0, tile.keys_end = sequence.first_kv + problem.seqlen_kv", "wrong result|out of bounds"},
      {"sm90_ragged_rows_of_the_next", kSm90, kRaggedFull, kBatchTiles, "tile.batch = sequence.first_q + slot.len_q",
       "tile.batch = 1 + sequence.first_q + slot.len_q", "wrong result|out of bounds"},
      {"sm90_ragged_rows_unshifted", kSm90, kRaggedFull, kConsumer,
       "const int shift = context.params.problem.seqlen_q - tile.len_q;", "const int shift = 0;",
       "wrong result|out of bounds|race"},
      {"sm90_ragged_mask_of_the_bounds", kSm90, kRagged, kSequence, "own.right_offset += len_kv - len_q",
       "own.right_offset += problem.seqlen_kv - problem.seqlen_q", kWrong},
      {"sm90_ragged_own_key_of_the_bounds", kSm90, kRagged, kConsumer,
       "const tile::Score<T, ForwardParams, true> score = {at.own,",
       "const tile::Score<T, ForwardParams, true> score = {context.params.problem,", kWrong},
      {"sm90_ragged_whole_end_too_far", kSm90, kRagged, kConsumer, "mask.end_of(first)",
       "mask.end_of(first + kRowsPerConsumer)", kWrong},
      {"sm90_ragged_lse_by_the_bound", kSm90, kRaggedFull, kEpilogue, "static_cast<long long>(head) * total_q",
       "static_cast<long long>(head) * params.seqlen_q", "wrong result|race"},
      {"sm90_ragged_slot_read", kSm90, kRaggedShort, kBatchTiles,
       "ptx::bar_warp_sync();  // all lanes have read it\n      arrive_for_warp", "arrive_for_warp", "race"},
      // --- paged caches ---
      {"sm90_page_off_by_one", kSm90, kPagedCache, kPageBoxes,
       "page_at(paged, sequence, boxes.by_page_size.quotient(key))",
       "page_at(paged, sequence, boxes.by_page_size.quotient(key) + 1)", kWrong},
      {"sm90_page_of_the_neighbour", kSm90, kPagedCache, kPageBoxes, "page_at(paged, sequence,",
       "page_at(paged, sequence > 0 ? sequence - 1 : 1,", kWrong},
      {"sm90_page_of_another_box", kSm90, kPagedCache, kPagedLoader, "first_key(block, lane()));",
       "first_key(block, 0));", kWrong},
      {"sm90_page_of_the_first_lane", kSm90Tall, kPagedKeys, kPageBoxes, "if (box != first) page = page_of(key);", ";",
       "wrong result|out of bounds"},
      {"sm90_page_key_not_in_it", kSm90, kPagedCache, kPageBoxes,
       "int row = key - boxes.by_page_size.quotient(key) * paged.page_size,", "int row = 0,", "",
       "boxes of 16 rows begin at the first key of a page of 16"},
      {"sm90_page_rows_of_the_first_box", kSm90, kPagedLarge, kPageBoxes,
       "int row = key - boxes.by_page_size.quotient(key) * paged.page_size,", "int row = 0,", kWrong},
      {"sm90_page_tail_not_zeroed", kSm90, kPagedCache, kPageBoxes, "page >= 0 && valid < boxes.rows", "false", kWrong},
      {"sm90_page_tail_a_key_longer", kSm90, kPagedCache, kPageBoxes, "valid = len_kv - key;",
       "valid = len_kv + 1 - key;", kWrong},
      {"sm90_page_tail_a_key_later", kSm90, kPagedCache, kPageBoxes, "(row + valid) * boxes.steps_per_key",
       "(row + valid + 1) * boxes.steps_per_key", "wrong result|out of bounds"},
      {"sm90_page_tail_of_another_page", kSm90, kPagedCache, kPageBoxes, "last = page * boxes.steps_per_page",
       "last = (page > 0 ? page - 1 : 1) * boxes.steps_per_page", "wrong result|out of bounds"},
      {"sm90_page_table_read_past_its_end", kSm90, kPagedTable, kPageBoxes, "if (key >= len_kv) return false;", "",
       "out of bounds"},
      {"sm80_page_table_read_past_its_end", kSm80, kPagedTable, kPages80, "if (key >= len_kv) return kNoKey;", "",
       "out of bounds"},
      {"sm90_page_slot_of_values", kSm90, kPagedCache, kPagedLoader, "tile.blocks.begin ? 1 : 2",
       "tile.blocks.begin ? 1 : 1", "deadlock|race|wrong result|expect_tx"},
      {"sm90_page_bytes_of_other_warps", kSm90Boxes, kPagedKeys, kPageBoxes, "return own * boxes.rows",
       "return block_bytes; return own * boxes.rows", "deadlock|race|wrong result|expect_tx"},
      {"sm90_page_slot_read", kSm90Boxes, kPagedNoKeys, kPagedLoader,
       "ptx::bar_warp_sync();  // all lanes have read it\n      tile::arrive_for_warp", "tile::arrive_for_warp",
       "race"},
      {"sm80_page_off_by_one", kSm80, kPagedCache, kPages80, "by_page_size.quotient(key));",
       "by_page_size.quotient(key + 1));", kWrong},
      {"sm80_page_key_not_in_it", kSm80, kPagedCache, kPages80, "in_page * strides.row", "0 * in_page * strides.row",
       kWrong},
      {"sm80_page_of_values_by_that_of_keys", kSm80, kPagedCache, kK80, "rows_of<false>(v, params.v_stride, ",
       "rows_of<false>(v, params.k_stride, ", "wrong result|out of bounds"},
      {"sm80_page_tail_not_zeroed", kSm80, kPagedCache, kPages80, "if (key >= len_kv) return kNoKey;", "", kWrong},
      {"sm80_page_of_the_first_sequence", kSm80, kPagedCache, kK80, "cta.sequence = at.batch;", "cta.sequence = 0;",
       kWrong},
      {"sm80_page_of_another_row", kSm80, kPagedCache, kTile, "page = rows.page_of(row);",
       "page = rows.page_of(row > 0 ? row - 1 : 0);", kWrong},
      {"ref_page_off_by_one", kRef, kPagedCache, kSequence, "key / paged.page_size)", "(key + 1) / paged.page_size)",
       kWrong},
      {"ref_page_of_the_neighbour", kRef, kPagedCache, kSequence, "paged.block_table + batch * paged.table_stride",
       "paged.block_table + (batch > 0 ? batch - 1 : 1) * paged.table_stride", kWrong},
      {"ref_page_row_of_the_table", kRef, kPagedCache, kSequence, "batch * paged.table_stride",
       "batch * (paged.table_stride - 1)", kWrong},
      {"ref_page_read_to_its_end", kRef, kPagedCache, kSequence, "s.len_kv = load_length(ragged.seqused_kv + batch);",
       "s.len_kv = load_length(ragged.seqused_kv + batch) / paged.page_size * paged.page_size + paged.page_size;",
       kWrong},
      {"ref_page_stale_length", kRef, kPagedCache, kSequence, "load_length(ragged.seqused_kv + batch);",
       "load_length(ragged.seqused_kv + batch) - 1;", kWrong},
      {"ref_page_length_of_the_neighbour", kRef, kPagedCache, kSequence, "load_length(ragged.seqused_kv + batch);",
       "load_length(ragged.seqused_kv + (batch + 1) % problem.batch);", kWrong},
      {"ref_page_of_values_by_that_of_keys", kRef, kPagedCache, kRefKernel, "page * params.v_stride.batch",
       "page * params.k_stride.batch", "wrong result|out of bounds"},
      {"ref_page_key_not_in_it", kRef, kPagedCache, kRefKernel, "in_page = key % of_pages->page_size", "in_page = key",
       "wrong result|out of bounds"},
      {"sm90_ragged_no_end", kSm90, kRaggedFull, kProducer, "context.put_end(ring_tile);\n        break;", "break;",
       "deadlock"},
      {"sm90_ragged_lengths_barrier", kSm90, kRaggedFull, kRaggedTiles, "ptx::bar_sync();\n\n  int rank", "int rank",
       "race|uninitialised"},
      {"sm90_ragged_ranks_barrier", kSm90, kRaggedFull, kRaggedTiles, "ptx::bar_sync();\n\n  const int heads",
       "const int heads", "race|uninitialised"},
      {"sm90_ragged_entries_barrier", kSm90, kRaggedLevels, kRaggedTiles, "ptx::bar_sync();\n    const int place",
       "const int place", "race|uninitialised"},
      {"sm90_ragged_levels_of_one", kSm90, kRaggedLevels, kRaggedTiles, "levels_below = (place + 1) *",
       "levels_below = place *", "wrong result|race"},
      {"sm90_ragged_tiles_of_one_head", kSm90, kRaggedFull, kRaggedTiles, "all_tiles * problem.heads_q", "all_tiles",
       kWrong},
      // --- sm80_fwd: every barrier and every wait ---
      {"sm80_step_barrier", kSm80, kCausal, kK80, "ptx::bar_sync();  // everybody's copies are visible", "//",
       "race|uninitialised"},
      {"sm80_one_stage_k_read_barrier", kSm80One, kCausal, kK80, "ptx::bar_sync();  // all warps have read K(block)",
       "", "race"},
      {"sm80_one_stage_v_barrier", kSm80One, kCausal, kK80, "ptx::cp_async_wait<1>();\n      ptx::bar_sync();",
       "ptx::cp_async_wait<1>();", "race"},
      {"sm80_one_stage_v_wait", kSm80One, kCausal, kK80, "ptx::cp_async_wait<1>();\n", "\n", "race"},
      {"sm80_one_stage_k_wait", kSm80One, kCausal, kK80, "ptx::cp_async_wait<0>();\n    } else {", "} else {", "race"},
      {"sm80_first_v_wait", kSm80, kCausal, kK80, "ptx::cp_async_wait<2 * (kStages - 1)>();\n", "\n", "race"},
      {"sm80_first_v_barrier", kSm80, kCausal, kK80, "ptx::cp_async_wait<2 * (kStages - 1)>();\n      ptx::bar_sync();",
       "ptx::cp_async_wait<2 * (kStages - 1)>();", "race"},
      {"sm80_first_k_wait", kSm80, kCausal, kK80, "ptx::cp_async_wait<2 * (kStages - 2) + 1>();", ";", "race"},
      {"sm80_wait_one_group_short", kSm80, kCausal, kK80, "else ptx::cp_async_wait<2 * (kStages - 2)>();",
       "else ptx::cp_async_wait<2 * (kStages - 2) + 1>();", "race"},
      {"sm80_deep_wait_one_group_short", kSm80Deep, kCausal, kK80, "else ptx::cp_async_wait<2 * (kStages - 2)>();",
       "else ptx::cp_async_wait<2 * (kStages - 2) + 1>();", "race"},
      {"sm80_last_wait", kSm80, kNoKeys, kK80, "ptx::cp_async_wait<0>();\n    ptx::bar_sync();  // Q, K and V",
       "ptx::bar_sync();  // Q, K and V", "race"},
      {"sm80_last_barrier", kSm80, kNoKeys, kK80, "ptx::bar_sync();  // Q, K and V are no longer read", "//", "race"},
      {"sm80_persistent_barrier", kSm80, kCausal, kK80, "if (index != ptx::ctaid_x()) ptx::bar_sync();", "", "race"},
      {"sm80_epilogue_warp_barrier", kSm80, kCausal, kK80, "ptx::bar_warp_sync();", "", "race"},
      {"sm80_barrier_without_first_warp", kSm80, kCausal, kK80, "ptx::bar_sync();  // everybody's copies are visible",
       "if (ptx::tid_x() >= 32) ptx::bar_sync();  //", "race|deadlock"},
      // --- sm80_fwd: addresses, stages, tails ---
      {"sm80_wrong_stage_read", kSm80, kCausal, kK80, "address_v(block % kStages), lane_index()",
       "address_v((block + 1) % kStages), lane_index()", "race"},
      {"sm80_wrong_stage_write", kSm80, kCausal, kK80,
       "copy_async<C.block_n, T.head_dim, kThreads>(address_k(block % kStages)",
       "copy_async<C.block_n, T.head_dim, kThreads>(address_k(0)", "race|uninitialised"},
      {"sm80_two_warps_one_row", kSm80, kCausal, kK80, "return ptx::tid_x() / 32 * rows_per_warp(C);",
       "return ptx::tid_x() / 64 * rows_per_warp(C);", "race"},
      {"sm80_store_past_tail", kSm80, kCausal, kK80, "if (row < params.seqlen_q) {\n        ptx::st_global_v4",
       "if (row <= params.seqlen_q) {\n        ptx::st_global_v4", "race|out of bounds"},
      {"sm80_lse_past_tail", kSm80, kCausal, kK80, "lane % 4 == 0 && row < params.seqlen_q",
       "lane % 4 == 0 && row <= params.seqlen_q", "race|out of bounds"},
      {"tile_copy_past_tail", kSm80, kCausal, kTile, "const bool valid = row < end_row - first_row",
       "const bool valid = row <= end_row - first_row", "out of bounds"},
      {"tile_no_zero_fill", kSm80, kCausal, kTile, "ptx::cp_async_16(tile + offset(row, chunk), from, valid ? 16 : 0);",
       "if (valid) ptx::cp_async_16(tile + offset(row, chunk), from, 16);", "uninitialised"},
      {"tile_padding_of_one_half", kSm80Padded, kCausal, "tile/shared_layout.h",
       "layout == SharedLayout::kPadded ? 16 : 0", "layout == SharedLayout::kPadded ? 2 : 0", "misaligned"},
      {"tile_swizzle_of_writer_only", kSm80, kCausal, kTile, "ptx::cp_async_16(tile + offset(row, chunk)",
       "ptx::cp_async_16(tile + row * kPitch + (chunk << 4)", "wrong result"},
      {"sm80_wrong_k_offset", kSm80, kCausal, kK80, "ptx::ldmatrix_x4(b, lane_k.at(n, d));",
       "ptx::ldmatrix_x4(b, lane_k.at(n, 0));", "wrong result"},
      {"sm80_wrong_kv_head", kSm80, kGrouped, kScheduler, "head_q / (params.heads_q / params.heads_kv)", "head_q",
       "out of bounds"},
      // --- sm80_fwd: arithmetic ---
      {"sm80_no_mask", kSm80, kCausal, kK80, "mask_scores(acc_s, keys, cut);", "", "wrong result"},
      {"sm80_mask_off_by_one", kSm80, kCausal, kMask, "column_of_element(i) >= end", "column_of_element(i) > end",
       "wrong result"},
      {"sm80_no_rescale", kSm80, kCausal, kK80, "tile::scale_rows(acc_o[m], rescale);", ";", "wrong result"},
      {"softmax_sum_of_one_lane", kSm80, kCausal, "tile/softmax.cuh", "const float total = quad_sum(sum[r]);",
       "const float total = sum[r];", "wrong result"},
      {"softmax_lse_in_base_two", kSm80, kCausal, "tile/softmax.cuh", "(max_scaled + ptx::lg2(total)) * kLn2",
       "(max_scaled + ptx::lg2(total))", "wrong result"},
      {"softmax_divergent_shuffle", kSm80, kCausal, "tile/softmax.cuh", "value += ptx::shfl_bfly(value, 1);",
       "if (value > 1.5f) value += ptx::shfl_bfly(value, 1);", "divergent"},
      // --- ref_fwd ---
      {"ref_no_guard", kRef, "b1_h1_s5_d64_fp16", "ref_fwd/kernel.cuh", "params.seqlen_q) return false;",
       "params.seqlen_q) {}", "out of bounds"},
      {"ref_every_lane_writes_lse", kRef, "b1_h1_s5_d64_fp16", "ref_fwd/kernel.cuh", "if (params.lse && lane == 0)",
       "if (params.lse)", "race"},
      // --- sm90_fwd: barriers, phases, bytes, fences ---
      {"sm90_init_fence", kSm90, kCausal, kK90, "ptx::fence_mbarrier_init();", "", "missing fence"},
      {"sm90_init_barrier", kSm90, kCausal, kK90, "if constexpr (C.cluster == 1) ptx::bar_sync();",
       "if constexpr (C.cluster == 1) ;", "no mbarrier"},
      {"sm90_k_empty_wait", kSm90, kCausal, kLoader,
       "ptx::mbarrier_wait(context.k_empty(slot.index), slot.parity ^ 1);", "", "race|too many arrivals"},
      {"sm90_v_empty_wait", kSm90, kCausal, kLoader,
       "ptx::mbarrier_wait(context.v_empty(slot.index), slot.parity ^ 1);", "", "race|too many arrivals"},
      {"sm90_q_empty_wait", kSm90, kShortKeys, kLoader,
       "ptx::mbarrier_wait(context.q_empty(stage, part), ring_q.parity() ^ 1);", "", "race|too many arrivals"},
      {"sm90_wrong_phase", kSm90, kCausal, kLoader, "ptx::mbarrier_wait(context.k_empty(slot.index), slot.parity ^ 1);",
       "ptx::mbarrier_wait(context.k_empty(slot.index), slot.parity);", "deadlock"},
      {"sm90_k_full_wait", kSm90, kCausal, kConsumer, "ptx::mbarrier_wait(context.k_full(slot_k()), ring_k.parity());",
       "", "race"},
      {"sm90_v_full_wait", kSm90, kCausal, kConsumer, "ptx::mbarrier_wait(context.v_full(slot_v()), ring_v.parity());",
       "", "race"},
      {"sm90_q_full_wait", kSm90, kCausal, kConsumer,
       "ptx::mbarrier_wait(context.q_full(ring_q.stage(), row_group), ring_q.parity());", "", "race"},
      {"sm90_no_release", kSm90, kCausal, kConsumer, "release_keys(context.v_empty(slot_v()));", "", "deadlock"},
      {"sm90_expect_too_few_bytes", kSm90, kWide, kTmaTile,
       "ptx::mbarrier_arrive_expect_tx(barrier, kBytes);\n    load(",
       "ptx::mbarrier_arrive_expect_tx(barrier, kBlockBytes);\n    load(", "wrong expect_tx"},
      {"sm90_expect_too_many_bytes", kSm90, kCausal, kTmaTile,
       "ptx::mbarrier_arrive_expect_tx(barrier, kBytes);\n    load(",
       "ptx::mbarrier_arrive_expect_tx(barrier, kBytes + 16);\n    load(", "deadlock"},
      {"sm90_one_arrival_too_few", kSm90, kCausal, kK90, "kOfABlock = C.cluster * 4 * row_groups(C);",
       "kOfABlock = C.cluster * 4 * row_groups(C) - 1;", "race"},
      {"sm90_one_arrival_too_many", kSm90, kCausal, kK90, "kOfABlock = C.cluster * 4 * row_groups(C);",
       "kOfABlock = C.cluster * 4 * row_groups(C) + 1;", "deadlock"},
      // --- its key groups ---
      {"sm90_groups_parts_written", kSm90Groups, kCausal, kConsumer, "sync_key_groups();  // written\n    mark(",
       "mark(", "race|uninitialised|deadlock"},
      {"sm90_groups_parts_read", kSm90GroupsNoTurns, kCausal, kConsumer,
       "FC_DEVICE void sync_key_groups() {\n    mark(Activity::kWaitPartner);\n    ptx::bar_sync(",
       "int met = 0;\n  FC_DEVICE void sync_key_groups() {\n    if (met++ % 2 == 0) ptx::bar_sync(", "race"},
      {"sm90_groups_no_spare_turn", kSm90Groups, "b2_h8_s90_d64_fp16", kConsumer, "if (work.spare_turn) skip_turn();",
       "", "deadlock|arrived at twice|too many"},
      {"sm90_groups_same_blocks", kSm90Groups, kCausal, kShares,
       "share.first_block = of_tile.end - 1 - group - kGroups * share.skipped;",
       "share.first_block = of_tile.end - 1 - kGroups * share.skipped;", "wrong result|deadlock|race"},
      {"sm90_groups_blocks_of_the_other_ring", kSm90Groups, kCausal, kLoader, "const int group = item % C.key_groups;",
       "const int group = (item + 1) % C.key_groups;", "wrong result|deadlock|race"},
      {"sm90_groups_unweighted", kSm90Groups, kCausal, kConsumer,
       "own_weight[r] = tile::weight(softmax.max_scaled[r], common), weights[r] = tile::weight(other.maximum[r], "
       "common);",
       "own_weight[r] = weights[r] = 1.0f;", "wrong result"},
      {"sm90_groups_sum_of_four_lanes", kSm90Groups, kCausal, kConsumer,
       "lane() % 4 == 0 ? other.total[r] * weights[r] : 0.0f", "other.total[r] * weights[r]", "wrong result"},
      {"sm90_groups_q_released_by_one", kSm90Groups, kShortKeys, kK90, "4 * C.key_groups);", "4);",
       "race|too many|missing proxy fence"},
      {"sm90_proxy_fence", kSm90, kCausal, kEpilogue, "ptx::fence_proxy_async();", "", "missing proxy fence"},
      {"sm90_epilogue_barrier", kSm90, kCausal, kEpilogue, "ptx::bar_warp_sync();  // the warp's rows are written", "",
       "race"},
      {"sm90_store_wait", kSm90, kCausal, kShares, "ptx::bulk_wait_read<0>();", "", "race"},
      {"sm90_tile_slot_read", kSm90, kShortKeys, kProducer, "ptx::bar_warp_sync();  // all lanes have read it", "",
       "race"},
      {"sm90_no_turn_passed", kSm90, kCausal, kWarpgroup, "issue_pv();\n    family().end_issue();", "issue_pv();",
       "deadlock"},
      {"sm90_too_many_registers", kSm90, kCausal, "sm90_fwd/config.h", "c.num_consumers == 2 ? 232",
       "c.num_consumers == 2 ? 240", "deadlock"},
      // --- sm90_fwd: wgmma ---
      {"sm90_wgmma_wait_scores", kSm90, kCausal, kWarpgroup, "ptx::wgmma_wait<kPending>();\n", "\n",
       "race|wrong result|registers touched"},
      {"sm90_wgmma_wait_values", kSm90, kCausal, kWarpgroup, "wait_pv();\n    family().all_done();",
       "family().all_done();", "race|registers touched"},
      {"sm90_wgmma_wait_last_values", kSm90, kCausal, kConsumer, "Base::wait_pv();\n    release_v();", "release_v();",
       "race|wrong result|registers touched"},
      {"sm90_wrong_slab_released", kSm90, kCausal, kConsumer, "release_slab((ring_q.count - 1) % C.q_stages);",
       "release_slab(ring_q.count % C.q_stages);", "race|too many arrivals|deadlock"},
      {"sm90_wgmma_fence", kSm90, kCausal, kWarpgroup, "ptx::warpgroup_fence_operand(scores);\n  ptx::wgmma_fence();",
       "ptx::warpgroup_fence_operand(scores);", "missing wgmma.fence"},
      {"sm90_wrong_k_block", kSm90, kWide, kWarpgroup, "k.advanced(b * kKeys * 128)", "k.advanced(b * kKeys * 64)",
       "wrong result"},
      {"sm90_wrong_k_step", kSm90, kHalfBlock, kWarpgroup, "k.advanced(kWholeBlocks * kKeys * 128 + d % 4 * 32)",
       "k.advanced(kWholeBlocks * kKeys * 128 + d % 4 * 16)", "wrong result"},
      {"sm90_wrong_v_chain", kSm90Seven, kCausal, kWarpgroup, "v.advanced(n * 2048).low",
       "v.advanced(n * 2048 + 2048).low", "wrong result"},
      {"sm90_wrong_v_step", kSm90Seven, kCausal, kWarpgroup, "v.advanced(n * 2048).word()",
       "v.advanced(n * 1024).word()", "wrong result"},
      {"sm90_wrong_leading_offset", kSm90, kWide, kConsumer, "owner.v(0), kBlockN * 128)", "owner.v(0), 1024)",
       "wrong result"},
      {"sm90_swizzle_of_writer_only", kSm90, kCausal, kTmaTile, "((chunk % 8 ^ row % 8) << 4)", "(chunk % 8 << 4)",
       "wrong result"},
      // --- sm90_fwd: clusters ---
      {"sm90_cluster_releases_itself_only", kSm90Cluster, kCausal, kConsumer,
       "ptx::mbarrier_arrive_cluster_relaxed(ptx::mapa(barrier, rank));", "ptx::mbarrier_arrive(barrier);", "race"},
      {"sm90_cluster_waits_for_itself_only", kSm90Cluster, kCausal, kK90, "context.k_empty(stage), kOfABlock, ",
       "context.k_empty(stage), kOfABlock / C.cluster, ", "too many arrivals"},
      {"sm90_cluster_loads_the_same_half", kSm90Cluster, kCausal, kTmaTile, "rank * (kRows / kRanks)", "0", "race"},
      {"sm90_cluster_expects_its_half", kSm90Cluster, kCausal, kTmaTile,
       "ptx::mbarrier_arrive_expect_tx(barrier, kBytes);\n    const int first",
       "ptx::mbarrier_arrive_expect_tx(barrier, kBytes / kRanks);\n    const int first", "wrong expect_tx"},
      {"sm90_cluster_starts_alone", kSm90Cluster, kCausal, kK90, "else ptx::cluster_arrive(), ptx::cluster_wait();",
       "else ptx::bar_sync();", "peer may not have started"},
      {"sm90_cluster_ends_alone", kSm90Cluster, kCausal, kK90,
       "ptx::bar_warp_sync();\n    ptx::cluster_arrive(), ptx::cluster_wait();", ";",
       "peer has ended|CTA ends too early"},
      {"sm90_cluster_counts_its_own_blocks", kSm90Cluster, kCausal, kContext,
       "tile.first_row + cluster_m(C), params.problem.seqlen_q",
       "tile.first_row + (rank() + 1) * block_m(C), params.problem.seqlen_q", "deadlock"},
      // --- sm90_fwd: arithmetic and scheduling ---
      {"sm90_no_rescale", kSm90, kCausal, kRowSoftmax, "scale_rows(acc_o, factor);", ";", "wrong result"},
      {"sm90_sum_not_rescaled", kSm90, kCausal, kRowSoftmax, "sum[r] *= factor[r];", ";", "wrong result"},
      {"sm90_block_not_done_again", kSm90, kCausal, kRowSoftmax,
       "rescale_to_new_max(scores, scale_log2, acc_o);\n      exponentiate<0, kCount>(scores, scale_log2, p, total);",
       "rescale_to_new_max(scores, scale_log2, acc_o);", "wrong result"},
      {"sm90_overflow_unseen", kSm90, kCausal, kRowSoftmax, "ptx::vote_any(exceeds(top))", "false", "wrong result"},
      {"sm90_no_mask", kSm90, kCausal, kConsumer, "Base::mask_where_cut(block);\n    Base::mask_where_listed(block);",
       "", "wrong result"},
      {"sm90_no_mask_of_second_block", kSm90, kCausal, kWarpgroup, "if constexpr (kMayBeCut) mask_where_cut(block);",
       "", "wrong result"},
      {"sm90_wrong_v_block", kSm90, kCausal, kProducer, "loader.load_v(tile, block + 1);",
       "loader.load_v(tile, block);", "wrong result"},
      {"sm90_wrong_kv_head", kSm90, kGrouped, kScheduler, "order.by_group_size.quotient(tile.head_q)", "tile.head_q",
       "wrong result"},
      {"sm90_counter_not_reset", kSm90, kCausal, kScheduler, "ptx::st_global_u32(counter, 0);", ";", "wrong result"},
      {"sm90_lse_past_tail", kSm90, kCausal, kEpilogue, "lane % 4 == 0 && rows[r] < params.seqlen_q",
       "lane % 4 == 0 && rows[r] <= params.seqlen_q", "race|out of bounds"},
      // --- sm90_short_fwd: clusters ---
      {"short_no_cluster_wait", kShort, kCausal, kKShort, "ptx::cluster_arrive_relaxed(), ptx::cluster_wait();",
       "ptx::cluster_arrive_relaxed();", "peer may not have started"},
      {"short_no_cluster_arrive", kShort, kCausal, kKShort, "ptx::cluster_arrive_relaxed(), ptx::cluster_wait();",
       "ptx::cluster_wait();", "without an arrival"},
      {"short_fence_of_loads", kShort, kCausal, kKShort, "ptx::fence_mbarrier_init();\n        if constexpr",
       "if constexpr", "missing fence"},
      {"short_fence_of_parts", kShort, kCausal, kMerge,
       "ptx::fence_mbarrier_init();\n      ptx::mbarrier_arrive_expect_tx", "ptx::mbarrier_arrive_expect_tx", "race"},
      {"short_exchange_wait", kShort, kCausal, kMerge, "ptx::mbarrier_wait_cluster(at.exchange_full(), 0);", "",
       "race|uninitialised|ends too early"},
      {"short_exchange_wrong_phase", kShort, kCausal, kMerge, "ptx::mbarrier_wait_cluster(at.exchange_full(), 0);",
       "ptx::mbarrier_wait_cluster(at.exchange_full(), 1);", "race|uninitialised|ends too early|deadlock"},
      {"short_exchange_wrong_scope", kShort, kCausal, kMerge, "ptx::mbarrier_wait_cluster(at.exchange_full(), 0);",
       "ptx::mbarrier_wait(at.exchange_full(), 0);", "wrong scope"},
      {"short_expect_too_few_bytes", kShort, kCausal, kMerge, "tile::partial_bytes(count));",
       "tile::partial_bytes(0));", "wrong expect_tx"},
      {"short_expect_too_many_bytes", kShort, kCausal, kMerge, "tile::partial_bytes(count));",
       "tile::partial_bytes(count) + 16);", "deadlock"},
      {"short_wrong_slot", kShortFour, kCausal, kMerge, "ptx::mapa(slot(to, from), to)", "ptx::mapa(slot(to, 0), to)",
       "race|uninitialised"},
      {"short_wrong_peer", kShort, kCausal, kMerge, "ptx::mapa(at.exchange_full(), to)",
       "ptx::mapa(at.exchange_full(), from)", "both must be of one CTA"},
      {"short_merge_barrier", kShort, kCausal, kMerge,
       "ptx::bar_sync(kMergeBarrier + at.row_group, 128 * C.key_groups);", "", "race|uninitialised"},
      {"short_merge_barrier_of_one_group", kShort, kCausal, kMerge,
       "ptx::bar_sync(kMergeBarrier + at.row_group, 128 * C.key_groups);",
       "ptx::bar_sync(kMergeBarrier + at.row_group, 128);", "race|uninitialised|arrived at twice|too many"},
      {"short_refill_barrier", kShortRing, kCausal, kKShort,
       "ptx::bar_sync(kRefillBarrier + at.key_group, 128 * C.row_groups);", "", "race"},
      {"short_start_barrier", kShortOne, kCausal, kKShort, "ptx::bar_sync();\n    // All of the cluster",
       "// All of the cluster", "no mbarrier|race"},
      {"short_no_griddepcontrol_wait", kShort, kCausal, kKShort, "ptx::griddepcontrol_wait();", ";",
       "before griddepcontrol.wait"},
      {"short_keys_of_two_parts", kShort, kCausal, kKShort, "return first_block + i * kParts", "return first_block + i",
       "wrong result"},
      {"short_own_part_unscaled", kShort, kCausal, kPartial, "o[c][i] *= weights[row_of_element(i)];", ";",
       "wrong result"},
      {"short_rows_of_no_head", kShortPacked, "b1_h3_hk1_sq8_sk100_d64_bf16", kScheduler,
       "return head_of(row) < heads && position_of(row)", "return position_of(row)", "race|out of bounds"},
      // --- sm90_short_fwd: pages ---
      {"short_page_off_by_one", kShortPages, kPagedDecode, kPageBoxes,
       "sequence * paged.table_stride + boxes.by_page_size.quotient(key)",
       "sequence * paged.table_stride + boxes.by_page_size.quotient(key) + 1", "wrong result|out of bounds"},
      {"short_page_of_the_neighbour", kShortPages, kPagedDecode, kPageBoxes, "sequence * paged.table_stride +",
       "(sequence > 0 ? sequence - 1 : 1) * paged.table_stride +", kWrong},
      {"short_page_tail_not_zeroed", kShortPages, kPagedDecode, kPageBoxes, "page >= 0 && valid < boxes.rows", "false",
       kWrong},
      {"short_page_table_read_past_its_end", kShortPages, kShortTable, kPageBoxes, "if (key >= len_kv) return false;",
       "", "out of bounds"},
      {"short_page_of_another_warp", kShortPages, kPagedDecode, kKShort, "return at.warp + loading_warps(T) * at.lane;",
       "return 0 * at.warp + loading_warps(T) * at.lane;", "deadlock|race|wrong result|expect_tx"},
      {"short_page_of_values_a_block_late", kShortPages, kPagedDecode, kKShort,
       "this->entry_of_values = this->entry_of_keys;\n        this->entry_of_keys = entry_of(index + C.num_stages + "
       "1);",
       "this->entry_of_keys = entry_of(index + C.num_stages + 1);\n        this->entry_of_values = "
       "this->entry_of_keys;",
       kWrong},
      {"short_page_of_keys_a_block_early", kShortPages, kPagedDecode, kKShort, "entry_of(index + C.num_stages + 1);",
       "entry_of(index + C.num_stages);", kWrong},
      {"short_page_start_barrier", kShortPages, kPagedDecode, kKShort,
       "ptx::bar_sync();\n    if constexpr (C.cluster > 1) ptx::cluster_arrive_relaxed();", "", "no mbarrier|race"},
      {"short_page_fence_of_loads", kShortPagesParts, kPagedDecode, kKShort,
       "ptx::fence_mbarrier_init();\n    }\n    if constexpr", "}\n    if constexpr", "missing fence"},
      {"short_page_no_cluster_wait", kShortPagesParts, kPagedDecode, kKShort,
       "}\n    if constexpr (C.cluster > 1) ptx::cluster_wait();", "}", "peer may not have started"},
      {"short_page_barrier_of_one_warp", kShortPages, kPagedDecode, kKShort,
       "ptx::mbarrier_init(at.k_full(at.key_group, i), loading_warps(T));",
       "ptx::mbarrier_init(at.k_full(at.key_group, i), 1);", "race|too many|expect_tx|deadlock"},
      {"short_page_bytes_of_other_warps", kShortPages, kPagedDecode, kPageBoxes, "return own * boxes.rows",
       "return block_bytes; return own * boxes.rows", "deadlock|race|wrong result|expect_tx"},
      {"short_page_refill_barrier", kShortPagesRows, kPagedChunk, kKShort,
       "ptx::bar_sync(kRefillBarrier + at.key_group, 128 * C.row_groups);", "", "race"},
      {"short_page_rows_unshifted", kShortPages, kPagedDecode, kKShort, "shift = bound - this->sequence.len_q;",
       "shift = 0;", "wrong result|out of bounds"},
      {"short_page_rows_of_the_bound", kShortPages, kPagedDecode, kKShort,
       "return this->sequence.first_q + tile.position_of(row);",
       "return tile.batch * params.problem.seqlen_q + tile.position_of(row);", "wrong result|out of bounds|race"},
      {"short_page_lse_of_the_bound", kShortPages, kPagedDecode, kKShort,
       "(static_cast<long long>(head) * this->pool->ragged.total_q",
       "(static_cast<long long>(head) * params.problem.seqlen_q", "wrong result|out of bounds|race"},
      {"short_page_mask_of_the_bounds", kShortPages, kPagedDecode, kPagesShort, "s.len_q, s.len_kv);\n",
       "s.len_q, pool->plain.plain.problem.seqlen_kv);\n", "wrong result|out of bounds"},
      {"short_ranked_ties_twice", kShortPages, kPagedAlike, kPagesShort, "static_cast<int>(its) + (other < own);",
       "static_cast<int>(its);", "race|uninitialised"},
      {"short_ranked_lengths_not_there", kShortPages, kPagedAlike, kPagesShort, "ptx::bar_sync();\n    int rank = 0;",
       "int rank = 0;", "race|uninitialised"},
      {"short_ranked_choice_not_there", kShortPages, kPagedAlike, kPagesShort,
       "ptx::bar_sync();\n    const ptx::Vector4 words", "const ptx::Vector4 words", "race|uninitialised"},
      {"short_ranked_proxy_fence", kShortPages, kPagedAlike, kPagesShort, "ptx::fence_proxy_async();", "",
       "missing proxy fence"},
      // --- sm80_short_fwd ---
      {"direct_merge_barrier", kDirect, kCausal, kKDirect, "ptx::bar_sync();", "", "race|uninitialised"},
      {"direct_no_guard_of_rows", kDirect, kCausal, kKDirect, "(kWhole || row_exists(r)) &&", "", "out of bounds"},
      {"direct_no_guard_of_keys", kDirectOne, kGrouped, kKDirect,
       "const bool key_exists = kWhole || first_key + 8 * n < params.seqlen_kv;", "const bool key_exists = true;",
       "out of bounds"},
      {"direct_stores_rows_that_do_not_exist", kDirectOne, kGrouped, kKDirect, "place.exists = row_exists(row);",
       "place.exists = true;", "race|out of bounds"},
      {"direct_rows_of_no_head", kDirectOne, "b1_h3_hk1_sq8_sk100_d64_bf16", kScheduler,
       "return head_of(row) < heads && position_of(row)", "return position_of(row)", "race|out of bounds"},
      {"direct_q_of_other_columns", kDirect, kCausal, kKDirect, "word(q[m][0][c], 2 * step + 1)",
       "word(q[m][0][c], 2 * step)", "wrong result"},
      {"direct_v_of_swapped_keys", kDirect, kCausal, kKDirect,
       "ptx::prmt(word(key, column / 2), word(next, column / 2)",
       "ptx::prmt(word(next, column / 2), word(key, column / 2)", "wrong result"},
      {"direct_columns_swapped", kDirect, kCausal, kKDirect, "column % 2 == 0 ? 0x5410 : 0x7632",
       "column % 2 == 0 ? 0x7632 : 0x5410", "wrong result"},
      {"direct_no_mask", kDirect, kCausal, kKDirect, "mask_where_cut(first);", "", "wrong result"},
      {"direct_no_mask_of_later_blocks", kDirect, kCausal, kKDirect, "mask_where_cut(next);", "", "wrong result"},
      {"direct_no_rescale", kDirectOne, kGrouped, kKDirect, "tile::scale_rows(acc_o[m], rescale);", ";",
       "wrong result"},
      {"direct_same_keys_twice", kDirect, kCausal, kKDirect, "next < blocks.end; next += C.key_warps",
       "next < blocks.end; next += C.key_warps + 1", "wrong result"},
      {"direct_unweighted_part", kDirect, kCausal, kKDirect, "const float weight = tile::weight(maxima[w], maximum);",
       "const float weight = 1.0f;", "wrong result"},
      {"direct_state_of_the_other_row", kDirect, kCausal, kKDirect, "const bool second = piece.row / 8 % 2 != 0;",
       "const bool second = false;", "wrong result"},
      {"direct_too_few_pieces", kDirect, kCausal, kKDirect, "if (index < kPieces) merge(",
       "if (index < kPieces / 2) merge(", "wrong result|uninitialised|race"},
      {"direct_no_early_launch_wait", "sm80_short_fwd:row_blocks=1,key_warps=2,block_n=16,pack_heads=1,early_launch=1",
       kCausal, kKDirect, "ptx::griddepcontrol_wait(), ", "", "before griddepcontrol.wait"},
      // --- sm80_decode_fwd ---
      {"decode_step_barrier", kDecode, kSplitTiles, kKDecode,
       "ptx::bar_sync();\n      if (ahead >= 0) loader.load(context, ahead);",
       "if (ahead >= 0) loader.load(context, ahead);", "race|uninitialised|wrong result"},
      {"decode_wait_one_group_short", kDecode, kSplitTiles, kKDecode, "ptx::cp_async_wait<Context::kStages - 2>();",
       "ptx::cp_async_wait<Context::kStages - 1>();", "race"},
      {"decode_stage_read_barrier", kDecode, kSplitTiles, kValuesDecode,
       "ptx::bar_sync();  // all warps have read this stage", "", "race"},
      {"decode_one_page_buffer", kDecode, kPagedDecode, kContextDecode, "(number & 1) * (8 * C.block_n)", "0", "race"},
      {"decode_pages_of_the_last_block", kDecode, kPagedDecode, kKDecode, "look_up(context, ahead + 1);",
       "look_up(context, ahead);", "wrong result|uninitialised"},
      {"decode_q_of_the_first_tile", kDecode, kPagedDecode, kKDecode,
       "if (step.flags & Step::kFirst) queries.begin_run(", "if (number == 0) queries.begin_run(", kWrong},
      {"decode_step_made_too_late", kDecode, kPagedDecode, kKDecode, "make_step(ahead + 2);", "make_step(ahead + 1);",
       "uninitialised|race|wrong result|deadlock|too many"},
      {"decode_keys_past_the_end_not_filled", kDecode, kPagedDecode, kLoaderDecode,
       "largest >= Context::kMissing : keys < C.block_n", "false : false", "wrong result|uninitialised"},
      {"decode_whole_one_block_too_far", kDecode, kPagedDecode, kDeal,
       "run.whole_end = mask.end_of(first) / C.block_n;", "run.whole_end = mask.end_of(first) / C.block_n + 1;",
       kWrong},
      {"decode_accumulators_not_rescaled", kDecode, kPagedDecode, kValuesDecode,
       "rescale[0] != 1.0f || rescale[1] != 1.0f", "rescale[0] != 1.0f && rescale[1] != 1.0f", kWrong},
      {"decode_part_before_the_arrival", kDecode, kSplitTiles, kMergeParts,
       "ptx::bar_sync();  // all threads have written", "", "race"},
      {"decode_arrival_orders_nothing", kDecode, kSplitTiles, kMergeParts, "ptx::atomic_add_global_acq_rel(",
       "ptx::atomic_add_global(", "race"},
      {"decode_counter_not_left_zero", kDecode, kSplitTiles, kMergeParts,
       "if (is_last) ptx::st_global_u32(counter, 0);", "", "zero|wrong result|not the same"},
      {"decode_parts_unweighted", kDecode, kSplitTiles, kMergeOfParts, "const float own = weight(maxima[i], common);",
       "const float own = 1.0f;", kWrong},
      {"decode_slot_of_another_tile", kDecode, kSplitTiles, kMergeParts, "2 * first + 1, 2 * first + 2, 2, first",
       "2 * first, 2 * first + 2, 2, first", "race|wrong result|uninitialised"},
      {"decode_last_part_left_out", kDecodeParts, kSplitTiles, kMergeOfParts, "if (first + i >= count) continue;",
       "if (first + i >= count - 1) continue;", kWrong},
      {"decode_parts_not_rescaled", kDecodeParts, kManyParts, kMergeOfParts,
       "const float before = weight(merged.maximum, common);", "const float before = 1.0f;", kWrong},
      {"decode_units_of_the_first_sequence", kDecode, kPagedDecode, kDeal, "before += lane >= delta ? below : 0;",
       "before += 0;", "wrong result|uninitialised|race"},
      {"decode_share_begins_too_late", kDecode, kPagedDecode, kDeal, "return cta * each + tile::min_int(cta, more);",
       "return cta * each + more;", "race|wrong result|uninitialised"},
      // --- quantised caches ---
      {"codes_q_in_the_order_of_16_bits", kDecode, kPagedCodes, kCodes, "lane % 2 * 8 + i / kRows * 4",
       "lane % 2 * 4 + i / kRows * 8", kWrong},
      {"codes_columns_not_sorted", kDecode, kPagedCodes, kCodes,
       "acc_o[c][r + 1] = acc_o[c + 1][r], acc_o[c + 1][r] = second;", "acc_o[c][r + 1] = second;", kWrong},
      {"codes_even_columns_twice", kDecode, kPagedCodes, kCodes, "kEvenThenOdd = 0x3120", "kEvenThenOdd = 0x2020",
       kWrong},
      {"codes_keys_of_a_pair_swapped", kDecode, kPagedCodes, kCodes, "kEvenThenOdd = 0x3120", "kEvenThenOdd = 0x1302",
       kWrong},
      {"codes_factor_of_k_dropped", kDecode, "b2_h4_hk2_sq3_sk70_d64_fp16_kve4m3", kKDecode,
       "scale_log2 *= queries.factor_k;", ";", kWrong},
      {"codes_factor_of_the_first_head", kDecode, kPagedCodes, kScoresDecode,
       "tile::descale(context.descales->descale_k, run.batch, run.head_kv)",
       "tile::descale(context.descales->descale_k, run.batch, 0)", kWrong},
      {"codes_factor_of_v_dropped", kDecode, kPagedCodes, kMergeParts,
       "scale *= tile::descale(descales->descale_v, run.batch, run.head_kv);", "", kWrong},
      {"bytes_factor_of_q_dropped", kDecode, kPagedBytes, kScoresDecode,
       "factor_k *= tile::descale(context.descales->descale_q, run.batch, run.head_kv);", ";", kWrong},
      {"bytes_factor_of_q_of_the_first_head", kDecode, kPagedBytes, kScoresDecode,
       "tile::descale(context.descales->descale_q, run.batch, run.head_kv)",
       "tile::descale(context.descales->descale_q, run.batch, 0)", kWrong},
      {"bytes_q_columns_of_a_word_swapped", kDecode, kPagedBytes, kCodes, "q[r] = pairs[0], q[kRows + r] = pairs[1];",
       "q[r] = pairs[1], q[kRows + r] = pairs[0];", kWrong},
      {"bytes_q_of_eight_rows_twice", kDecode, kPagedBytes, kCodes, "lane / 4 + r * 8, d", "lane / 4, d", kWrong},
      {"bytes_half_of_q_copied", kDecode, kPagedBytes, kLoaderDecode, "chunk * kColumns < T.head_dim",
       "chunk * 2 * kColumns < T.head_dim", kWrong},
      {"codes_upper_half_as_the_lower", kDecode, kPagedCodes, kWiden, "cvt_f16x2_e4m3x2(codes >> 16)",
       "cvt_f16x2_e4m3x2(codes & 0xffffu)", kWrong},
      {"codes_int8_without_a_sign", kDecode, "b2_h4_hk2_sq3_sk70_d64_fp16_kvint8", kWiden, "kOffsets = 0x64806480u",
       "kOffsets = 0x64006400u", kWrong},
      {"codes_int8_of_wide_heads_without_a_sign", kDecode, "b2_h4_hk2_sq3_sk70_d160_bf16_kvint8", kWiden,
       "kOffset = 8388608.0f + 128.0f", "kOffset = 8388608.0f", kWrong},
      {"nibbles_without_a_sign", kDecode, kNibbleCache, kWidenNibbles, "kLowOffsets = 0x64086408u",
       "kLowOffsets = 0x64006400u", kWrong},
      {"nibbles_of_odd_columns_without_a_sign", kDecode, kNibbleCache, kWidenNibbles, "kHighOffsets = 0x54805480u",
       "kHighOffsets = 0x54005400u", kWrong},
      {"nibbles_of_the_upper_bytes_as_the_lower", kDecode, kNibbleCache, kWidenNibbles, "codes >> 8 * i", "codes",
       kWrong},
      {"nibbles_q_in_the_order_of_bytes", kDecode, kNibbleCache, kNibbles, "chunk = d / 2 * 4 + lane % 4",
       "chunk = d / 2 * 4 + lane / 2 % 2", kWrong},
      {"nibbles_q_of_even_columns_alone", kDecode, kNibbleCache, kNibbles, "0x5410u : 0x7632u", "0x5410u : 0x5410u",
       kWrong},
      {"nibbles_columns_not_sorted", kDecode, kNibbleCache, kNibbles,
       "acc_o[c + i][r] = columns[2 * i], acc_o[c + i][r + 1] = columns[2 * i + 1];", ";", kWrong},
      {"nibbles_keys_of_the_second_step_twice", kDecode, kNibbleCache, kNibbles,
       "tile::widen_nibbles<operand_element(T)>(high, of_high);",
       "tile::widen_nibbles<operand_element(T)>(low, of_high);", kWrong},
      {"nibbles_naive_halves_swapped", kRef, "b2_h4_hk2_sq3_sk70_d64_fp16_kvint4", "tile/element_fp8.cuh",
       "(index & 1) * 4", "(1 - (index & 1)) * 4", kWrong},
      {"codes_factor_of_rows_dropped", kDecode, kPagedCodes, kScoresDecode, "tile::scale_rows(acc_s, factors);", ";",
       kWrong},
      {"codes_factor_of_k_not_with_that_of_rows", kDecode, kPagedCodes, kScoresDecode,
       "factors[0] = factors[1] = factor_k;", "factors[0] = factors[1] = 1.0f;", kWrong},
      {"codes_rows_scaled_past_fp16", kDecode, kPagedCodes, kCodes, "kTop = 14", "kTop = 17", kWrong},
      {"codes_weights_stay_scaled", kDecode, kPagedCodes, kCodes, "tile::scale_rows(acc_o, undone);", "", kWrong},
      // --- eight query rows ---
      {"eight_rows_weights_not_transposed", kDecodeEight, kPagedDecode, kKeysFirst,
       "ptx::movmatrix_trans(tile::pack<kE>(own[0] * kScale, own[1] * kScale))",
       "tile::pack<kE>(own[0] * kScale, own[1] * kScale)", kWrong},
      {"eight_rows_stage_read_barrier", kDecodeEight, kSplitTiles, kValuesDecode, "ptx::bar_sync();  // as above", "",
       "race"},
      {"eight_rows_maximum_of_own_keys", kDecodeEight, kPagedDecode, kKeysFirst, "octet_max(maximum) * scale_log2",
       "maximum * scale_log2", kWrong},
      {"eight_rows_sum_of_own_keys", kDecodeEight, kPagedDecode, kKeysFirst, "octet_sum(sum[0]), octet_sum(sum[1])",
       "sum[0], sum[1]", kWrong},
      {"eight_rows_state_of_the_other_row", kDecodeEight, kPagedDecode, kKeysFirst, "if (lane / 4 % 2 == r) to.maximum",
       "if (lane / 4 % 2 != r) to.maximum", kWrong},
      {"eight_rows_a_key_past_the_end", kDecodeEight, kPagedDecode, kKeysFirst, "8 * n >= end", "8 * n > end", kWrong},
      {"eight_rows_columns_of_the_other_row", kDecodeEight, kPagedDecode, kKeysFirst, "odd ? odd_row : even_row",
       "even_row", kWrong},
      {"eight_rows_states_in_one_place", kDecodeEight, kPagedDecode, kKeysFirst, "{ return of.lane % 4; }",
       "{ return 0; }", "wrong result|race"},
      {"eight_rows_factor_of_the_first_row", kDecodeEight, kPagedCodes, kKeysFirst, "lane % 4 * 8 + 4 * r);",
       "lane % 4 * 8);", kWrong},
      {"eight_rows_steps_in_another_order", kDecodeEight, kPagedCodes, kKeysFirst, "at + (word * kWide + i) / 2",
       "at + (1 - word)", kWrong},
      {"eight_rows_first_eight_keys_twice", kDecodeEight, kNibbleCache, kKeysFirst,
       "{low[i], high[i], low[i + 1], high[i + 1]}", "{low[i], low[i], low[i + 1], low[i + 1]}", kWrong},
      {"codes_naive_factor_of_v", kRef, "b2_h4_hk2_sq3_sk70_d64_fp16_kvint8", kRefKernel,
       "{ return tile::descale(v, batch, head_kv); }", "{ return tile::descale(k, batch, head_kv); }", kWrong},
      // --- sm80_wide_fwd ---
      {"wide_k_barrier", kWideHeads, kWideRows, kKWide, "ptx::bar_sync();  // everybody's copies of K are visible",
       "//", "race|uninitialised|wrong result"},
      {"wide_maxima_barrier", kWideHeads, kWideRows, kKWide, "ptx::bar_sync();  // the maxima are there", "//",
       "race|uninitialised|wrong result"},
      {"wide_p_barrier", kWideHeads, kWideRows, kKWide, "ptx::bar_sync();  // P is there", "//",
       "race|uninitialised|wrong result"},
      {"wide_sums_barrier", kWideHeads, kWideRows, kKWide, "ptx::bar_sync();  // the sums are there", "//",
       "race|uninitialised|wrong result"},
      {"wide_wait_for_one_k_less", kWideHeads, kWideRows, kKWide, "ptx::cp_async_wait<kStages - 2>();",
       "ptx::cp_async_wait<kStages - 1>();", "race|uninitialised|wrong result"},
      {"wide_wait_for_one_v_less", kWideHeads, kWideRows, kKWide, "ptx::cp_async_wait<kStages - 1>();",
       "ptx::cp_async_wait<kStages>();", "race|uninitialised|wrong result"},
      {"wide_k_stage_filled_too_early", kWideHeads, kWideRows, kKWide, "    load(item + kStages - 1);",
       "    load(item + kStages - 1), load(item + kStages);", "race|wrong result"},
      {"wide_row_maximum_not_shared", kWideHeads, kWideRows, kKWide,
       "maxima[r] = ptx::max(maxima[r], shared(warp, r, offset));", "shared(warp, r, offset);", kWrong},
      {"wide_row_sum_not_shared", kWideHeads, kWideRows, kKWide, "state.total[r] += shared(warp, r);",
       "state.total[r] += warp == column_warp ? shared(warp, r) : 0.0f;", kWrong},
      {"wide_columns_of_another_warp", kWideHeads, kWideRows, kKWide, "lane_v.chunk_address ^ (32 * column_warp)",
       "lane_v.chunk_address", kWrong},
      {"wide_scores_of_the_first_keys", kWideHeads, kWideRows, kKWide, "k + column_warp * kKeys * TileQk::kPitch", "k",
       kWrong},
      {"wide_p_in_the_first_columns", kWideHeads, kWideRows, kKWide, "column_warp * kKeyTiles + n)", "n)",
       "race|uninitialised|wrong result"},
      {"wide_accumulators_not_rescaled", kWideHeads, kWideRows, kKWide, "rescale[0] != 1.0f || rescale[1] != 1.0f",
       "rescale[0] != 1.0f && rescale[1] != 1.0f", kWrong},
      {"wide_sum_of_one_chain", kWideSplit, kWidePages, kKWide, "tile::element(acc_s, i) += tile::element(sums[1], i);",
       ";", kWrong},
      {"wide_mask_of_another_warp", kWideHeads, kWideRows, kKWide, "of_block * C.column_warps + column_warp;",
       "of_block * C.column_warps;", kWrong},
      {"wide_head_of_the_first_row", kWideHeads, kWideRows, kKWide, "from = q + head * problem().q_stride.head",
       "from = q + 0 * head", kWrong},
      {"wide_o_read_too_early", kWideHeads, kWideRows, kFinishWide, "ptx::bar_warp_sync();", "",
       "race|uninitialised|wrong result"},
      {"wide_last_piece_left_out", kWideHeads, kWideRows, kFinishWide,
       "for (int index = lane; index < own_rows * 2 * kPieces;",
       "for (int index = lane; index < own_rows * 2 * kPieces - 1;", kWrong},
      {"wide_part_before_the_arrival", kWideSplit, kWidePages, kFinishWide,
       "ptx::bar_sync();  // all threads have written", "", "race"},
      {"wide_arrival_orders_nothing", kWideSplit, kWidePages, kFinishWide, "ptx::atomic_add_global_acq_rel(",
       "ptx::atomic_add_global(", "race"},
      {"wide_counter_not_left_zero", kWideSplit, kWidePages, kFinishWide,
       "if (is_last) ptx::st_global_u32(counter, 0);", "", "zero|wrong result|not the same"},
      {"wide_parts_unweighted", kWideSplit, kWidePages, kMergeOfParts, "const float own = weight(maxima[i], common);",
       "const float own = 1.0f;", kWrong},
      {"wide_part_of_another_tile", kWideSplit, kWidePages, kFinishWide,
       "static_cast<long long>(work.tile) * params.num_splits", "static_cast<long long>(work.batch)",
       "race|wrong result|uninitialised"},
      {"wide_share_one_block_short", kWideSplit, kWidePages, kWorkWide,
       "work.blocks = {end_of(split), end_of(split + 1)};",
       "work.blocks = {end_of(split), end_of(split + 1) - (split == 0 ? 1 : 0)};", kWrong},
      {"wide_page_of_the_first_key", kWideSplit, kWidePages, kPagesWide, "by_page_size.quotient(key));",
       "by_page_size.quotient(first_key));", kWrong},
      {"wide_keys_past_the_end", kWideSplit, kWidePages, kPagesWide, "key >= keys_end", "key > keys_end",
       "wrong result|out of bounds|uninitialised"},
      {"wide_codes_barrier", kWideHeads, kWideHeadCodes, kKWide,
       "ptx::bar_sync();  // everybody's codes of K are visible", "//", "race|uninitialised|wrong result"},
      {"wide_codes_k_barrier", kWideHeads, kWideHeadCodes, kKWide, "ptx::bar_sync();  // K is there", "//",
       "race|uninitialised|wrong result"},
      {"wide_codes_maxima_barrier", kWideHeads, kWideHeadCodes, kKWide, "ptx::bar_sync();  // V's codes and the maxima",
       "//", "race|uninitialised|wrong result"},
      {"wide_codes_p_barrier", kWideHeads, kWideHeadCodes, kKWide, "ptx::bar_sync();  // V and P", "//",
       "race|uninitialised|wrong result"},
      {"wide_codes_wait_for_one_less", kWideHeads, kWideHeadCodes, kKWide, "kLater = kStages - 1;", "kLater = kStages;",
       "race|uninitialised|wrong result"},
      {"wide_codes_filled_before_they_are_left", kWideHeads, kWideHeadCodes, kKWide,
       "    load(item + kStages);\n    mark(Activity::kQk, block);\n    Scores acc_s;\n    scores(acc_s, "
       "address_widened());",
       "    load(item + kStages), load(item + 1 + kStages);\n    Scores acc_s;\n    scores(acc_s, address_widened());",
       "race|wrong result"},
      {"wide_codes_factor_of_k_dropped", kWideHeads, kWideHeadCodes, kKWide, "changes_scores(T) ? 1.0f : factor_k",
       "1.0f", kWrong},
      {"wide_codes_functions_without_factor_of_k", kWideHeads, kWideNibbles, kKWide,
       "tile::element(acc_s, i) *= factor_k;", ";", kWrong},
      {"wide_codes_factor_of_the_first_head", kWideHeads, kWideHeadCodes, kKWide,
       "tile::descale(descales->descale_k, work.batch, work.head_kv)",
       "tile::descale(descales->descale_k, work.batch, 0)", kWrong},
      {"wide_codes_factor_of_v_dropped", kWideHeads, kWideHeadCodes, kFinishWide, "scale *= factor_v;", ";", kWrong},
      {"wide_codes_weights_stay_scaled", kWideHeads, kWideNibbles, kKWide, "tile::scale_rows(acc_o, undone);", ";",
       kWrong},
      {"wide_codes_factors_of_keys_dropped", kWideHeads, kWideCodes, kKWide,
       "tile::load_factors(factors, own_factors(item));\n      tile::multiply_columns(acc_s, factors);", ";", kWrong},
      {"wide_codes_factors_of_values_dropped", kWideHeads, kWideCodes, kKWide,
       "tile::load_factors(factors, own_factors(item + 1));\n      tile::multiply_columns(acc_s, factors);", ";",
       kWrong},
      {"wide_codes_factors_of_k_for_v", kWideHeads, kWideCodes, kKWide,
       "is_k ? descales->descale_k : descales->descale_v", "descales->descale_k", kWrong},
      {"wide_codes_too_few_slots_of_factors", kWideHeads, kWideCodes, "sm80_wide_fwd/config.h",
       "return c.num_stages + 1;", "return c.num_stages;", "race|wrong result"},
      {"wide_codes_unit_forgotten", kWideHeads, kWideCodes, kKWide,
       "undone[0] *= units.undone(0), undone[1] *= units.undone(1);", ";", kWrong},
      {"wide_codes_unit_of_own_keys", kWideHeads, kWideCodes, kKWide, "join(tops, tops_offset());", ";", kWrong},
      {"wide_codes_o_in_the_unit_before", kWideHeads, kWideCodes, kKWide,
       "rescale[r] *= units.update(tops[r], softmax.max_scaled[r], r);",
       "units.update(tops[r], softmax.max_scaled[r], r);", kWrong},
      {"wide_codes_factor_of_the_first_of_a_page", kWideSplit, kWideCodes, kCodesWide, "rows.in_page(row));", "0);",
       kWrong},
      {"wide_codes_halves_swapped", kWideHeads, kWideHeadCodes, kCodesWide, "chunk * kChunks + part)",
       "chunk * kChunks + i)", kWrong},
      {"wide_nibbles_not_in_order", kWideHeads, kWideNibbles, kCodesWide, "apart[2 * i], apart[2 * i + 1], 0x7632u",
       "apart[2 * i], apart[2 * i + 1], 0x5410u", kWrong},
      {"wide_codes_last_row_left_out", kWideHeads, kWideHeadCodes, kCodesWide, "kCount = C.block_n * kOfRow;",
       "kCount = C.block_n * kOfRow - 1;", "race|wrong result|uninitialised"},
      // --- sm90_wide_fwd ---
      {"hopper_wide_maxima_barrier", kHopperWide, kWideRows, kConsumerHopperWide, "meet();  // the maxima are there",
       "//", kTornWrong},
      {"hopper_wide_p_barrier", kHopperWide, kWideRows, kConsumerHopperWide, "meet();  // P is there", "//",
       kTornWrong},
      {"hopper_wide_sums_barrier", kHopperWide, kWideRows, kConsumerHopperWide, "meet();  // the sums are there", "//",
       kTornWrong},
      {"hopper_wide_piece_not_waited_for", kHopperWide, kWideRows, kConsumerHopperWide,
       "      acquire();\n      mark(Activity::kQk);", "      mark(Activity::kQk);", kTornWrong},
      {"hopper_wide_values_not_waited_for", kHopperWide, kWideRows, kConsumerHopperWide,
       "        acquire();\n        mark(Activity::kPv);", "        mark(Activity::kPv);", kTornWrong},
      {"hopper_wide_multiplies_not_waited_for", kHopperWide, kWideRows, kConsumerHopperWide,
       "      ptx::wgmma_wait<1>();\n", "", kTornWrong},
      {"hopper_wide_last_multiply_not_waited_for", kHopperWide, kWideRows, kConsumerHopperWide,
       "    ptx::wgmma_wait<0>();\n", "", kTornWrong},
      {"hopper_wide_piece_given_back_too_early", kHopperWide, kWideRows, kConsumerHopperWide,
       "end_piece(acc_o[b], b == 0, kConsumers);", "end_piece(acc_o[b], b == 0, 0);", kTornWrong},
      {"hopper_wide_foreign_piece_kept", kHopperWide, kWideRows, kConsumerHopperWide, "    release(0);\n", "",
       kTornWrong},
      {"hopper_wide_piece_of_one_cta", kHopperWide, kWideRows, kConsumerHopperWide, "rank < C.cluster; ++rank",
       "rank < 1; ++rank", kTornWrong},
      {"hopper_wide_maximum_not_shared", kHopperWide, kWideRows, kConsumerHopperWide,
       "maxima[r] = ptx::max(maxima[r], told(context.maxima(1 - index), r));", ";", kWrong},
      {"hopper_wide_sum_not_shared", kHopperWide, kWideRows, kConsumerHopperWide,
       "state.total[r] = index == 0 ? state.total[r] + other : other + state.total[r];", ";", kWrong},
      {"hopper_wide_scores_of_the_first_keys", kHopperWide, kWideRows, kConsumerHopperWide, "+ index * (kKeys * 128)",
       "", kWrong},
      {"hopper_wide_p_in_the_first_columns", kHopperWide, kWideRows, kConsumerHopperWide,
       "index * (kKeys / 8) + 2 * n + lane() / 16", "2 * n + lane() / 16", kTornWrong},
      {"hopper_wide_accumulators_not_rescaled", kHopperWide, kWideRows, kConsumerHopperWide,
       "rescale[0] != 1.0f || rescale[1] != 1.0f", "rescale[0] != 1.0f && rescale[1] != 1.0f", kWrong},
      {"hopper_wide_mask_of_the_first_keys", kHopperWide, kWideRows, kConsumerHopperWide,
       "kConsumers * key_block(block) + index", "kConsumers * block", kWrong},
      {"hopper_wide_columns_of_the_other", kHopperWide, kWideRows, kFinishHopperWide, "return kConsumers * b + index;",
       "return kConsumers * b + 1 - index;", "race|uninitialised|wrong result|out of bounds"},
      {"hopper_wide_share_at_the_front", kHopperWide, kWideRows, kLoaderHopperWide, "slot + of_rank * 128", "slot",
       kTornWrong},
      {"hopper_wide_rows_of_the_first_cta", kHopperWide, "b1_h2_sq100_sk40_d264_fp16_causal", kContextHopperWide,
       "tile.first_row += rank() * kStepOfRank<C>;", "", kTornWrong},
      {"hopper_wide_heads_of_the_first_cta", kHopperWidePacked, kWidePages, kContextHopperWide,
       "divides_heads(C) ? rank() * own_heads(C) : 0", "0", kTornWrong},
      {"hopper_wide_head_of_the_first_row", kHopperWidePacked, "b1_h4_hk1_sq3_sk60_d264_fp16_causal", kFinishHopperWide,
       " + of_row / own_positions(C)", "", kTornWrong},
      {"hopper_wide_window_of_the_last_cta", kHopperWide, "b1_h1_sq128_sk200_d264_fp16_causal_wl40_raggedfull_page16",
       kContextHopperWide, "tile.first_seen - rank() * kStepOfRank<C>", "tile.first_seen", kWrong},
      {"hopper_wide_share_one_block_short", kHopperWideSplit, kWideRows, kContextHopperWide,
       "{{end_of(part), end_of(part + 1)}, parts, part}", "{{end_of(part), end_of(part + 1) - 1}, parts, part}",
       "wrong result|uninitialised"},
      {"hopper_wide_parts_unweighted", kHopperWideSplit, kWideRows, kMergeOfParts,
       "const float own = weight(maxima[i], common);", "const float own = 1.0f;", kWrong},
      {"hopper_wide_part_of_another_tile", kHopperWideSplit, kWideRows, kPartsHopperWide,
       "static_cast<long long>(tile) * params.num_splits", "static_cast<long long>(0)",
       "race|wrong result|uninitialised"},
      {"hopper_wide_parts_uncounted", kHopperWideSplit, kWideRows, kConsumerHopperWide, "finish.tell_count(share);",
       ";", "uninitialised|wrong result"},
      {"hopper_wide_part_one_too_few", kHopperWideSplit, kWideRows, kPartsHopperWide, "count, of_row,",
       "count - 1, of_row,", kWrong},
      {"hopper_wide_merge_of_the_first_head", kHopperWidePacked, "b1_h4_hk1_sq3_sk200_d264_fp16", kPartsHopperWide,
       "of_pack % own_heads(C) * own_positions(C) + ", "", kTornWrong},
      {"hopper_wide_merge_of_the_first_cta", kHopperWidePacked, "b1_h4_hk1_sq3_sk200_d264_fp16", kPartsHopperWide,
       "divides_heads(C) ? of_pack / own_heads(C) : of_cluster / own_positions(C)", "0", kTornWrong},
      {"hopper_wide_merge_past_the_sequence", kHopperWideSplit, "b2_h2_sq9_sk100_d264_fp16_raggedhalving",
       kPartsHopperWide, "if (sequence.bad || position >= sequence.len_q) return;", "",
       "race|uninitialised|wrong result|out of bounds"},
      {"hopper_wide_slots_of_all_warps", kHopperWidePacked, kWidePages, kPagesHopperWide,
       "ring.stage() % loading_warps(C) == ptx::tid_x() / 32", "true", "race|hang|deadlock|waits|wrong|bytes"},
      {"hopper_wide_pages_of_the_first_share", kHopperWidePacked, kWidePages, kPagesHopperWide,
       "keys.first_key(block * C.cluster + rank, lane())", "keys.first_key(block * C.cluster, lane())", kWrong},
      {"hopper_wide_boxes_of_one_cta", kHopperWidePacked, kWidePages, kPagesHopperWide, "if (rank == context.rank())",
       "if (rank == 0)", kTornWrong},
      // --- windows ---
      {"window_left_off_by_one", kSm80, kLeftOnly, kMask, "column_of_element(i) < begin[row_of_element(i)]",
       "column_of_element(i) <= begin[row_of_element(i)]", "wrong result"},
      {"window_left_not_cut", kSm90, kWindow, kMask, "block * kBlockN < begin_of(last_row)", "false", "wrong result"},
      {"window_cut_of_the_first_row_only", kShortOne, kWindow, kMask, "block * kBlockN < begin_of(last_row)",
       "block * kBlockN < begin_of(first_row)", "wrong result"},
      {"window_one_block_too_few", kDirect, kWindow, kMask, "return {begin / kBlockN, ",
       "return {begin / kBlockN + 1, ", "wrong result"},
      {"window_rows_without_keys", kRef, "b1_h1_sq40_sk20_d64_fp16_wl5_tl", kRefKernel, "int key = keys.begin;",
       "int key = 0;", "wrong result"},
      {"window_blocks_on_the_left_not_skipped", kSm90, kWindow, kConsumer,
       "if constexpr (skips_after()) tile::skip_blocks(*this, work.skipped_after);\n        context.release_tile",
       "context.release_tile", "deadlock|race|wrong result|too many"},
      {"window_blocks_of_a_key_group_not_skipped", kSm90Groups, kWindow, kShares,
       "share.skipped_after = own_count - share.skipped - left;", "share.skipped_after = 0;",
       "deadlock|race|wrong result|too many|arrived at twice"},
      {"window_cluster_counts_its_own_blocks", kSm90Cluster, kWindow, kContext,
       "blocks<C.block_n>(\n          tile.first_row,",
       "blocks<C.block_n>(\n          tile.first_row + rank() * block_m(C),", "deadlock|race|wrong result"},
      // --- functions of the user's own ---
      {"sm90_listed_block_not_masked", kSm90, kListed, kConsumer,
       "if (tile::BlockList::use_of(this->entry, row_group) != tile::ListedUse::kFull)", "if (false)", kWrong},
      {"sm80_listed_block_not_masked", kSm80, kListed, kK80,
       "if (tile::BlockList::use_of(this->entry, 0) != tile::ListedUse::kFull)", "if (false)", kWrong},
      {"ref_mask_function_ignored", kRef, kListed, kRefKernel, "if (one[0] != 0.0f) continue;", "", kWrong},
      {"sm90_list_of_the_first_rows", kSm90, kListed, kContext, "tile.first_row / block_m(C))", "0)", kWrong},
      {"sm80_list_of_another_batch", kSm80, kListed, kExpressed, "batch * params.lists_per_batch", "0", kWrong},
      {"sm90_list_of_another_head", kSm90, kListed, kExpressed, "head_q * params.lists_per_head", "0", kWrong},
      {"sm90_list_without_its_last_block", kSm90, kListed, kLister, "static_cast<unsigned>(place + 1)",
       "static_cast<unsigned>(place)", "deadlock|wrong result|race|too many"},
      {"sm90_list_full_where_cut", kSm90, kListed, kLister, ": !truth.may_fail ? ListedUse::kFull",
       ": truth.may_hold ? ListedUse::kFull", kWrong},
      {"sm80_list_read_too_early", kSm80, kListed, kLister, "ptx::bar_sync();\n      if (warp == 0) append",
       "if (warp == 0) append", "race|uninitialised"},
      {"sm90_score_function_past_the_keys", kSm90, kListed, kExpressed, "at.j = min_int(at.j, problem.seqlen_kv - 1);",
       ";", "out of bounds"},
      {"sm80_function_of_a_sequence_by_itself", kSm80, kListedRagged, kK80, "return this->batch_entry;", "return 0;",
       kWrong},
      {"sm90_function_of_a_sequence_by_itself", kSm90, kListedRagged, kConsumer,
       "this->own_head = {tile.batch, tile.head_q, tile.head_q / (p.",
       "this->own_head = {0, tile.head_q, tile.head_q / (p.", kWrong},
      {"sm90_function_of_the_bounds", kSm90, kListedRagged, kConsumer, "express<kMask>(at.own, at.first_row",
       "express<kMask>(context.params.problem, at.first_row", "wrong result|out of bounds"},
      {"sm90_list_of_the_bounds", kSm90, kListedRagged, kLister,
       "params_of_sequence(bounds, params.ragged, sequence.len_q, sequence.len_kv)", "bounds", kWrong},
      {"sm90_list_of_another_sequence", kSm90, kListedRagged, kBatchTiles,
       "slot.batch, slot.head_q, slot.first_row / kRows", "0 * slot.batch, slot.head_q, slot.first_row / kRows",
       "wrong result|uninitialised|deadlock"},
      {"sm80_list_of_a_place_among_pages", kSm80, kListedPaged, kK80, "k, params.k_stride, key_block(block))",
       "k, params.k_stride, block)", kWrong},
      {"sm80_score_function_of_unscaled_scores", kSm80, kListed, kExpressed, "return params->unit;", "return 1.0f;",
       kWrong},
      {"decode_function_of_the_first_head", kDecode, kPackedFunctions, kExpressedDecode,
       "run.head_kv * params.group_size + rows[r] - positions[r] * params.group_size, run.head_kv}",
       "run.head_kv * params.group_size, run.head_kv}", kWrong},
      {"decode_function_of_the_other_row", kDecode, kPackedFunctions, kExpressed,
       "const Head& head_of_row(const Head (&heads)[2], int r) { return heads[r]; }",
       "const Head& head_of_row(const Head (&heads)[2], int r) { return heads[1 - r]; }", kWrong},
      {"decode_function_of_the_first_entry", kDecode, kPackedFunctions, kExpressedDecode, "heads[r] = {run.batch, ",
       "heads[r] = {0, ", kWrong},
      {"decode_function_of_packed_rows", kDecode, kPackedFunctions, kExpressedDecode,
       "params.by_group_size.quotient(rows[r]);\n    heads[r]", "rows[r];\n    heads[r]", kWrong},
      {"decode_whole_block_not_masked", kDecode, kPackedFunctions, kKDecode,
       "transforms_scores(T) || has_expression(T) || !is_whole", "transforms_scores(T) || !is_whole", kWrong},
      {"decode_function_before_the_factor", kDecode, kCodedFunctions, kScoresDecode,
       "changes_scores(T) && has_quantised_cache(T) && !scales_q(T)",
       "transforms_scores(T) && has_quantised_cache(T) && !scales_q(T)", kWrong},
      {"decode_factor_after_the_function", kDecode, kCodedFunctions, kKDecode,
       "has_quantised_cache(T) && !changes_scores(T) && !scales_q(T)",
       "has_quantised_cache(T) && !transforms_scores(T) && !scales_q(T)", kWrong},
      {"wide_function_of_the_first_head", kWideHeads, kWideFunctions, kKWide,
       "work.head_kv * params.group_size + row - positions[r] * params.group_size, work.head_kv}",
       "work.head_kv * params.group_size, work.head_kv}", kWrong},
      {"wide_function_of_packed_rows", kWideHeads, kWideFunctions, kKWide,
       "positions[r] = params.by_group_size.quotient(row);", "positions[r] = row;", kWrong},
      {"wide_function_of_the_first_rows", kWideHeads, kWideFunctions, kKWide,
       "const int row = work.first_row + 16 * row_warp + tile::row_of_lane(lane, r);\n      positions[r]",
       "const int row = work.first_row + tile::row_of_lane(lane, r);\n      positions[r]", kWrong},
      {"wide_mask_function_ignored", kWideHeads, kWideFunctions, kKWide, "if constexpr (T.mask_expression)",
       "if constexpr (false)", kWrong},
      {"wide_codes_function_before_the_factor", kWideHeads, kWideCodedFunctions, kKWide,
       "} else if constexpr (changes_scores(T)) {", "} else if constexpr (transforms_scores(T)) {", kWrong},
      {"wide_codes_factor_after_the_function", kWideHeads, kWideCodedFunctions, kKWide,
       "(changes_scores(T) ? 1.0f : factor_k)", "(transforms_scores(T) ? 1.0f : factor_k)", kWrong},
      {"hopper_wide_function_of_the_first_head", kHopperWidePacked, kWideFunctions, kConsumerHopperWide,
       "heads[r].head_q += head_of(r);", ";", kWrong},
      {"hopper_wide_function_of_another_entry", kHopperWidePacked, kWideFunctions, kConsumerHopperWide,
       "this->own_head = {batch, first", "this->own_head = {0, first", kWrong},
      {"hopper_wide_mask_function_ignored", kHopperWidePacked, kWideFunctions, kConsumerHopperWide,
       "if (!is_seen_by_all())", "if (false)", kWrong},
      {"hopper_wide_listed_block_not_masked", kHopperWideListed, kWideListed, kConsumerHopperWide,
       "if (!is_seen_by_all())", "if (false)", kWrong},
      {"hopper_wide_keys_of_a_place", kHopperWideListed, kWideListed, kLoaderHopperWide,
       "block = tile::BlockList::block_of(tile.list.entry(context.expression_params, block));", ";", kWrong},
      {"hopper_wide_pairs_of_a_place", kHopperWideListed, kWideListed, kConsumerHopperWide,
       "return tile::BlockList::block_of(this->entry);", "return block;", kWrong},
      {"hopper_wide_list_of_the_first_rows", kHopperWideListed, kWideListed, kContextHopperWide,
       "tile.first_row / kRows)", "0)", kWrong},
      // --- functions of the user's own of 8 bits ---
      {"sm90_fp8_listed_block_not_masked", kSm90Fp8, kBytesListed, kConsumer8,
       "if (tile::BlockList::use_of(this->entry, index) != tile::ListedUse::kFull)", "if (false)", kWrong},
      {"sm90_fp8_list_use_of_another_row_group", kSm90Fp8, kBytesListed, kConsumer8,
       "tile::BlockList::use_of(this->entry, index)", "tile::BlockList::use_of(this->entry, 1 - index)", kWrong},
      {"sm90_fp8_list_of_another_row_group", kSm90Fp8, kBytesListed, kConsumer8,
       "tile.list.of_group(context.expression_params, index)", "tile.list.of_group(context.expression_params, 0)",
       "wrong result|deadlock|race"},
      {"sm90_fp8_list_of_the_first_rows", kSm90Fp8, kBytesListed, kContext8, "tile.first_row / block_m(C))", "0)",
       kWrong},
      {"sm90_fp8_mask_of_another_head", kSm90Fp8, kBytesListed, kConsumer8,
       "this->own_head = {batch, head_q, head_kv};", "this->own_head = {batch, head_kv, head_kv};", kWrong},
      {"sm90_fp8_values_of_a_place", kSm90Fp8, kBytesBands, kLoader8,
       "if constexpr (T.mask_expression) block = listed_block(tile, block);\n    if constexpr (takes_transposed_v(C))",
       "if constexpr (takes_transposed_v(C))", kWrong},
      {"sm90_fp8_cut_by_a_place", kSm90Fp8, kBytesBands, kConsumer8,
       "if constexpr (T.mask_expression) block = tile::BlockList::block_of(this->entry);", "", kWrong},
      {"sm90_fp8_blocks_after_the_list_not_skipped", kSm90Fp8, kBytesBands, kConsumer8,
       "if constexpr (skips_after()) tile::skip_blocks(*this, work.skipped_after);", "",
       "deadlock|race|wrong result|too many|arrived at twice"},
      {"sm90_fp8_score_function_without_factors", kSm90Fp8, kBytesListed, kConsumer8,
       "return context.expression_params->unit * this->factor_of_scores;", "return context.expression_params->unit;",
       kWrong},
      {"sm90_fp8_score_function_without_factors_of_rows", kSm90Fp8, kBytesScoreOfRows, kConsumer8,
       "if constexpr (T.token_factors && !transforms_scores(T)) multiply_by_rows(scores);", "", kWrong},
      {"sm90_fp8_function_of_a_sequence_by_itself", kSm90Fp8, kBytesListedRagged, kConsumer8,
       "this->own_head = {batch, head_q, head_kv};", "this->own_head = {0, head_q, head_kv};", kWrong},
      {"sm90_fp8_function_of_the_bounds", kSm90Fp8, kBytesListedRagged, kConsumer8,
       "express<kMask>(at.own, at.first_row", "express<kMask>(context.problem, at.first_row",
       "wrong result|out of bounds"},
      {"sm89_listed_block_not_masked", kAda, kBytesListed, kK89,
       "if (tile::BlockList::use_of(this->entry, 0) != tile::ListedUse::kFull)", "if (false)", kWrong},
      {"sm89_keys_of_a_place", kAda, kBytesListed, kK89, "const int first_key = key_block(block) * C.block_n;",
       "const int first_key = block * C.block_n;", kWrong},
      {"sm89_score_function_without_factors", kAda, kBytesListed, kK89,
       "if constexpr (!transforms_scores(T)) multiply_by_rows(acc_s[m], row);", "", kWrong},
      {"sm89_function_of_a_sequence_by_itself", kAda, kBytesListedRagged, kK89, "return this->batch_entry;",
       "return 0;", kWrong},
      // --- 8 bits by mma.sync ---
      {"sm89_wait_for_one_group_less", kAdaDeep, kBytes, kK89, "ptx::cp_async_wait<kStages - 2>();",
       "ptx::cp_async_wait<kStages - 1>();", "race|uninitialised|before"},
      {"sm89_stage_filled_too_early", kAda, kBytes, kK89,
       "ptx::bar_sync();  // everybody's copies are visible, and everybody has left the stage that is loaded next\n"
       "    load(block - (kStages - 1));",
       "load(block - (kStages - 1));\n    ptx::bar_sync();", "race"},
      {"sm89_next_tile_overwrites_q", kAda, kBytes, kK89, "ptx::cp_async_wait<0>();\n    ptx::bar_sync();",
       "ptx::cp_async_wait<0>();", "race"},
      {"sm89_factors_of_the_first_entry", kAda, kBytesRagged, kK89, "const int entry = first_entry + tile.batch;",
       "const int entry = tile.batch;", kWrong},
      {"sm89_scores_without_their_factor", kAda, kBytesScored, kK89,
       "else tile::scale_rows(acc_s, {factor_of_scores, factor_of_scores});", "", kWrong},
      {"sm89_sink_without_the_exponent", kAda, kBytesScored, "tile/byte_softmax.cuh",
       "return add_sink(max_scaled[r] - static_cast<float>(kExponent),", "return add_sink(max_scaled[r],", kWrong},
      {"sm89_columns_exchanged", kAda, kBytes, kStore, "32 * (t % 2) + 16 * (t / 2)", "32 * (t / 2) + 16 * (t % 2)",
       kWrong},
      {"sm89_last_columns_exchanged", kAda, kBytesOdd, kStore, "8 * t + 4 * part", "4 * t + 16 * part", kWrong},
      {"sm89_sums_counted_twice", kAda, kBytes, kK89, "tile::set_zero(part[m]);",
       "if (first == 0 && d == 0) tile::set_zero(part[m]);", kWrong},
      // --- 8 bits by wgmma: ragged batches, paged caches, functions of scores ---
      {"sm90_fp8_ragged_keys_of_the_bound", kSm90Fp8, kBytesRaggedFull, kLoader8, "block * C.block_n + tile.keys_row",
       "block * C.block_n", "wrong result|out of bounds"},
      {"sm90_fp8_ragged_keys_past_the_end", kSm90Fp8, kBytesRaggedFull, kBatchTiles,
       "- slot.len_kv, tile.keys_end = sequence.first_kv", "- slot.len_kv, tile.keys_end = 1 + sequence.first_kv",
       "wrong result|out of bounds"},
      {"sm90_fp8_ragged_rows_unshifted", kSm90Fp8, kBytesRaggedFull, kConsumer8,
       "index * kRowsPerConsumer + context.problem.seqlen_q - tile.len_q", "index * kRowsPerConsumer",
       "wrong result|out of bounds|race"},
      {"sm90_fp8_ragged_mask_of_the_bounds", kSm90Fp8, kBytesRagged, kConsumer8,
       "tile::Mask<T, ForwardParams>{at.own}.apply(", "tile::Mask<T, ForwardParams>{context.problem}.apply(", kWrong},
      {"sm90_fp8_ragged_whole_end_too_far", kSm90Fp8, kBytesRagged, kConsumer8, "mask.end_of(at.first_row)",
       "mask.end_of(at.first_row + kRowsPerConsumer)", kWrong},
      {"sm90_fp8_ragged_own_key_of_the_bounds", kSm90Fp8,
       "b3_h4_hk2_sq70_sk100_d64_e4m3_perhead_alibibatch_raggedhalving", kConsumer8,
       "const tile::Score<T, ForwardParams, true> score = {at.own,",
       "const tile::Score<T, ForwardParams, true> score = {context.problem,", kWrong},
      {"sm90_fp8_ragged_factors_of_the_first", kSm90Fp8, kBytesRagged, kConsumer8, "set_scales(at.tile.batch,",
       "set_scales(0,", kWrong},
      {"sm90_fp8_ragged_factor_of_another_v", kSm90Fp8, kBytesRagged, kConsumer8, "descale_v(tile.batch, head_kv)}",
       "descale_v(0, head_kv)}", kWrong},
      {"sm90_fp8_ragged_sequence_without_keys", kSm90Fp8, kBytesNoKeys, kConsumer8, "(!skips() && !T.ragged)",
       "!skips()", "deadlock|wrong result"},
      {"sm90_fp8_ragged_slot_read", kSm90Fp8, kBytesRaggedShort, kBatchTiles,
       "ptx::bar_warp_sync();  // all lanes have read it\n      arrive_for_warp", "arrive_for_warp", "race"},
      {"sm90_fp8_ragged_slot_kept_by_transposers", kSm90Fp8, kBytesRaggedShort, kTransposer8,
       "context.release_tile(ring_tile);\n    return blocks;", "ring_tile.advance();\n    return blocks;", "deadlock"},
      {"sm90_fp8_page_of_another_box", kSm90Fp8, kBytesPaged, kPagedLoader8, "first_key(block, lane()));",
       "first_key(block, 0));", kWrong},
      {"sm90_fp8_page_tail_not_zeroed", kSm90Fp8, kBytesPaged, kPageBoxes, "page >= 0 && valid < boxes.rows", "false",
       kWrong},
      {"sm90_fp8_page_part_of_values", kSm90Fp8, kBytesPagedParts, kPagedLoader8,
       "32,\n                                             column);",
       "32,\n                                             0);", kWrong},
      {"sm90_fp8_scores_without_their_factor", kSm90Fp8, kBytesScored, kConsumer8,
       "tile::scale_rows(scores, {tile::scale_of(this->factor_of_scores, 0), tile::scale_of(this->factor_of_scores, "
       "1)});",
       "", kWrong},
      {"sm90_fp8_scores_by_the_first_row", kSm90Fp8, kBytesSoftcapOfRows, kConsumer8,
       "tile::scale_of(this->factor_of_scores, 1)});", "tile::scale_of(this->factor_of_scores, 0)});", kWrong},
      {"sm90_fp8_factor_twice", kSm90Fp8, kBytesScored, kConsumer8,
       "this->factor_of_scores = factor, scale_log2 = scale;",
       "this->factor_of_scores = factor, scale_log2 = scale * factor;", kWrong},
      {"sm90_fp8_sink_left_out", kSm90Fp8, kBytesScored, kConsumer8,
       "if constexpr (T.sink) return softmax.finish_with_sink(r, lse, sink_log2);\n    else return", "return", kWrong},
      // --- turns ---
      {"sm90_fp8_turn_not_ended", kSm90Fp8Three, kBytes, kShares, "end_if<3>();", ";", "deadlock"},
      {"sm90_fp8_softmax_turn_not_ended", kSm90Fp8Softmax, kBytes, kShares, "end_if<4>();", ";", "deadlock"},
      {"sm90_fp8_no_turn_of_blocks_let_pass", kSm90Fp8Three, kBytes, kConsumer8,
       "begin_issue(), end_issue(), turns.first_done(), turns.all_done();", "", "deadlock"},
      {"sm90_fp8_no_softmax_turn_of_blocks_let_pass", kSm90Fp8Softmax, kBytes, kConsumer8,
       "begin_softmax(), turns.end_softmax();\n  }\n\n  // --- multiplies", "}\n\n  // --- multiplies", "deadlock"},
      {"sm90_softmax_turn_not_ended", kSm90Softmax, kCausal, kShares, "end_if<4>();", ";", "deadlock"},
      // --- changes that alter no result and no order ---
      {"sm90_no_prefetch", kSm90, kCausal, kK90, "ptx::prefetch_tensormap(params.q);", "", "",
       "a prefetch only warms a cache"},
      {"short_start_barrier_before_cluster_barrier", kShort, kCausal, kKShort,
       "ptx::bar_sync();\n    // All of the cluster", "// All of the cluster", "",
       "the cluster's barrier, which follows, is of this CTA's threads too and hands on the fenced inits; who reads "
       "what "
       "was loaded or stores to O comes after an mbarrier of the thread that executed griddepcontrol.wait"},
  };
  return all;
}

}  // namespace flashcore::testing
