#pragma once
// The producer of kernels whose CTAs go round tiles: one thread that hands out their numbers and keeps loads in flight,
// or one warp, or several that each go through all tiles.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/tile/pipeline.cuh"
#include "kernels/tile/scheduler.cuh"
#include "kernels/tile/timeline.cuh"

namespace flashcore::tile {

template <bool kRagged, int kTileSlots, class Context>
FC_DEVICE auto tile_to_load(const Context& context, int number, Ring<kTileSlots>& ring) {
  if constexpr (kRagged) return context.take_ragged_tile(number, ring);
  else return context.tile_at(number);
}

// Calls for the loads of each tile in the order in which consumers need them. The kernel's context has the slots that
// the numbers of tiles go through (tile_full, tile_empty, tile_number) and tile_at(number).
// A Loader is the policy of how rows reach shared memory. Each call waits until its slot is free, and starts the copy:
//   load_q(tile, part)       query rows, in kQueryParts parts
//   load_k(tile, block)      a block of keys: from the tile's last to its first
//   load_v(tile, block)      their values
// and has `marks`, of type Marks.
// Of a ragged batch whole tiles go through the slots: the context has ragged_tiles(), take_ragged_tile(number, ring),
// which also puts it there, and put_end(ring) instead. Of a ragged batch all lanes of a warp may call (kByWarp): then
// loader and context say what one of them does for all.
template <Scheduler kScheduler, int kQueryParts, int kTileSlots, bool kRagged = false, bool kByWarp = false,
          class Context, class Params, class Loader>
FC_DEVICE void produce_tiles(const Context& context, const Params& params, Loader loader, int number, int takers) {
  loader.marks.begin_role(Role::kProducer);
  Ring<kTileSlots> ring_tile;
  int count = kRagged ? 0 : params.order.tile_count;
  for (;;) {
    if constexpr (kRagged) {
      if (number >= context.ragged_tiles().count()) {
        context.put_end(ring_tile);
        break;
      }
    } else {
      loader.marks.mark(Activity::kWaitTile);
      ptx::mbarrier_wait(context.tile_empty(ring_tile.stage()), ring_tile.parity() ^ 1);
      loader.marks.mark(Activity::kSetUp);
      ptx::st_shared_u32(context.tile_number(ring_tile.stage()), static_cast<unsigned>(number < count ? number : -1));
      ptx::mbarrier_arrive(context.tile_full(ring_tile.stage()));
      ring_tile.advance();
      if (number >= count) break;
    }
    const auto tile = tile_to_load<kRagged>(context, number, ring_tile);
#pragma unroll
    for (int part = 0; part < kQueryParts; ++part) {
      loader.load_q(tile, part);
      if (part == 0 && tile.blocks.count() > 0) loader.load_k(tile, tile.blocks.end - 1);
    }
    for (int block = tile.blocks.end - 2; block >= tile.blocks.begin; --block) {
      loader.load_k(tile, block);
      loader.load_v(tile, block + 1);
    }
    loader.marks.mark(Activity::kSetUp);
    // Read again rather than kept, which spilled.
    if constexpr (kRagged) count = context.ragged_tiles().count(), takers = context.takers();
    // After the last K, where its latency hides; at the start of a tile it would not.
    if constexpr (kByWarp && kScheduler == Scheduler::kCounter) {
      int next = 0;
      if (ptx::tid_x() % 32 == 0) next = next_tile<kScheduler>(number, count, takers, params.tile_counter);
      number = ptx::shfl_idx(next, 0);
    } else {
      number = next_tile<kScheduler>(number, count, takers, params.tile_counter);
    }
    if (tile.blocks.count() > 0) loader.load_v(tile, tile.blocks.begin);
  }
  loader.marks.end_role();
}

// The next tile's number, which the producer has put into a slot, or less than 0 after the last. All lanes of a warp.
template <class Context, int kTileSlots>
FC_DEVICE int take_tile_number(const Context& context, Ring<kTileSlots>& ring) {
  ptx::mbarrier_wait(context.tile_full(ring.stage()), ring.parity());
  const int number = static_cast<int>(ptx::ld_shared_u32(context.tile_number(ring.stage())));
  ptx::bar_warp_sync();  // all lanes have read it
  arrive_for_warp(context.tile_empty(ring.stage()));
  ring.advance();
  return number;
}

}  // namespace flashcore::tile
