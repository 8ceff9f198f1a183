#pragma once
// The producer of sm90_fp8_fwd: one thread that hands out tiles and keeps Q, K and V in flight.

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm90_fp8_fwd/context.cuh"

namespace flashcore::sm90_fp8_fwd {

template <Traits T, Config C>
struct Producer {
  const Context<T, C>& context;

  FC_DEVICE void run() {
    Ring<C.num_stages> ring_k;
    Ring<C.v_stages> ring_v;
    Ring<C.q_stages> ring_q;
    Ring<kTileSlots> ring_tile;
    const int count = context.params.order.tile_count;
    int number = ptx::ctaid_x();
    for (;;) {
      ptx::mbarrier_wait(context.tile_empty(ring_tile.stage()), ring_tile.parity() ^ 1);
      ptx::st_shared_u32(context.tile_number(ring_tile.stage()), static_cast<unsigned>(number < count ? number : -1));
      ptx::mbarrier_arrive(context.tile_full(ring_tile.stage()));
      ring_tile.advance();
      if (number >= count) break;
      const Tile tile = context.tile_at(number);

      const auto load_k = [&](int block) {
        ptx::mbarrier_wait(context.k_empty(ring_k.stage()), ring_k.parity() ^ 1);
        TileK<T, C>::load_expected(context.k(ring_k.stage()), context.params.k, context.k_full(ring_k.stage()),
                                   block * C.block_n, tile.head_kv, tile.batch);
        ring_k.advance();
      };
      const auto load_v = [&](int block) {
        ptx::mbarrier_wait(context.v_empty(ring_v.stage()), ring_v.parity() ^ 1);
        TileV<T, C>::load_expected(context.v(ring_v.stage()), context.params.v, context.v_full(ring_v.stage()),
                                   block * C.block_n, tile.head_kv, tile.batch);
        ring_v.advance();
      };
#pragma unroll
      for (int c = 0; c < C.num_consumers; ++c) {
        ptx::mbarrier_wait(context.q_empty(ring_q.stage(), c), ring_q.parity() ^ 1);
        TileQ<T, C>::load_expected(context.qo(ring_q.stage(), c), context.params.q, context.q_full(ring_q.stage(), c),
                                   tile.first_row + c * kRowsPerConsumer, tile.head_q, tile.batch);
        if (c == 0 && tile.blocks.count() > 0) load_k(tile.blocks.end - 1);
      }
      ring_q.advance();
      for (int block = tile.blocks.end - 2; block >= tile.blocks.begin; --block) {
        load_k(block);
        load_v(block + 1);
      }
      // After the last K, where its latency hides; at the start of a tile it would not.
      number = tile::next_tile<scheduler_of(C)>(number, count, ptx::nctaid_x(), context.params.tile_counter);
      if (tile.blocks.count() > 0) load_v(tile.blocks.begin);
    }
  }
};

}  // namespace flashcore::sm90_fp8_fwd
