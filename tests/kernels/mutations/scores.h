#pragma once
// Softcap, ALiBi, sinks and windows, of every family that has them.

#include "kernels/mutations/mutation.h"

namespace flashcore::testing {

inline std::vector<Mutation> mutations_of_scores() {
  using namespace mutated;
  return {
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
  };
}

}  // namespace flashcore::testing
