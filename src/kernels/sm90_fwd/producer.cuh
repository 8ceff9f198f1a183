#pragma once
// The producer of sm90_fwd: one thread that hands out tiles and keeps Q, K and V in flight.

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm90_fwd/context.cuh"
#include "kernels/tile/tma_tile.cuh"

namespace flashcore::sm90_fwd {

template <Traits T, Config C>
struct Producer {
  const Context<T, C>& context;

  using TileQ = tile::TmaTile<kRowsPerConsumer, T.head_dim>;

  // A block of K or V: of a cluster's, each CTA loads its rows into all.
  template <int kDim>
  FC_DEVICE void load_keys(ptx::SharedAddress destination, const ptx::TensorMap& map, ptx::SharedAddress barrier,
                           int block, const Tile& tile) const {
    using Keys = tile::TmaTile<C.block_n, kDim>;
    const int row = block * C.block_n;
    if constexpr (C.cluster == 1) Keys::load_expected(destination, map, barrier, row, tile.head_kv, tile.batch);
    else
      Keys::template load_multicast<C.cluster>(destination, map, barrier, row, tile.head_kv, tile.batch,
                                               context.rank());
  }

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

  FC_DEVICE void run() {
    Slots slots_k, slots_v;
    Ring<C.q_stages> ring_q;
    Ring<kTileSlots> ring_tile;
    const int count = context.params.order.tile_count;
    int number = ptx::ctaid_x() / C.cluster;
    for (;;) {
      ptx::mbarrier_wait(context.tile_empty(ring_tile.stage()), ring_tile.parity() ^ 1);
      ptx::st_shared_u32(context.tile_number(ring_tile.stage()), static_cast<unsigned>(number < count ? number : -1));
      ptx::mbarrier_arrive(context.tile_full(ring_tile.stage()));
      ring_tile.advance();
      if (number >= count) break;
      const Tile tile = context.tile_at(number);

      const auto load_k = [&](int block) {
        const Slot slot = slots_k.take(tile.blocks.end - 1 - block);
        ptx::mbarrier_wait(context.k_empty(slot.index), slot.parity ^ 1);
        load_keys<T.head_dim>(context.k(slot.index), context.params.k, context.k_full(slot.index), block, tile);
      };
      const auto load_v = [&](int block) {
        const Slot slot = slots_v.take(tile.blocks.end - 1 - block);
        ptx::mbarrier_wait(context.v_empty(slot.index), slot.parity ^ 1);
        load_keys<T.head_dim_v>(context.v(slot.index), context.params.v, context.v_full(slot.index), block, tile);
      };
#pragma unroll
      for (int c = 0; c < row_groups(C); ++c) {
        ptx::mbarrier_wait(context.q_empty(ring_q.stage(), c), ring_q.parity() ^ 1);
        TileQ::load_expected(context.qo(ring_q.stage(), c), context.params.q, context.q_full(ring_q.stage(), c),
                             tile.first_row + c * kRowsPerConsumer, tile.head_q, tile.batch);
        if (c == 0 && tile.blocks.count() > 0) load_k(tile.blocks.end - 1);
      }
      ring_q.advance();
      for (int block = tile.blocks.end - 2; block >= tile.blocks.begin; --block) {
        load_k(block);
        load_v(block + 1);
      }
      // After the last K, where its latency hides; at the start of a tile it would not.
      number =
          tile::next_tile<scheduler_of(C)>(number, count, ptx::nctaid_x() / C.cluster, context.params.tile_counter);
      if (tile.blocks.count() > 0) load_v(tile.blocks.begin);
    }
  }
};

}  // namespace flashcore::sm90_fwd
