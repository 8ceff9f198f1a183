#pragma once
// A fault to plant in a copy of the kernel sources: one substitution, and what must be said of it.

#include <ostream>
#include <vector>

#include "kernels/candidates.h"

namespace flashcore::testing {

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

// Files of src/kernels, texts that several faults change, and what is said of them.
namespace mutated {
inline constexpr const char* kK80 = "sm80_fwd/kernel.cuh";
inline constexpr const char* kK89 = "sm89_fp8_fwd/kernel.cuh";
inline constexpr const char* kConsumer8 = "sm90_fp8_fwd/consumer.cuh";
inline constexpr const char* kContext8 = "sm90_fp8_fwd/context.cuh";
inline constexpr const char* kLoader8 = "sm90_fp8_fwd/loader.cuh";
inline constexpr const char* kPagedLoader8 = "sm90_fp8_fwd/paged_loader.cuh";
inline constexpr const char* kTransposer8 = "sm90_fp8_fwd/transposer.cuh";
inline constexpr const char* kStore = "tile/store_fragment.cuh";
inline constexpr const char* kK90 = "sm90_fwd/kernel.cuh";
inline constexpr const char* kConsumer = "sm90_fwd/consumer.cuh";
inline constexpr const char* kLoader = "sm90_fwd/loader.cuh";
inline constexpr const char* kPagedLoader = "sm90_fwd/paged_loader.cuh";
inline constexpr const char* kPageBoxes = "tile/page_boxes.cuh";
inline constexpr const char* kPages80 = "sm80_fwd/pages.cuh";
inline constexpr const char* kProducer = "tile/producer.cuh";
inline constexpr const char* kShares = "tile/consumer.cuh";
inline constexpr const char* kContext = "sm90_fwd/context.cuh";
inline constexpr const char* kKShort = "sm90_short_fwd/kernel.cuh";
inline constexpr const char* kPagesShort = "sm90_short_fwd/pages.cuh";
inline constexpr const char* kMerge = "sm90_short_fwd/merge.cuh";
inline constexpr const char* kKDirect = "sm80_short_fwd/kernel.cuh";
inline constexpr const char* kKDecode = "sm80_decode_fwd/kernel.cuh";
inline constexpr const char* kBatchTiles = "tile/batch_tiles.cuh";
inline constexpr const char* kContextDecode = "sm80_decode_fwd/context.cuh";
inline constexpr const char* kLoaderDecode = "sm80_decode_fwd/loader.cuh";
inline constexpr const char* kScoresDecode = "sm80_decode_fwd/scores.cuh";
inline constexpr const char* kValuesDecode = "sm80_decode_fwd/values.cuh";
inline constexpr const char* kDeal = "sm80_decode_fwd/deal.cuh";
inline constexpr const char* kCodes = "sm80_decode_fwd/quantised.cuh";
inline constexpr const char* kWiden = "tile/cache_element.cuh";
inline constexpr const char* kNibbles = "sm80_decode_fwd/nibbles.cuh";
inline constexpr const char* kWidenNibbles = "tile/cache_nibbles.cuh";
inline constexpr const char* kNibbleCache = "b2_h4_hk2_sq3_sk70_d64_bf16_kvint4_perhead_causal_raggedfull_page16";
inline constexpr const char* kMergeParts = "sm80_decode_fwd/merge.cuh";
inline constexpr const char* kMergeRow = "sm80_decode_fwd/merge_row.cuh";
inline constexpr const char* kKeysFirst = "sm80_decode_fwd/keys_first.cuh";
inline constexpr const char* kKWide = "sm80_wide_fwd/kernel.cuh";
inline constexpr const char* kFinishWide = "sm80_wide_fwd/finish.cuh";
inline constexpr const char* kWorkWide = "sm80_wide_fwd/tile_of_cta.cuh";
inline constexpr const char* kPagesWide = "sm80_wide_fwd/pages.cuh";
inline constexpr const char* kCodesWide = "sm80_wide_fwd/codes.cuh";
inline constexpr const char* kConsumerHopperWide = "sm90_wide_fwd/consumer.cuh";
inline constexpr const char* kFinishHopperWide = "sm90_wide_fwd/finish.cuh";
inline constexpr const char* kContextHopperWide = "sm90_wide_fwd/context.cuh";
inline constexpr const char* kLoaderHopperWide = "sm90_wide_fwd/loader.cuh";
inline constexpr const char* kPagesHopperWide = "sm90_wide_fwd/paged_loader.cuh";
inline constexpr const char* kPartsHopperWide = "sm90_wide_fwd/parts.cuh";
inline constexpr const char* kMergeOfParts = "tile/merge_parts.cuh";
inline constexpr const char* kTornWrong = "race|uninitialised|wrong result|deadlock";
inline constexpr const char* kWarpgroup = "tile/warpgroup.cuh";
inline constexpr const char* kRefKernel = "ref_fwd/kernel.cuh";
inline constexpr const char* kTmaTile = "tile/tma_tile.cuh";
inline constexpr const char* kScheduler = "tile/scheduler.cuh";
inline constexpr const char* kMask = "tile/mask.cuh";
inline constexpr const char* kEpilogue = "tile/epilogue.cuh";
inline constexpr const char* kPartial = "tile/partial.cuh";
inline constexpr const char* kRowSoftmax = "tile/row_softmax.cuh";
inline constexpr const char* kTile = "tile/shared_tile.cuh";
inline constexpr const char* kScore = "tile/score.cuh";
inline constexpr const char* kExpressed = "tile/expressed.cuh";
inline constexpr const char* kExpressedDecode = "sm80_decode_fwd/expressed.cuh";
inline constexpr const char* kLister = "tile/list_blocks.cuh";
inline constexpr const char* kSequence = "tile/sequence.cuh";
inline constexpr const char* kRaggedTiles = "tile/ragged_tiles.cuh";
inline constexpr const char* kSoftmax = "tile/softmax.cuh";
inline constexpr const char* kSinkSum = "ptx::fma(total, of_keys, weight(sink_log2, common))";
inline constexpr const char* kSinkTwice = "ptx::fma(total, of_keys, 2.0f * weight(sink_log2, common))";
inline constexpr const char* kCapped = "element(scores, i) * params->tanh_scale";
inline constexpr const char* kSlope = "? batch * problem.heads_q : 0) + head)";
inline constexpr const char* kWrong = "wrong result";
}  // namespace mutated

}  // namespace flashcore::testing
