#pragma once
// What producer and consumers of sm90_fwd share: the layout of shared memory, and where a tile lies.

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sm90_fwd/config.h"
#include "kernels/sm90_fwd/params.h"
#include "kernels/tile/expressed.cuh"
#include "kernels/tile/mask.cuh"
#include "kernels/tile/pipeline.cuh"
#include "kernels/tile/ragged_tiles.cuh"
#include "kernels/tile/scheduler.cuh"
#include "kernels/tile/score.cuh"

namespace flashcore::sm90_fwd {

using tile::Barrier;
using tile::min_int;
using tile::Ring;

template <Traits T, Config C>
struct SharedStorage {
  unsigned char qo[C.q_stages][row_groups(C)][qo_slab_bytes(T)];
  unsigned char k[C.num_stages][k_tile_bytes(C, T)];
  unsigned char v[C.num_stages][v_tile_bytes(C, T)];
  // From the warps of the other key groups, then the table of a ragged batch's tiles, and what fills up.
  unsigned char
      parts[parts_bytes(C, T) + ragged_table_bytes(T) + tile::round_up(tail_bytes(C, T), 1024) - tail_bytes(C, T)];
  Barrier q_full[C.q_stages][row_groups(C)], q_empty[C.q_stages][row_groups(C)];
  Barrier k_full[C.num_stages], k_empty[C.num_stages];
  Barrier v_full[C.num_stages], v_empty[C.num_stages];
  Barrier tile_full[kTileSlots], tile_empty[kTileSlots];
  int tile_number[kTileSlots][tile_slot_bytes(T) / 4];
};

// Warps that load a paged cache: all of the producer's, or one beside more than two consumers, which leave the producer
// 32 registers a thread.
constexpr int loading_warps(const Config& c, const Traits& t) { return t.paged && c.num_consumers <= 2 ? 4 : 1; }

// Where a tile lies and which keys it needs.
struct Tile : tile::TileIndex {
  tile::BlockRange blocks;  // of block_n keys that some row of the tile sees, or of its neighbours in the cluster
};

// The same of a ragged batch, for tensor maps as ragged_map of family.cpp makes them. There a row r of a sequence is
// row r + (bound - its length), and the batch is the row of the packed tensor where it ends: rows past its end are rows
// past the bound, outside of the map.
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
  tile::BlockList list;
};
struct ListedMappedTile : MappedTile {
  tile::BlockList list;
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

// All parameters of `forward_paged`.
using PagedKernelParams = Paged<PoolParams<ptx::TensorMap>>;
template <bool kPaged>
struct KernelPool {
  FC_DEVICE explicit KernelPool(const PagedKernelParams*) {}
};
template <>
struct KernelPool<true> {
  const PagedKernelParams& pool;
  FC_DEVICE explicit KernelPool(const PagedKernelParams* params) : pool(*params) {}
};

// What the consumers of a ragged batch get of a tile, through a slot of shared memory.
struct SlotTile {
  int head_q;  // less than 0: there is no further one
  int batch, first_row, first_q;
  int len_q, len_kv;
  tile::BlockRange blocks;
};

template <Traits T, Config C>
struct Context : tile::KernelExpressions<has_expression(T)>, KernelPool<T.paged> {
  using Storage = SharedStorage<T, C>;
  static_assert(sizeof(Storage) == smem_bytes(C, T));

  const Params<ptx::TensorMap>& params;
  const ptx::SharedAddress shared = ptx::dynamic_shared();

  const ScoreParams* const score_params;
  const RaggedParams* const ragged_params;

  FC_DEVICE Context(const Params<ptx::TensorMap>& p, const ScoreParams* score, const RaggedParams* ragged,
                    const ExpressionParams* expression, const PagedKernelParams* paged)
      : tile::KernelExpressions<has_expression(T)>(expression),
        KernelPool<T.paged>(paged),
        params(p),
        score_params(score),
        ragged_params(ragged) {}

  FC_DEVICE static int rank() { return C.cluster == 1 ? 0 : ptx::cluster_ctarank(); }

  FC_SHARED_ADDRESS_2D(qo)
  FC_SHARED_ADDRESS_2D(q_full)
  FC_SHARED_ADDRESS_2D(q_empty)
  FC_SHARED_ADDRESS(k)
  FC_SHARED_ADDRESS(v)
  FC_SHARED_ADDRESS(k_full)
  FC_SHARED_ADDRESS(k_empty)
  FC_SHARED_ADDRESS(v_full)
  FC_SHARED_ADDRESS(v_empty)
  FC_SHARED_ADDRESS(tile_full)
  FC_SHARED_ADDRESS(tile_empty)
  FC_SHARED_ADDRESS(tile_number)
  // Of a row group's warp, from key group `sender`.
  FC_DEVICE ptx::SharedAddress part(int sender, int group, int warp) const {
    return shared + FC_OFFSET_OF(Storage, parts) + (((sender - 1) * row_groups(C) + group) * 4 + warp) * part_bytes(T);
  }

  FC_DEVICE tile::Mask<T, ForwardParams> mask() const { return {params.problem}; }

  FC_DEVICE tile::Score<T> score() const { return {params.problem, score_params}; }

