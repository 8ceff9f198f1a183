#pragma once
// How rows reach shared memory in sm90_fwd: by TMA from dense tensors, K and V for all CTAs of a cluster.

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/sm90_fwd/context.cuh"
#include "kernels/tile/producer.cuh"
#include "kernels/tile/tma_tile.cuh"

namespace flashcore::sm90_fwd {

// A tile::produce_tiles loader.
template <Traits T, Config C>
struct Loader {
  const Context<T, C>& context;

  using LoadedTile = TileOf<T>;
  using TileQ = tile::TmaTile<kRowsPerConsumer, T.head_dim>;

  struct Slot {
    int index, parity;
  };
  // The slots of K or of V: a ring for each key group, to which a tile's blocks go in turn.
  struct Slots {
    Ring<group_stages(C)> rings[C.key_groups];

    FC_DEVICE Slot take(int item) {
      const int group = item % C.key_groups;
      Ring<group_stages(C)> ring;
#pragma unroll
      for (int g = 0; g < C.key_groups; ++g) {
        const bool own = C.key_groups == 1 || g == group;
        ring.count = own ? rings[g].count : ring.count;
        rings[g].count += own;
      }
      return {group * group_stages(C) + ring.stage(), ring.parity()};
    }
  };
  Slots slots_k = {}, slots_v = {};
  Ring<C.q_stages> ring_q = {};
  tile::Marks marks = {};

  // A block of K or V: of a cluster's, each CTA loads its rows into all.
  template <int kDim>
  FC_DEVICE void load_keys(ptx::SharedAddress destination, const ptx::TensorMap& map, ptx::SharedAddress barrier,
                           int block, const LoadedTile& tile) const {
    using Keys = tile::TmaTile<C.block_n, kDim>;
    int row = block * C.block_n, batch = tile.batch;
    if constexpr (T.ragged) {
      row += tile.keys_row, batch = tile.keys_end;
      // A whole block has a key of the sequence, a CTA's share of it need not.
      if constexpr (C.cluster > 1) {
        const int of_rank = context.rank() * (C.block_n / C.cluster);
        row = context.row_in_map(row + of_rank, context.params.problem.seqlen_kv) - of_rank;
      }
    }
    if constexpr (C.cluster == 1) Keys::load_expected(destination, map, barrier, row, tile.head_kv, batch);
    else Keys::template load_multicast<C.cluster>(destination, map, barrier, row, tile.head_kv, batch, context.rank());
  }

  FC_DEVICE void load_q(const LoadedTile& tile, int part) {
    const int stage = ring_q.stage();
    marks.mark(tile::Activity::kWaitSlot);
    ptx::mbarrier_wait(context.q_empty(stage, part), ring_q.parity() ^ 1);
    marks.mark(tile::Activity::kLoadQ, part);
    TileQ::load_expected(context.qo(stage, part), context.params.q, context.q_full(stage, part),
                         context.row_in_map(tile.first_row + part * kRowsPerConsumer, context.params.problem.seqlen_q),
                         tile.head_q, tile.batch);
    if (part == row_groups(C) - 1) ring_q.advance();
  }
  // The keys of a place in the tile's list. Asked for before the wait for a slot, under which the entry arrives.
  FC_DEVICE int listed_block(const LoadedTile& tile, int place) const {
    return tile::BlockList::block_of(tile.list.entry(context.expression_params, place));
  }
  FC_DEVICE void load_k(const LoadedTile& tile, int block) {
    const Slot slot = slots_k.take(tile.blocks.end - 1 - block);
    if constexpr (T.mask_expression) block = listed_block(tile, block);
    marks.mark(tile::Activity::kWaitSlot, block);
    ptx::mbarrier_wait(context.k_empty(slot.index), slot.parity ^ 1);
    marks.mark(tile::Activity::kLoadK, block);
    load_keys<T.head_dim>(context.k(slot.index), context.params.k, context.k_full(slot.index), block, tile);
  }
  FC_DEVICE void load_v(const LoadedTile& tile, int block) {
    const Slot slot = slots_v.take(tile.blocks.end - 1 - block);
    if constexpr (T.mask_expression) block = listed_block(tile, block);
    marks.mark(tile::Activity::kWaitSlot, block);
    ptx::mbarrier_wait(context.v_empty(slot.index), slot.parity ^ 1);
    marks.mark(tile::Activity::kLoadV, block);
    load_keys<T.head_dim_v>(context.v(slot.index), context.params.v, context.v_full(slot.index), block, tile);
  }
};

}  // namespace flashcore::sm90_fwd
