#pragma once
// Which rows and which keys a CTA of sm80_wide_fwd has. Rows are the queries of all heads of one sequence and key head:
// row r is position r / group of head r % group, so that a query row of 16 heads fills a warp's tile.

#include "kernels/ptx/special_registers.cuh"
#include "kernels/sm80_wide_fwd/config.h"
#include "kernels/sm80_wide_fwd/params.h"
#include "kernels/tile/extent.cuh"
#include "kernels/tile/mask.cuh"
#include "kernels/tile/sequence.cuh"

namespace flashcore::sm80_wide_fwd {

using tile::Extent;

struct Work {
  int tile;  // its number among those of the grid
  int batch, head_kv, first_row;
  tile::Sequence sequence;
  Extent extent;
  int parts, part;           // the CTAs that share the tile, and which of them this is
  tile::BlockRange blocks;   // of this CTA
  int keys_begin, keys_end;  // that some row of the tile sees
};

// False where this CTA has nothing to do.
template <Traits T, Config C>
FC_DEVICE bool find_work(const Params& params, const RaggedParams* ragged, const PagedParams* paged, Work& work) {
  const ForwardParams& problem = params.problem;
  const int number = ptx::ctaid_x();
  work.tile = C.num_splits == 1 ? number : number / params.num_splits;
  const int split = C.num_splits == 1 ? 0 : number - work.tile * params.num_splits;
  const int head_index = work.tile / params.row_tiles;
  // Later rows see more keys under a causal mask: the longest tiles first.
  const int row_tile = params.row_tiles - 1 - (work.tile - head_index * params.row_tiles);
  work.batch = head_index / problem.heads_kv;
  work.head_kv = head_index - work.batch * problem.heads_kv;
  work.first_row = row_tile * tile_rows(C);
  if constexpr (T.paged) work.sequence = tile::paged_sequence_at(*ragged, *paged, problem, work.batch);
  else if constexpr (T.ragged) work.sequence = tile::sequence_at(*ragged, problem, work.batch);
  else work.sequence = {0, problem.seqlen_q, 0, problem.seqlen_kv, false, 0};
  const tile::Sequence& s = work.sequence;
  if constexpr (T.ragged) {
    if (s.bad) {
      if (row_tile == 0 && split == 0 && s.len_q > 0) {
        for (int i = 0; i < params.group_size; ++i) {
          const int head = work.head_kv * params.group_size + i;
          tile::write_bad_rows<T>(tile::params_of<T>(problem, *ragged, s, head), head, 0, s.len_q, s.len_q,
                                  ptx::tid_x(), threads_per_block(C));
        }
      }
      return false;
    }
  }
  if (work.first_row >= s.len_q * params.group_size) return false;
  work.extent = {problem.heads_q, s.len_q, s.len_kv, problem.right_offset + s.diagonal,
                 problem.left_offset + s.diagonal};
  const tile::Mask<T, Extent> mask{work.extent};
  const int first = params.by_group_size.quotient(work.first_row);
  const int last = tile::min_int(params.by_group_size.quotient(work.first_row + tile_rows(C) - 1), s.len_q - 1);
  work.blocks = mask.template blocks<C.block_n>(first, last);
  work.keys_begin = mask.begin_of(first), work.keys_end = mask.end_of(last);
  work.parts = 1, work.part = 0;
  if constexpr (C.num_splits != 1) {
    const int count = work.blocks.count(), begin = work.blocks.begin;
    work.parts = tile::clamped(count, 1, params.num_splits), work.part = split;
    if (split >= work.parts) return false;
    // 64 bits: blocks times CTAs may be more than 2^31.
    const auto end_of = [&](int part) {
      return begin + static_cast<int>(static_cast<long long>(count) * part / work.parts);
    };
    work.blocks = {end_of(split), end_of(split + 1)};
  }
  return true;
}

}  // namespace flashcore::sm80_wide_fwd
