#pragma once
// How rows reach shared memory in sm90_fwd from a paged cache: the lanes of up to four warps load each block of keys in
// boxes of TMA, each of which lies in one page. A box may have fewer than eight rows and begin anywhere in the
// swizzle's pattern, which goes by the address in shared memory.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/sm90_fwd/loader.cuh"
#include "kernels/tile/sequence.cuh"

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

  // Coordinates of pages that no map has, so that boxes of them become zeros.
  static constexpr int kMissing = -1;  // the pool has no such page
  static constexpr int kNoKeys = -2;   // that count

  static constexpr int kWarps = loading_warps(C, T), kLanes = 32 * kWarps;
  // Of all warps that load.
  FC_DEVICE static int lane() { return kWarps == 1 ? ptx::tid_x() : ptx::tid_x() % 32 * kWarps + ptx::tid_x() / 32; }
  FC_DEVICE const PageBoxes& boxes() const { return context.pool.plain.boxes; }
  FC_DEVICE int first_key(int block, int box) const { return block * C.block_n + box * boxes().rows; }

  // The page of a box that begins with that key. The table is not read past the sequence's end, where it may end, nor
  // before the window of all rows, where others may have the pages by now.
  FC_DEVICE int page_of(const PagedTile& tile, int key) const {
    if (key >= tile.len_kv) return kNoKeys;
    if constexpr (T.bounded_left)
      if (key + boxes().rows <= tile.first_seen) return kNoKeys;
    return tile::page_at(context.pool.paged, tile.sequence, boxes().by_page_size.quotient(key));
  }

  FC_DEVICE void load_q(const PagedTile& tile, int part) {
    if (lane() == 0) Base::load_q(tile, part);
    else if (part == row_groups(C) - 1) ring_q.advance();
  }

  // NaN to the rows of a box.
  FC_DEVICE void write_missing_keys(ptx::SharedAddress first_row) const {
    const float nan = ptx::float_of_bits(0x7fff7fffu);  // two of fp16, or of bf16
    for (int b = 0; b < tile::column_blocks(T.head_dim); ++b)
      for (int at = 0; at < boxes().rows * 128; at += 16)
        ptx::st_shared_v4(first_row + b * C.block_n * 128 + at, nan, nan, nan, nan);
    ptx::fence_proxy_async();
  }

  // Starts the loads of the lane's boxes; `page` is that of the first. Keys of pages that the pool does not have are
  // written, and their boxes counted. Of values the rows past the sequence's end become zeros, whatever the page holds
  // there: 0 · NaN is NaN.
  template <int kDim, bool kValues>
  FC_DEVICE int load_boxes(ptx::SharedAddress destination, const ptx::TensorMap& map, ptx::SharedAddress barrier,
                           const PagedTile& tile, int block, int page) const {
    using Keys = tile::TmaTile<C.block_n, kDim>;
    int missing = 0;
    for (int box = lane(); box < boxes().count; box += kLanes) {
      const int key = first_key(block, box), valid = tile.len_kv - key;
      const ptx::SharedAddress first_row = destination + box * boxes().rows * 128;
      if (box != lane()) page = page_of(tile, key);
      if (!kValues && page == kMissing) {
        write_missing_keys(first_row);
        ++missing;
        continue;
      }
      int row = key - boxes().by_page_size.quotient(key) * context.pool.paged.page_size, last = page;
      const ptx::TensorMap* from = &map;
      if (kValues && page >= 0 && valid < boxes().rows) {
        from = &context.pool.plain.v_end;
        last = page * boxes().steps_per_page + (row + valid) * boxes().steps_per_key;
        row = boxes().rows - valid;
      }
#pragma unroll
      for (int b = 0; b < Keys::kBlocks; ++b)
        ptx::tma_load_4d(first_row + b * Keys::kBlockBytes, *from, barrier, 64 * b, row, tile.head_kv, last);
    }
    return missing;
  }

  // What the warp loads of a block of so many bytes.
  FC_DEVICE int bytes_of_warp(int block_bytes) const {
    if constexpr (kWarps == 1) return block_bytes;
    const int own = (boxes().count - static_cast<int>(ptx::tid_x()) / 32 + kWarps - 1) / kWarps;
    return own * boxes().rows * (block_bytes / C.block_n);
  }
  FC_DEVICE void load_k(const PagedTile& tile, int block) {
    const Slot slot = slots_k.take(tile.blocks.end - 1 - block);
    // Asked for before the wait for a slot, under which the entry of the table arrives.
    const int page = page_of(tile, first_key(block, lane()));
    marks.mark(tile::Activity::kWaitSlot, block);
    ptx::mbarrier_wait(context.k_empty(slot.index), slot.parity ^ 1);
    marks.mark(tile::Activity::kLoadK, block);
    const int missing = load_boxes<T.head_dim, false>(context.k(slot.index), context.params.k,
                                                      context.k_full(slot.index), tile, block, page);
    int bytes = bytes_of_warp(k_tile_bytes(C, T));
    if (ptx::vote_any(missing != 0)) {
      float all = static_cast<float>(missing);
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) all += ptx::shfl_bfly(all, mask);
      bytes -= static_cast<int>(all) * boxes().rows * 128 * tile::column_blocks(T.head_dim);
      ptx::bar_warp_sync();  // all lanes have written theirs
    }
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
    const int page = page_of(tile, first_key(block, lane()));
    marks.mark(tile::Activity::kWaitSlot, block);
    ptx::mbarrier_wait(context.v_empty(slot.index), slot.parity ^ 1);
    marks.mark(tile::Activity::kLoadV, block);
    const int bytes = bytes_of_warp(v_tile_bytes(C, T));
    if (ptx::tid_x() % 32 == 0) ptx::mbarrier_arrive_expect_tx(context.v_full(slot.index), bytes);
    load_boxes<T.head_dim_v, true>(context.v(slot.index), context.params.v, context.v_full(slot.index), tile, block,
                                   page);
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
