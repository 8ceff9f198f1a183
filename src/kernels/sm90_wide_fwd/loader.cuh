#pragma once
// How rows reach shared memory in sm90_wide_fwd: by TMA, K and V in pieces through one ring, for all CTAs of a cluster.

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/sm90_wide_fwd/context.cuh"
#include "kernels/tile/producer.cuh"
#include "kernels/tile/tma_tile.cuh"

namespace flashcore::sm90_wide_fwd {

// A tile::produce_tiles loader. A block's values follow its keys, as the consumers read them: load_v brings both.
template <Traits T, Config C>
struct Loader {
  using Activity = tile::Activity;
  using LoadedTile = typename Context<T, C>::LoadedTile;

  const Context<T, C>& context;
  Ring<C.num_slots> ring = {};
  Ring<1> ring_q = {};
  tile::Marks marks = {};

  FC_DEVICE void load_q(const LoadedTile& tile, int) {
    marks.mark(Activity::kWaitSlot);
    ptx::mbarrier_wait(context.q_empty(), ring_q.parity() ^ 1);
    marks.mark(Activity::kLoadQ);
    tile::TmaTile<kRows, T.head_dim>::load_expected(context.qo(), context.params.q, context.q_full(),
                                                    context.row_in_map(tile.first_row, context.params.problem.seqlen_q),
                                                    context.first_head(tile.head_q), tile.batch);
    ring_q.advance();
  }
  FC_DEVICE void load_k(const LoadedTile&, int) const {}
  FC_DEVICE void load_v(const LoadedTile& tile, int block) {
    if constexpr (Context<T, C>::has_lists())
      block = tile::BlockList::block_of(tile.list.entry(context.expression_params, block));
    load_pieces<T.head_dim>(Activity::kLoadK, context.params.k, tile, block);
    load_pieces<T.head_dim_v>(Activity::kLoadV, context.params.v, tile, block);
  }

 private:
  template <int kColumns>
  FC_DEVICE void load_pieces(Activity activity, const ptx::TensorMap& map, const LoadedTile& tile, int block) {
#pragma unroll 1
    for (int piece = 0; piece < column_blocks(kColumns); ++piece) {
      marks.mark(Activity::kWaitSlot, block);
      ptx::mbarrier_wait(context.piece_empty(ring.stage()), ring.parity() ^ 1);
      marks.mark(activity, block);
      load_piece(map, context.piece_full(ring.stage()), 64 * piece, tile, block);
      ring.advance();
    }
  }
  // Of a cluster each CTA loads its share of the keys into both.
  FC_DEVICE void load_piece(const ptx::TensorMap& map, ptx::SharedAddress full, int column, const LoadedTile& tile,
                            int block) const {
    const ptx::SharedAddress slot = context.slots(ring.stage());
    const int of_rank = context.rank() * (C.block_n / C.cluster);
    int row = block * C.block_n + of_rank, batch = tile.batch;
    // A block has a key of the sequence, a share of it need not.
    if constexpr (T.ragged)
      row = context.row_in_map(row + tile.keys_row, context.params.problem.seqlen_kv), batch = tile.keys_end;
    ptx::mbarrier_arrive_expect_tx(full, piece_bytes(C));
    if constexpr (C.cluster == 1) ptx::tma_load_4d(slot, map, full, column, row, tile.head_kv, batch);
    else
      ptx::tma_load_4d_multicast(slot + of_rank * 128, map, full, column, row, tile.head_kv, batch,
                                 (1 << C.cluster) - 1);
  }
};

}  // namespace flashcore::sm90_wide_fwd
