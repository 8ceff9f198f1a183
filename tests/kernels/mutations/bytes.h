#pragma once
// 8 bits by mma.sync and by wgmma.

#include "kernels/mutations/mutation.h"

namespace flashcore::testing {

inline std::vector<Mutation> mutations_of_bytes() {
  using namespace mutated;
  return {
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
  };
}

}  // namespace flashcore::testing
