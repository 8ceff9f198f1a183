#pragma once
// The thread of sm90_decode_fwd that keeps Q, K and V in flight, over the tiles of its CTA without a pause.

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/sm90_decode_fwd/context.cuh"
#include "kernels/tile/warpgroup.cuh"

namespace flashcore::sm90_decode_fwd {

template <Traits T, Config C>
struct Producer {
  const Context<T, C>& context;

  FC_DEVICE void run() {
    Ring<kQStages> ring_q;
    Ring<C.num_stages> ring;
    const int end = context.first_block(ptx::ctaid_x() + 1);
    for (int block = context.first_block(ptx::ctaid_x()); block < end;) {
      const Segment segment = context.segment_at(block, end);
      const auto place = context.place_of(segment.tile);
      // An empty barrier starts as if its previous phase had ended: writers wait for the opposite parity.
      ptx::mbarrier_wait(context.q_empty(ring_q.stage), ring_q.parity ^ 1);
      ptx::mbarrier_arrive_expect_tx(context.q_full(ring_q.stage), q_tile_bytes(T));
      tile::load_rows<column_blocks(T.head_dim)>(context.q(ring_q.stage), context.params.q,
                                                 context.q_full(ring_q.stage), kTileRows, 0, place.first_head,
                                                 place.batch);
      ring_q.advance();
      for (int i = 0; i < segment.count; ++i) {
        const int row = (segment.first + i) * C.block_n;
        ptx::mbarrier_wait(context.k_empty(ring.stage), ring.parity ^ 1);
        ptx::mbarrier_arrive_expect_tx(context.k_full(ring.stage), k_tile_bytes(C, T));
        tile::load_rows<column_blocks(T.head_dim)>(context.k(ring.stage), context.params.k, context.k_full(ring.stage),
                                                   C.block_n, row, place.head_kv, place.batch);
        ptx::mbarrier_wait(context.v_empty(ring.stage), ring.parity ^ 1);
        ptx::mbarrier_arrive_expect_tx(context.v_full(ring.stage), v_tile_bytes(C, T));
        tile::load_rows<column_blocks(T.head_dim_v)>(context.v(ring.stage), context.params.v,
                                                     context.v_full(ring.stage), C.block_n, row, place.head_kv,
                                                     place.batch);
        ring.advance();
      }
      block += segment.count;
    }
  }
};

}  // namespace flashcore::sm90_decode_fwd
