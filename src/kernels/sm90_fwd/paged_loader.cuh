#pragma once
// How rows reach shared memory in sm90_fwd from a paged cache: the lanes of up to four warps load each block of keys
// (tile/page_boxes.cuh).

#include "kernels/ptx/barrier.cuh"
#include "kernels/sm90_fwd/loader.cuh"

namespace flashcore::sm90_fwd {

// A tile::produce_tiles loader, by all lanes of the first warp; the others follow(). The boxes of a block go to the
// warps in turn, and to the lanes of each: a warp issues one after the other, and needs 75 to 130 clocks for one
// (H200).
template <Traits T, Config C>
struct PagedLoader : Loader<T, C> {
  using Base = Loader<T, C>;
  using Base::context, Base::slots_k, Base::slots_v, Base::ring_q, Base::marks;
  using Slot = typename Base::Slot;
  using PagedTile = TileOf<T>;
  using TileK = tile::TmaTile<C.block_n, T.head_dim>;
  using TileV = tile::TmaTile<C.block_n, T.head_dim_v>;

  static constexpr int kWarps = loading_warps(C, T), kLanes = 32 * kWarps;
  // Of all warps that load.
  FC_DEVICE static int lane() { return kWarps == 1 ? ptx::tid_x() : ptx::tid_x() % 32 * kWarps + ptx::tid_x() / 32; }

  FC_DEVICE void load_q(const PagedTile& tile, int part) {
    if (lane() == 0) Base::load_q(tile, part);
    else if (part == row_groups(C) - 1) ring_q.advance();
  }

  // What the warp loads of a block of so many bytes.
  FC_DEVICE int bytes_of_warp(const tile::PagedKeys<T, C.block_n>& keys, int block_bytes) const {
    if constexpr (kWarps == 1) return block_bytes;
    return keys.bytes_of_warp(block_bytes, ptx::tid_x() / 32, kWarps);
  }
  FC_DEVICE void load_k(const PagedTile& tile, int block) {
    const Slot slot = slots_k.take(tile.blocks.end - 1 - block);
    const auto keys = context.keys_of(tile);
    // Asked for before the wait for a slot, under which the entry of the table arrives.
    const int page = keys.page_of(keys.first_key(block, lane()));
    marks.mark(tile::Activity::kWaitSlot, block);
    ptx::mbarrier_wait(context.k_empty(slot.index), slot.parity ^ 1);
    marks.mark(tile::Activity::kLoadK, block);
    const int missing = keys.template load_boxes<TileK, false>(context.k(slot.index), context.params.k,
                                                               context.k_full(slot.index), block, page, lane(), kLanes);
    const int bytes = keys.template bytes_that_come<TileK>(bytes_of_warp(keys, k_tile_bytes(C, T)), missing);
    // After the loads, whose bytes may have come: the phase waits for this arrival all the same.
    if (ptx::tid_x() % 32 == 0) ptx::mbarrier_arrive_expect_tx(context.k_full(slot.index), bytes);
  }
  // Values follow their keys: the last block's after all keys of the tile, each other one a block later.
  FC_DEVICE Slot value_slot(const PagedTile& tile, int block) {
    if constexpr (C.key_groups > 1) {
      return slots_v.take(tile.blocks.end - 1 - block);
    } else {
      Ring<C.num_stages> ring = slots_k.rings[0];
      ring.count -= block == tile.blocks.begin ? 1 : 2;
      return {ring.stage(), ring.parity()};
    }
  }
  FC_DEVICE void load_v(const PagedTile& tile, int block) {
    const Slot slot = value_slot(tile, block);
    const auto keys = context.keys_of(tile);
    const int page = keys.page_of(keys.first_key(block, lane()));
    marks.mark(tile::Activity::kWaitSlot, block);
    ptx::mbarrier_wait(context.v_empty(slot.index), slot.parity ^ 1);
    // Else the slot may be filled, read and given back before the last lane looks, which then waits for ever.
    ptx::bar_warp_sync();
    marks.mark(tile::Activity::kLoadV, block);
    const int bytes = bytes_of_warp(keys, v_tile_bytes(C, T));
    if (ptx::tid_x() % 32 == 0) ptx::mbarrier_arrive_expect_tx(context.v_full(slot.index), bytes);
    keys.template load_boxes<TileV, true>(context.v(slot.index), context.params.v, context.v_full(slot.index), block,
                                          page, lane(), kLanes);
  }

  // A warp that loads its boxes of the tiles that the first one hands out, in the same order.
  FC_DEVICE void follow() {
    marks.begin_role(tile::Role::kProducer);
    Ring<kTileSlots> ring;
    for (;;) {
      marks.mark(tile::Activity::kWaitTile);
      ptx::mbarrier_wait(context.tile_full(ring.stage()), ring.parity());
      const SlotTile slot = context.tile_in(ring.stage());
      ptx::bar_warp_sync();  // all lanes have read it
      tile::arrive_for_warp(context.tile_empty(ring.stage()));
      ring.advance();
      if (slot.head_q < 0) break;
      PagedTile tile = {};
      tile.head_kv = slot.head_q / (context.params.problem.heads_q / context.params.problem.heads_kv);
      tile.blocks = slot.blocks;
      context.set_keys_of(tile, slot);
      for (int block = tile.blocks.end - 1; block >= tile.blocks.begin - 1; --block) {
        if (block >= tile.blocks.begin) load_k(tile, block);
        if (block < tile.blocks.end - 1) load_v(tile, block + 1);
      }
    }
    marks.end_role();
  }
};

}  // namespace flashcore::sm90_fwd
