#pragma once
// The kernel that makes the lists of blocks of a mask function (tile/expression_params.h), before the one that reads
// them. A CTA makes the list of a tile of rows; a warp decides a block. Most are decided by the ranges of what depends
// on the rows alone and on the keys alone; where those leave it open, pair by pair.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/vote.cuh"
#include "kernels/tile/expressed.cuh"
#include "kernels/tile/sequence.cuh"

namespace flashcore::tile {

constexpr int count_bits(unsigned bits) {
  bits -= bits >> 1 & 0x55555555u;
  bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
  return static_cast<int>(((bits + (bits >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
}

template <Traits T, int kGroups, int kGroupRows, int kBlockN>
struct BlockLister {
  static_assert(kGroups <= kMaxListGroups);
  static constexpr int kWarps = kListThreads / 32;
  // Rows of which the pairs are loaded at once.
  static constexpr int kRowsAtOnce = 4;

  const ForwardParams& problem;
  const ExpressionParams& expression;
  const Head head;
  const int tile_row;  // the tile's first
  const ptx::SharedAddress shared = ptx::dynamic_shared();

  FC_DEVICE static int lane() { return ptx::tid_x() % 32; }
  FC_DEVICE Mask<T, ForwardParams> band() const { return {problem}; }
  FC_DEVICE expression::Variables variables() const { return Expressions<>{problem, &expression}.variables(head); }

  FC_DEVICE static int shuffled(int value, int lanes) {
    return static_cast<int>(
        ptx::bits_of_float(ptx::shfl_bfly(ptx::float_of_bits(static_cast<unsigned>(value)), lanes)));
  }
  // Of what `values_at(index, values)` says of each index of first .. last. All lanes have them.
  template <int kCount, class Function>
  FC_DEVICE static void find_ranges(int first, int last, expression::Range* ranges, Function values_at) {
    if constexpr (kCount > 0) {
      int low[kCount], high[kCount];
#pragma unroll
      for (int v = 0; v < kCount; ++v) low[v] = 2147483647, high[v] = -2147483647 - 1;
      for (int index = first + lane(); index < last + 1 + lane(); index += 32) {
        int values[kCount];
        values_at(min_int(index, last), values);
#pragma unroll
        for (int v = 0; v < kCount; ++v) low[v] = min_int(low[v], values[v]), high[v] = max_int(high[v], values[v]);
      }
#pragma unroll
      for (int v = 0; v < kCount; ++v) {
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2) {
          low[v] = min_int(low[v], shuffled(low[v], lanes));
          high[v] = max_int(high[v], shuffled(high[v], lanes));
        }
        ranges[v] = {low[v], high[v]};
      }
    }
  }

  // By all pairs that the band shows. In steps, until one that is visible and one that is hidden have been seen.
  FC_DEVICE ListedUse use_by_pairs(int first_row, int last_row, int first_key, int last_key) const {
    constexpr int kKeysOfLane = (kBlockN + 31) / 32;
    bool seen = false, hidden = false;
    for (int row = first_row; row <= last_row; row += kRowsAtOnce) {
      bool inside[kRowsAtOnce][kKeysOfLane], visible[kRowsAtOnce][kKeysOfLane];
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const KeyRange<int> keys = band().keys_of_row(min_int(row + r, last_row));
#pragma unroll
        for (int k = 0; k < kKeysOfLane; ++k) {
          const int key = first_key + lane() + 32 * k;
          inside[r][k] = key <= last_key && keys.contains(key);
          expression::Variables at = variables();
          at.i = min_int(row + r, last_row), at.j = min_int(key, last_key);
          visible[r][k] = user::mask(at, expression.mask_tensors);
        }
      }
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
        for (int k = 0; k < kKeysOfLane; ++k) {
          seen |= inside[r][k] && visible[r][k];
          hidden |= inside[r][k] && !visible[r][k];
        }
      }
      if (ptx::vote_ballot(seen) != 0 && ptx::vote_ballot(hidden) != 0) return ListedUse::kCut;
    }
    if (ptx::vote_ballot(seen) == 0) return ListedUse::kSkip;
    return ptx::vote_ballot(hidden) == 0 ? ListedUse::kFull : ListedUse::kCut;
  }

  // By a whole warp: the uses of a block, as in a list's entry.
  FC_DEVICE unsigned uses_of(int block) const {
    const int first_key = block * kBlockN, last_key = min_int(first_key + kBlockN, problem.seqlen_kv) - 1;
    expression::Range rows[max_int(user::MaskRanges::kOfRow, 1)], keys[max_int(user::MaskRanges::kOfKey, 1)];
    find_ranges<user::MaskRanges::kOfKey>(first_key, last_key, keys, [&](int key, int* values) {
      expression::Variables at = variables();
      at.j = key;
      user::MaskRanges::of_key(at, expression.mask_tensors, values);
    });
    unsigned uses = 0;
    for (int group = 0; group < kGroups; ++group) {
      const int first_row = tile_row + group * kGroupRows;
      if (first_row >= problem.seqlen_q) break;
      const int last_row = min_int(first_row + kGroupRows, problem.seqlen_q) - 1;
      if (band().band().use_of(first_row, last_row, first_key, last_key + 1) == BlockUse::kSkip) continue;
      find_ranges<user::MaskRanges::kOfRow>(first_row, last_row, rows, [&](int row, int* values) {
        expression::Variables at = variables();
        at.i = row;
        user::MaskRanges::of_row(at, expression.mask_tensors, values);
      });
      const expression::Truth truth = user::MaskRanges::of_block(variables(), expression.mask_tensors, rows, keys);
      const ListedUse use = !truth.may_hold   ? ListedUse::kSkip
                            : !truth.may_fail ? ListedUse::kFull
                                              : use_by_pairs(first_row, last_row, first_key, last_key);
      uses |= static_cast<unsigned>(use) << (2 * group);
    }
    return uses;
  }

  FC_DEVICE ptx::SharedAddress uses_at(int i) const { return shared + 4 * i; }
  FC_DEVICE ptx::SharedAddress header_at(int i) const { return shared + 4 * (kListChunk + i); }

  // By the first warp: appends the blocks of a chunk that some group sees.
  FC_DEVICE void append(unsigned* list, int chunk, int blocks, int& count, unsigned& groups_seen) const {
    for (int k = 0; k < blocks; k += 32) {
      const unsigned uses = k + lane() < blocks ? ptx::ld_shared_u32(uses_at(k + lane())) : 0;
      const unsigned listed = ptx::vote_ballot(uses != 0), before = (1u << lane()) - 1;
      const int place = count + count_bits(listed & before);
      if (uses != 0)
        ptx::st_global_u32(list + kListHeader + place, static_cast<unsigned>(chunk + k + lane()) << kUseBits | uses);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const bool visible = (uses >> (2 * group) & 3) != 0;
        const unsigned of_group = ptx::vote_ballot(visible);
        if (visible && (of_group & before) == 0 && (groups_seen >> group & 1) == 0)
          ptx::st_shared_u32(header_at(2 * group), static_cast<unsigned>(place));
        if (visible && of_group >> lane() == 1)
          ptx::st_shared_u32(header_at(2 * group + 1), static_cast<unsigned>(place + 1));
        groups_seen |= of_group != 0 ? 1u << group : 0;
      }
      count += count_bits(listed);
      ptx::bar_warp_sync();
    }
  }

  FC_DEVICE void run(unsigned* list) const {
    const int warp = ptx::tid_x() / 32;
    const int last_row = min_int(tile_row + kGroups * kGroupRows, problem.seqlen_q) - 1;
    const BlockRange blocks = band().template blocks<kBlockN>(tile_row, last_row);
    if (warp == 0 && lane() < 2 * kGroups) ptx::st_shared_u32(header_at(lane()), 0);
    int count = 0;
    unsigned groups_seen = 0;
    for (int chunk = blocks.begin; chunk < blocks.end; chunk += kListChunk) {
      const int of_chunk = min_int(kListChunk, blocks.end - chunk);
      for (int i = warp; i < of_chunk; i += kWarps) {
        const unsigned uses = uses_of(chunk + i);
        if (lane() == 0) ptx::st_shared_u32(uses_at(i), uses);
      }
      ptx::bar_sync();
      if (warp == 0) append(list, chunk, of_chunk, count, groups_seen);
      ptx::bar_sync();
    }
    if (warp != 0) return;
    ptx::bar_warp_sync();
    if (lane() == 0) ptx::st_global_u32(list, static_cast<unsigned>(count));
    if (lane() < 2 * kGroups) ptx::st_global_u32(list + 1 + lane(), ptx::ld_shared_u32(header_at(lane())));
  }
};

// Whose list the CTA of a ragged batch makes, and of which tile of rows. list_blocks has the same by itself: with a
// call ptxas makes other code of it, and what was measured of it on an H200 would be stale.
FC_DEVICE Head head_of_list(const ListParams& params, int& row_tile) {
  const ForwardParams& problem = params.problem;
  const int number = ptx::ctaid_x();
  row_tile = number % params.row_tiles;
  int head_q = number / params.row_tiles, batch = 0;
  if (params.expression.lists_per_head == 0) batch = head_q, head_q = 0;
  else batch = head_q / problem.heads_q, head_q -= batch * problem.heads_q;
  return {batch, head_q, head_q / (problem.heads_q / problem.heads_kv)};
}

template <Traits T, int kGroups, int kGroupRows, int kBlockN>
FC_KERNEL(kListThreads, 1)
list_blocks(const __grid_constant__ ListParams params) {
  const ForwardParams& problem = params.problem;
  const int number = ptx::ctaid_x(), row_tile = number % params.row_tiles;
  int head_q = number / params.row_tiles, batch = 0;
  if (params.expression.lists_per_head == 0) batch = head_q, head_q = 0;
  else batch = head_q / problem.heads_q, head_q -= batch * problem.heads_q;
  const BlockLister<T, kGroups, kGroupRows, kBlockN> lister = {
      problem,
      params.expression,
      {batch, head_q, head_q / (problem.heads_q / problem.heads_kv)},
      row_tile * kGroups * kGroupRows};
  lister.run(params.expression.lists + number * params.expression.words_per_list);
}

template <Traits T, int kGroups, int kGroupRows, int kBlockN>
FC_KERNEL(kListThreads, 1)
list_blocks_ragged(const __grid_constant__ RaggedListParams params) {
  const ForwardParams& bounds = params.plain.problem;
  int row_tile;
  const Head head = head_of_list(params.plain, row_tile);
  Sequence sequence;
  if constexpr (T.paged) sequence = paged_sequence_at(params.ragged, params.paged, bounds, head.batch);
  else sequence = sequence_at(params.ragged, bounds, head.batch);
  const int tile_row = row_tile * kGroups * kGroupRows;
  if (sequence.bad || tile_row >= sequence.len_q) return;
  const ForwardParams own = params_of_sequence(bounds, params.ragged, sequence.len_q, sequence.len_kv);
  const BlockLister<T, kGroups, kGroupRows, kBlockN> lister = {own, params.plain.expression, head, tile_row};
  lister.run(params.plain.expression.lists + ptx::ctaid_x() * params.plain.expression.words_per_list);
}

}  // namespace flashcore::tile
