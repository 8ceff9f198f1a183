#pragma once
// How rows reach shared memory in sm90_fp8_fwd: by TMA from dense and packed tensors; V goes to the transposers, or to
// the consumers if it lies transposed.

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/sm90_fp8_fwd/context.cuh"
#include "kernels/tile/producer.cuh"

namespace flashcore::sm90_fp8_fwd {

// A tile::produce_tiles loader.
template <Traits T, Config C>
struct Loader {
  const Context<T, C>& context;

  const ptx::TensorMap* k_odd = nullptr;  // TransposedParams::k_odd

  using LoadedTile = TileOf<T>;

  Ring<C.num_stages> ring_k = {};
  Ring<takes_transposed_v(C) ? C.num_stages : C.v_stages> ring_v = {};
  Ring<C.q_stages> ring_q = {};
  tile::Marks marks = {};

  // Rows of keys, from a column on, in the maps of k and v.
  template <class Keys>
  FC_DEVICE static void load_keys(ptx::SharedAddress to, const ptx::TensorMap& map, ptx::SharedAddress full,
                                  const LoadedTile& tile, int block, int column = 0) {
    if constexpr (T.ragged)
      Keys::load_expected(to, map, full, block * C.block_n + tile.keys_row, tile.head_kv, tile.keys_end, column);
    else Keys::load_expected(to, map, full, block * C.block_n, tile.head_kv, tile.batch, column);
  }

  FC_DEVICE void load_q(const LoadedTile& tile, int part) {
    const int stage = ring_q.stage();
    marks.mark(tile::Activity::kWaitSlot);
    ptx::mbarrier_wait(context.q_empty(stage, part), ring_q.parity() ^ 1);
    marks.mark(tile::Activity::kLoadQ, part);
    TileQ<T, C>::load_expected(context.qo(stage, part), context.params.q, context.q_full(stage, part),
                               context.row_in_map(tile.first_row + part * kRowsPerConsumer, context.problem.seqlen_q),
                               tile.head_q, tile.batch);
    if (part == C.num_consumers - 1) ring_q.advance();
  }
  // The keys of a place in the tile's list. Asked for before the wait for a slot, under which the entry arrives.
  FC_DEVICE int listed_block(const LoadedTile& tile, int place) const {
    return tile::BlockList::block_of(tile.list.entry(context.expression_params, place));
  }
  FC_DEVICE void load_k(const LoadedTile& tile, int block) {
    if constexpr (T.mask_expression) block = listed_block(tile, block);
    marks.mark(tile::Activity::kWaitSlot, block);
    ptx::mbarrier_wait(context.k_empty(ring_k.stage()), ring_k.parity() ^ 1);
    marks.mark(tile::Activity::kLoadK, block);
    if constexpr (takes_transposed_v(C)) {
      load_even_keys_first(tile, block);
    } else {
      load_keys<TileK<T, C>>(context.k(ring_k.stage()), context.params.k, context.k_full(ring_k.stage()), tile, block);
    }
    ring_k.advance();
  }
  // As tile/even_keys_first.cuh wants them.
  FC_DEVICE void load_even_keys_first(const LoadedTile& tile, int block) {
    using Keys = TileK<T, C>;
    const ptx::SharedAddress full = context.k_full(ring_k.stage());
    ptx::mbarrier_arrive_expect_tx(full, Keys::kBytes);
#pragma unroll
    for (int b = 0; b < Keys::kBlocks; ++b) {
      const ptx::SharedAddress even = context.k(ring_k.stage()) + b * Keys::kBlockBytes;
      const int column = Keys::kLineBytes * b, row = block * (C.block_n / 2);
      ptx::tma_load_4d(even, context.params.k, full, column, row, tile.head_kv, tile.batch);
      ptx::tma_load_4d(even + Keys::kBlockBytes / 2, *k_odd, full, column, row, tile.head_kv, tile.batch);
    }
  }
  FC_DEVICE void load_v(const LoadedTile& tile, int block) {
    if constexpr (T.mask_expression) block = listed_block(tile, block);
    if constexpr (takes_transposed_v(C)) load_columns(tile, block);
    else load_rows(tile, block);
  }
  FC_DEVICE void load_columns(const LoadedTile& tile, int block) {
    const int stage = ring_v.stage();
    marks.mark(tile::Activity::kWaitSlot, block);
    ptx::mbarrier_wait(context.vt_empty(stage), ring_v.parity() ^ 1);
    marks.mark(tile::Activity::kLoadV, block);
    TileVt<T, C>::load_expected(context.vt(stage), context.params.v, context.vt_full(stage), 0, tile.head_kv,
                                tile.batch, block * C.block_n);
    ring_v.advance();
  }
  FC_DEVICE void load_rows(const LoadedTile& tile, int block) {
#pragma unroll
    for (int part = 0; part < v_parts(T); ++part) {
      marks.mark(tile::Activity::kWaitSlot, block);
      ptx::mbarrier_wait(context.v_empty(ring_v.stage()), ring_v.parity() ^ 1);
      marks.mark(tile::Activity::kLoadV, block);
      load_keys<TileV<T, C>>(context.v(ring_v.stage()), context.params.v, context.v_full(ring_v.stage()), tile, block,
                             part * width_of(T.head_dim_v));
      ring_v.advance();
    }
  }
};

}  // namespace flashcore::sm90_fp8_fwd