  // Without its blocks, which are read from memory where they are listed. No cluster has such tiles.
  FC_DEVICE auto place_of(int number) const {
    if constexpr (!T.mask_expression) return tile_at(number);
    else
      return tile::tile_at<tile::Mask<T, ForwardParams>::kLongestLast>(params.order, params.problem, number,
                                                                       block_m(C));
  }
  FC_DEVICE auto tile_at(int number) const {
    if constexpr (T.mask_expression) {
      ListedTile tile = {{place_of(number), {}}, {}};
      tile.list = tile::BlockList::of(*this->expression_params, tile.batch, tile.head_q, tile.first_row / block_m(C));
      tile.blocks = {0, tile.list.count(this->expression_params)};
      return tile;
    } else {
      Tile tile = {
          tile::tile_at<tile::Mask<T, ForwardParams>::kLongestLast>(params.order, params.problem, number, cluster_m(C)),
          {}};
      tile.blocks = mask().template blocks<C.block_n>(
          tile.first_row, min_int(tile.first_row + cluster_m(C), params.problem.seqlen_q) - 1);
      tile.first_row += rank() * block_m(C);
      return tile;
    }
  }

  // --- ragged batches -----------------------------------------------------------------------------------------------
  using RaggedTiles = tile::RaggedTiles<T, cluster_m(C)>;
  FC_DEVICE RaggedTiles ragged_tiles() const {
    const ptx::SharedAddress table = shared + FC_OFFSET_OF(Storage, parts) + parts_bytes(C, T);
    if constexpr (T.paged) return {params.problem, *ragged_params, table, &this->pool.paged};
    else return {params.problem, *ragged_params, table};
  }
  FC_DEVICE static int takers() { return ptx::opaque(ptx::nctaid_x()) / C.cluster; }
  FC_DEVICE ForwardParams params_of_tile(const SlotTile& tile) const {
    return tile::params_of_sequence(params.problem, *ragged_params, tile.len_q, tile.len_kv);
  }
  FC_DEVICE void put_tile(int slot, const SlotTile& tile) const {
    const int words[] = {tile.head_q, tile.batch,  tile.first_row,    tile.first_q,
                         tile.len_q,  tile.len_kv, tile.blocks.begin, tile.blocks.end};
#pragma unroll
    for (int i = 0; i < 8; ++i) ptx::st_shared_u32(tile_number(slot) + 4 * i, static_cast<unsigned>(words[i]));
  }
  FC_DEVICE SlotTile tile_in(int slot) const {
    const ptx::Vector4 a = ptx::ld_shared_v4(tile_number(slot)), b = ptx::ld_shared_v4(tile_number(slot) + 16);
    return {static_cast<int>(a.x),
            static_cast<int>(a.y),
            static_cast<int>(a.z),
            static_cast<int>(a.w),
            static_cast<int>(b.x),
            static_cast<int>(b.y),
            {static_cast<int>(b.z), static_cast<int>(b.w)}};
  }
  FC_DEVICE void pass_tile(const SlotTile& tile, Ring<kTileSlots>& ring) const {
    ptx::mbarrier_wait(tile_empty(ring.stage()), ring.parity() ^ 1);
    // The producer of paged caches is a warp.
    if (!T.paged || ptx::tid_x() == 0) {
      put_tile(ring.stage(), tile);
      ptx::mbarrier_arrive(tile_full(ring.stage()));
    }
    ring.advance();
  }
  FC_DEVICE void put_end(Ring<kTileSlots>& ring) const { pass_tile({.head_q = -1}, ring); }
  // The blocks of a tile's rows, before its CTA's part of them.
  FC_DEVICE tile::BlockRange blocks_of(const SlotTile& slot) const {
    if constexpr (T.mask_expression) {
      return {0, list_of(slot).count(this->expression_params)};
    } else {
      const ForwardParams own = params_of_tile(slot);
      return tile::Mask<T, ForwardParams>{own}.template blocks<C.block_n>(
          slot.first_row, min_int(slot.first_row + cluster_m(C), slot.len_q) - 1);
    }
  }
  FC_DEVICE tile::BlockList list_of(const SlotTile& slot) const {
    return tile::BlockList::of(*this->expression_params, slot.batch, slot.head_q, slot.first_row / block_m(C));
  }
  // Where the keys of a paged tile lie.
  FC_DEVICE void set_keys_of(TileOf<T>& tile, const SlotTile& slot) const {
    tile.sequence = slot.batch, tile.len_kv = slot.len_kv;
    if constexpr (T.bounded_left)
      tile.first_seen = tile::Mask<T, ForwardParams>{params_of_tile(slot)}.begin_of(slot.first_row);
  }
  FC_DEVICE TileOf<T> take_ragged_tile(int number, Ring<kTileSlots>& ring) const {
    const typename RaggedTiles::Place place = ragged_tiles().find(number);
    const tile::Sequence& sequence = place.sequence;
    SlotTile slot = {place.head, place.batch, place.first_row, sequence.first_q, sequence.len_q, sequence.len_kv, {}};
    slot.blocks = blocks_of(slot);
    slot.first_row += rank() * block_m(C);
    pass_tile(slot, ring);
    TileOf<T> tile;
    if constexpr (T.mask_expression) tile.list = list_of(slot);
    tile.batch = sequence.first_q + slot.len_q, tile.first_row = slot.first_row + params.problem.seqlen_q - slot.len_q;
    tile.head_q = place.head, tile.head_kv = place.head / (params.problem.heads_q / params.problem.heads_kv);
    tile.blocks = slot.blocks;
    if constexpr (T.paged) set_keys_of(tile, slot);
    else tile.keys_row = params.problem.seqlen_kv - slot.len_kv, tile.keys_end = sequence.first_kv + slot.len_kv;
    return tile;
  }
};

}  // namespace flashcore::sm90_fwd
