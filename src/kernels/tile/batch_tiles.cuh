#pragma once
// The tiles of kernels whose CTAs go round them: where each lies and which keys it needs, of dense tensors, ragged
// batches and paged caches. A consumer finds a dense tile again from its number. One of a ragged batch takes a search,
// so the producer finds it, and passes it on through a slot of shared memory.

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/tile/expressed.cuh"
#include "kernels/tile/mask.cuh"
#include "kernels/tile/page_boxes.cuh"
#include "kernels/tile/pipeline.cuh"
#include "kernels/tile/producer.cuh"
#include "kernels/tile/ragged_tiles.cuh"
#include "kernels/tile/scheduler.cuh"

namespace flashcore::tile {

struct Tile : TileIndex {
  BlockRange blocks;  // of kBlockN keys that some row of the tile sees, or of its neighbours in the cluster
};

// The same of a ragged batch, for tensor maps as ragged_map_of of gpu_family.h makes them. There a row r of a sequence
// is row r + (bound - its length), and the batch is the row of the packed tensor where it ends: rows past its end are
// rows past the bound, outside of the map.
struct MappedTile : Tile {
  int keys_row, keys_end;
};

// The same of a paged batch, whose keys are counted from the sequence's first one. Of a window, `first_seen` is the
// first key that a row of the tile sees.
template <bool kWindow>
struct PagedTile : Tile {
  int sequence, len_kv;
};
template <>
struct PagedTile<true> : Tile {
  int sequence, len_kv, first_seen;
};

// Tiles whose blocks are places in a list.
struct ListedTile : Tile {
  BlockList list;
};
struct ListedMappedTile : MappedTile {
  BlockList list;
};

template <bool kRagged, bool kListed>
struct TileOfBatch {
  using Type = Tile;
};
template <>
struct TileOfBatch<true, false> {
  using Type = MappedTile;
};
template <>
struct TileOfBatch<false, true> {
  using Type = ListedTile;
};
template <>
struct TileOfBatch<true, true> {
  using Type = ListedMappedTile;
};
template <bool kPaged, Traits T>
struct TileOfCache : TileOfBatch<T.ragged, T.mask_expression> {};
template <Traits T>
struct TileOfCache<true, T> {
  using Type = PagedTile<T.bounded_left>;
};
template <Traits T>
using TileOf = typename TileOfCache<T.paged, T>::Type;

// A base that keeps the parameters of a kernel's paged cache, of type Paged<Pool<…>>.
template <bool kPaged, class PagedKernelParams>
struct KernelPool {
  FC_DEVICE explicit KernelPool(const PagedKernelParams*) {}
};
template <class PagedKernelParams>
struct KernelPool<true, PagedKernelParams> {
  const PagedKernelParams& pool;
  FC_DEVICE explicit KernelPool(const PagedKernelParams* params) : pool(*params) {}
};

// What the consumers of a ragged batch get of a tile, through a slot.
struct SlotTile {
  int head_q;  // less than 0: there is no further one
  int batch, first_row, first_q;
  int len_q, len_kv;
  BlockRange blocks;
};

// The same with what masks and scores of its sequence go by, and the first of some of its rows.
struct SlotRows {
  SlotTile tile;
  ForwardParams own;
  int first_row;
};

// A base of a consumer. Where its rows of a ragged batch see all keys: what else is to be known of the tile is read
// from its slot.
template <bool kRagged>
struct WholeKeys {};
template <>
struct WholeKeys<true> {
  int whole_begin, whole_end;
};

// A base of the context that a kernel's roles share, for ragged batches. A tile has kRows query rows, of which a CTA of
// a cluster computes kOwnRows. `Kernel` has
//   forward_params()   sizes and bounds
//   ragged_params      a pointer
//   ragged_table()     the address of RaggedTiles' table
//   pool               of paged caches: KernelPool
//   expression_params  of functions of the user's own: KernelExpressions
//   tile_full(slot), tile_empty(slot), tile_number(slot)   the slots' barriers, and 32 bytes each
//   rank()             of the CTA in its cluster, 0 without one
template <class Kernel, Traits T, int kRows, int kOwnRows, int kBlockN, int kSlots>
struct RaggedContext {
  using LoadedTile = TileOf<T>;
  using SlotRing = Ring<kSlots>;

