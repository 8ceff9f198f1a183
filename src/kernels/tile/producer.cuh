#pragma once
// The producer of kernels whose CTAs go round tiles: one thread that hands out their numbers and keeps loads in flight.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/tile/pipeline.cuh"
#include "kernels/tile/scheduler.cuh"

namespace flashcore::tile {

// Calls for the loads of each tile in the order in which consumers need them. The kernel's context has the slots that
// the numbers of tiles go through (tile_full, tile_empty, tile_number) and tile_at(number).
// A Loader is the policy of how rows reach shared memory. Each call waits until its slot is free, and starts the copy:
//   load_q(tile, part)       query rows, in kQueryParts parts
//   load_k(tile, block)      a block of keys: from the tile's last to its first
//   load_v(tile, block)      their values
//
// The loads of one tile. `next` is called after the last K: a latency hides there, and at the start of a tile it would
// not.
template <int kQueryParts, class Tile, class Loader, class Next>
FC_DEVICE void load_tile(const Tile& tile, Loader& loader, Next next) {
#pragma unroll
  for (int part = 0; part < kQueryParts; ++part) {
    loader.load_q(tile, part);
    if (part == 0 && tile.blocks.count() > 0) loader.load_k(tile, tile.blocks.end - 1);
  }
  for (int block = tile.blocks.end - 2; block >= tile.blocks.begin; --block) {
    loader.load_k(tile, block);
    loader.load_v(tile, block + 1);
  }
  next();
  if (tile.blocks.count() > 0) loader.load_v(tile, tile.blocks.begin);
}

// Those of all tiles that the thread gets, whose numbers it puts into the slots.
template <Scheduler kScheduler, int kQueryParts, int kTileSlots, class Context, class Params, class Loader>
FC_DEVICE void produce_tiles(const Context& context, const Params& params, Loader loader, int number, int takers) {
  Ring<kTileSlots> ring_tile;
  const int count = params.order.tile_count;
  for (;;) {
    ptx::mbarrier_wait(context.tile_empty(ring_tile.stage()), ring_tile.parity() ^ 1);
    ptx::st_shared_u32(context.tile_number(ring_tile.stage()), static_cast<unsigned>(number < count ? number : -1));
    ptx::mbarrier_arrive(context.tile_full(ring_tile.stage()));
    ring_tile.advance();
    if (number >= count) break;
    load_tile<kQueryParts>(context.tile_at(number), loader, [&] {
      number = next_tile<kScheduler>(number, count, takers, params.tile_counter);
    });
  }
}

// The same of a ragged batch, whose tiles go through the slots as a whole: of the context ragged_tiles(),
// take_ragged_tile(number, ring) and end_ragged_tiles(ring).
template <Scheduler kScheduler, int kQueryParts, int kTileSlots, class Context, class Params, class Loader>
FC_DEVICE void produce_ragged_tiles(const Context& context, const Params& params, Loader loader, int number,
                                    int takers) {
  Ring<kTileSlots> ring_tile;
  const int count = context.ragged_tiles().count();
  while (number < count) {
    load_tile<kQueryParts>(context.take_ragged_tile(number, ring_tile), loader, [&] {
      number = next_tile<kScheduler>(number, count, takers, params.tile_counter);
    });
  }
  context.end_ragged_tiles(ring_tile);
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
