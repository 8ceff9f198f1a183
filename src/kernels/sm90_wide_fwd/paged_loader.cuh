#pragma once
// How rows reach shared memory in sm90_wide_fwd from a paged cache: each of several warps fills slots of its own, its
// lanes a piece in boxes (tile/page_boxes.cuh).

#include "kernels/ptx/barrier.cuh"
#include "kernels/sm90_wide_fwd/loader.cuh"

namespace flashcore::sm90_wide_fwd {

// A tile::produce_tiles loader, by all lanes of each loading warp, all of which go through all tiles. Of a cluster each
// CTA loads the boxes of its share of the keys into both.
template <Traits T, Config C>
struct PagedLoader : Loader<T, C> {
  using Base = Loader<T, C>;
  using Base::context, Base::ring, Base::ring_q, Base::marks;
  using Activity = tile::Activity;
  using PagedTile = typename Context<T, C>::LoadedTile;
  using Piece = tile::TmaTile<C.block_n, 64>;
  static constexpr int kKeysOfRank = C.block_n / C.cluster;

  FC_DEVICE static int lane() { return ptx::tid_x() % 32; }
  FC_DEVICE bool has_slot() const { return ring.stage() % loading_warps(C) == ptx::tid_x() / 32; }

  FC_DEVICE void load_q(const PagedTile& tile, int part) {
    if (ptx::tid_x() == 0) Base::load_q(tile, part);
    else ring_q.advance();
  }
  FC_DEVICE void load_v(const PagedTile& tile, int block) {
    const auto of_tile = context.keys_of(tile);
    const tile::PagedKeys<T, kKeysOfRank> keys = {of_tile.boxes,  of_tile.paged,   of_tile.v_end,     of_tile.sequence,
                                                  of_tile.len_kv, of_tile.head_kv, of_tile.first_seen};
    // Of the lane's first box in each CTA's share. Asked for before the wait for a slot, under which the entries of the
    // table arrive.
    int pages[C.cluster];
#pragma unroll
    for (int rank = 0; rank < C.cluster; ++rank)
      pages[rank] = keys.page_of(keys.first_key(block * C.cluster + rank, lane()));
    load_pieces<T.head_dim, false>(context.params.k, keys, block, pages);
    load_pieces<T.head_dim_v, true>(context.params.v, keys, block, pages);
  }

 private:
  template <int kColumns, bool kValues>
  FC_DEVICE void load_pieces(const ptx::TensorMap& map, const tile::PagedKeys<T, kKeysOfRank>& keys, int block,
                             const int (&pages)[C.cluster]) {
#pragma unroll 1
    for (int piece = 0; piece < column_blocks(kColumns); ++piece, ring.advance()) {
      if (!has_slot()) continue;
      const ptx::SharedAddress slot = context.slots(ring.stage()), full = context.piece_full(ring.stage());
      marks.mark(Activity::kWaitSlot, block);
      ptx::mbarrier_wait(context.piece_empty(ring.stage()), ring.parity() ^ 1);
      // Else the slot may be filled, read and given back before the last lane looks, which then waits for ever.
      ptx::bar_warp_sync();
      marks.mark(kValues ? Activity::kLoadV : Activity::kLoadK, block);
      int missing = 0;
#pragma unroll
      for (int rank = 0; rank < C.cluster; ++rank) {
        const ptx::SharedAddress share = slot + rank * (kKeysOfRank * 128);
        const int of_rank = block * C.cluster + rank;
        if (rank == context.rank()) {
          missing += keys.template load_boxes<Piece, kValues, C.cluster>(share, map, full, of_rank, pages[rank], lane(),
                                                                         32, 64 * piece);
        } else if constexpr (!kValues) {
          missing += keys.template write_missing_boxes<Piece>(share, of_rank, pages[rank], lane(), 32);
        }
      }
      const int bytes = kValues ? piece_bytes(C) : keys.template bytes_that_come<Piece>(piece_bytes(C), missing);
      // After the loads, whose bytes may have come: the phase waits for this arrival all the same.
      if (lane() == 0) ptx::mbarrier_arrive_expect_tx(full, bytes);
    }
  }
};

}  // namespace flashcore::sm90_wide_fwd
