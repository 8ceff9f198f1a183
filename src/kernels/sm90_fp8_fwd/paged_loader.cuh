#pragma once
// How rows reach shared memory in sm90_fp8_fwd from a paged cache: the lanes of a warp load each block of keys
// (tile/page_boxes.cuh). The other warps of the producer transpose.

#include "kernels/ptx/barrier.cuh"
#include "kernels/sm90_fp8_fwd/loader.cuh"

namespace flashcore::sm90_fp8_fwd {

// A tile::produce_tiles loader, by all lanes of the first warp.
template <Traits T, Config C>
struct PagedLoader : Loader<T, C> {
  using Base = Loader<T, C>;
  using Base::context, Base::ring_k, Base::ring_v, Base::ring_q, Base::marks;
  using PagedTile = TileOf<T>;

  FC_DEVICE static int lane() { return ptx::tid_x(); }

  FC_DEVICE void load_q(const PagedTile& tile, int part) {
    if (lane() == 0) Base::load_q(tile, part);
    else if (part == C.num_consumers - 1) ring_q.advance();
  }
  FC_DEVICE void load_k(const PagedTile& tile, int block) {
    using Keys = TileK<T, C>;
    const auto keys = context.keys_of(tile);
    const ptx::SharedAddress full = context.k_full(ring_k.stage());
    // Asked for before the wait for a slot, under which the entry of the table arrives.
    const int page = keys.page_of(keys.first_key(block, lane()));
    marks.mark(tile::Activity::kWaitSlot, block);
    ptx::mbarrier_wait(context.k_empty(ring_k.stage()), ring_k.parity() ^ 1);
    marks.mark(tile::Activity::kLoadK, block);
    const int missing = keys.template load_boxes<Keys, false>(context.k(ring_k.stage()), context.params.k, full, block,
                                                              page, lane(), 32);
    const int bytes = keys.template bytes_that_come<Keys>(k_tile_bytes(C, T), missing);
    // After the loads, whose bytes may have come: the phase waits for this arrival all the same.
    if (lane() == 0) ptx::mbarrier_arrive_expect_tx(full, bytes);
    ring_k.advance();
  }
  FC_DEVICE void load_v(const PagedTile& tile, int block) {
    using Values = TileV<T, C>;
    const auto keys = context.keys_of(tile);
    const int page = keys.page_of(keys.first_key(block, lane()));
#pragma unroll 1
    for (int column = 0; column < v_parts(T) * width_of(T.head_dim_v); column += width_of(T.head_dim_v)) {
      const ptx::SharedAddress full = context.v_full(ring_v.stage());
      marks.mark(tile::Activity::kWaitSlot, block);
      ptx::mbarrier_wait(context.v_empty(ring_v.stage()), ring_v.parity() ^ 1);
      // Else the slot may be filled, read and given back before the last lane looks, which then waits for ever.
      ptx::bar_warp_sync();
      marks.mark(tile::Activity::kLoadV, block);
      if (lane() == 0) ptx::mbarrier_arrive_expect_tx(full, v_part_bytes(C, T));
      keys.template load_boxes<Values, true>(context.v(ring_v.stage()), context.params.v, full, block, page, lane(), 32,
                                             column);
      ring_v.advance();
    }
  }
};

}  // namespace flashcore::sm90_fp8_fwd