  using Ragged = RaggedTiles<T, kRows>;
  FC_DEVICE Ragged ragged_tiles() const {
    const ForwardParams& problem = kernel().forward_params();
    if constexpr (T.paged) return {problem, *kernel().ragged_params, kernel().ragged_table(), &kernel().pool.paged};
    else return {problem, *kernel().ragged_params, kernel().ragged_table()};
  }
  FC_DEVICE static int takers() { return ptx::opaque(ptx::nctaid_x()) / (kRows / kOwnRows); }
  FC_DEVICE ForwardParams params_of_tile(const SlotTile& tile) const {
    return params_of_sequence(kernel().forward_params(), *kernel().ragged_params, tile.len_q, tile.len_kv);
  }
  FC_DEVICE void put_tile(int slot, const SlotTile& tile) const {
    const int words[] = {tile.head_q, tile.batch,  tile.first_row,    tile.first_q,
                         tile.len_q,  tile.len_kv, tile.blocks.begin, tile.blocks.end};
#pragma unroll
    for (int i = 0; i < 8; ++i) ptx::st_shared_u32(kernel().tile_number(slot) + 4 * i, static_cast<unsigned>(words[i]));
  }
  FC_DEVICE SlotTile tile_in(int slot) const {
    const ptx::Vector4 a = ptx::ld_shared_v4(kernel().tile_number(slot)),
                       b = ptx::ld_shared_v4(kernel().tile_number(slot) + 16);
    return {static_cast<int>(a.x),
            static_cast<int>(a.y),
            static_cast<int>(a.z),
            static_cast<int>(a.w),
            static_cast<int>(b.x),
            static_cast<int>(b.y),
            {static_cast<int>(b.z), static_cast<int>(b.w)}};
  }
  // The rows of the tile in a slot from a number of them on.
  FC_DEVICE SlotRows rows_in(int slot, int from) const {
    const SlotTile tile = tile_in(slot);
    return {tile, params_of_tile(tile), tile.first_row + from};
  }
  // The next tile's number, or less than 0 after the last. Of a ragged batch any that is not negative: the tile stays
  // in its slot until release_tile.
  FC_DEVICE int next_tile(SlotRing& ring) const {
    if constexpr (T.ragged) {
      ptx::mbarrier_wait(kernel().tile_full(ring.stage()), ring.parity());
      return static_cast<int>(ptx::ld_shared_u32(kernel().tile_number(ring.stage())));
    }
    return take_tile_number(kernel(), ring);
  }
  FC_DEVICE void release_tile(SlotRing& ring) const {
    if constexpr (T.ragged) {
      ptx::bar_warp_sync();  // all lanes have read it
      arrive_for_warp(kernel().tile_empty(ring.stage()));
      ring.advance();
    }
  }
  FC_DEVICE void pass_tile(const SlotTile& tile, SlotRing& ring) const {
    ptx::mbarrier_wait(kernel().tile_empty(ring.stage()), ring.parity() ^ 1);
    // The producer of paged caches is a warp, or several, of which the first comes here: all lanes look before the slot
    // can be given back.
    if constexpr (T.paged) ptx::bar_warp_sync();
    if (!T.paged || ptx::tid_x() == 0) {
      put_tile(ring.stage(), tile);
      ptx::mbarrier_arrive(kernel().tile_full(ring.stage()));
    }
    ring.advance();
  }
  FC_DEVICE void put_end(SlotRing& ring) const { kernel().pass_tile({.head_q = -1}, ring); }
  // The blocks of a tile's rows, before its CTA's part of them.
  FC_DEVICE BlockRange blocks_of(const SlotTile& slot) const {
    if constexpr (T.mask_expression) {
      return {0, list_of(slot).count(kernel().expression_params)};
    } else {
      const ForwardParams own = params_of_tile(slot);
      return Mask<T, ForwardParams>{own}.template blocks<kBlockN>(slot.first_row,
                                                                  min_int(slot.first_row + kRows, slot.len_q) - 1);
    }
  }
  // Tiles of no cluster.
  FC_DEVICE BlockList list_of(const SlotTile& slot) const {
    return BlockList::of(*kernel().expression_params, slot.batch, slot.head_q, slot.first_row / kRows);
  }
  // The first row of a box, of a ragged batch one that is in its map: a load of a box wholly outside ended with an
  // illegal address, on an H200, where the map begins before the tensor. What is loaded in its place is the sequence's
  // last row, for rows that are not stored and keys that are masked.
  FC_DEVICE static int row_in_map(int row, int bound) {
    if constexpr (T.ragged) return min_int(row, bound - 1);
    return row;
  }
  FC_DEVICE PagedKeys<T, kBlockN> keys_of(const LoadedTile& tile) const {
    const auto& pool = kernel().pool.plain;
    int first_seen = 0;
    if constexpr (T.bounded_left) first_seen = tile.first_seen;
    return {pool.boxes, kernel().pool.paged, pool.v_end, tile.sequence, tile.len_kv, tile.head_kv, first_seen};
  }
  // Where the keys of a paged tile lie.
  FC_DEVICE void set_keys_of(LoadedTile& tile, const SlotTile& slot) const {
    tile.sequence = slot.batch, tile.len_kv = slot.len_kv;
    if constexpr (T.bounded_left)
      tile.first_seen = Mask<T, ForwardParams>{params_of_tile(slot)}.begin_of(slot.first_row);
  }
  FC_DEVICE LoadedTile take_ragged_tile(int number, SlotRing& ring) const {
    const ForwardParams& problem = kernel().forward_params();
    const typename Ragged::Place place = ragged_tiles().find(number);
    const Sequence& sequence = place.sequence;
    SlotTile slot = {place.head, place.batch, place.first_row, sequence.first_q, sequence.len_q, sequence.len_kv, {}};
    slot.blocks = blocks_of(slot);
    slot.first_row += kernel().rank() * kOwnRows;
    kernel().pass_tile(slot, ring);
    LoadedTile tile;
    if constexpr (T.mask_expression) tile.list = list_of(slot);
    tile.batch = sequence.first_q + slot.len_q, tile.first_row = slot.first_row + problem.seqlen_q - slot.len_q;
    tile.head_q = place.head, tile.head_kv = place.head / (problem.heads_q / problem.heads_kv);
    tile.blocks = slot.blocks;
    if constexpr (T.paged) set_keys_of(tile, slot);
    else tile.keys_row = problem.seqlen_kv - slot.len_kv, tile.keys_end = sequence.first_kv + slot.len_kv;
    return tile;
  }

 private:
  FC_DEVICE const Kernel& kernel() const { return static_cast<const Kernel&>(*this); }
};

}  // namespace flashcore::tile
