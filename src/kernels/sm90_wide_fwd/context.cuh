#pragma once
// What producer and consumers of sm90_wide_fwd share: the layout of shared memory, and where a tile lies.

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sm90_wide_fwd/config.h"
#include "kernels/sm90_wide_fwd/params.h"
#include "kernels/tile/batch_tiles.cuh"
#include "kernels/tile/pipeline.cuh"
#include "kernels/tile/score.cuh"

namespace flashcore::sm90_wide_fwd {

using tile::Barrier;
using tile::Ring;

template <Traits T, Config C>
struct SharedStorage {
  unsigned char qo[qo_bytes(T)];
  unsigned char slots[C.num_slots][piece_bytes(C)];
  unsigned char p[p_bytes(C)];
  unsigned char row_numbers[row_numbers_bytes()];
  unsigned char table[ragged_table_bytes(T) + filler_bytes(C, T)];  // of a ragged batch's tiles
  Barrier q_full[1], q_empty[1];
  Barrier piece_full[C.num_slots], piece_empty[C.num_slots];
  Barrier tile_full[kTileSlots], tile_empty[kTileSlots];
  int tile_number[kTileSlots][tile_slot_bytes(T) / 4];
};

// A cluster's share of a tile's keys.
struct Share {
  tile::BlockRange blocks;
  int parts, part;  // the clusters that have some, and which of them this is
  FC_DEVICE bool is_idle() const { return part >= parts; }
};

// Of a ragged batch, positions from one CTA of a cluster to the next.
template <Config C>
constexpr int kStepOfRank = divides_heads(C) ? 0 : own_positions(C);

// All parameters of `forward_paged`.
using PagedKernelParams = Paged<PoolParams<ptx::TensorMap>>;

template <Traits T, Config C>
struct Context;
template <Traits T, Config C>
using TilesOf = tile::RaggedContext<Context<T, C>, traits_of_tiles(C, T), cluster_positions(C), kStepOfRank<C>,
                                    C.block_n, kTileSlots>;

template <Traits T, Config C>
struct Context : tile::KernelExpressions<has_expression(T)>,
                 tile::KernelPool<T.paged, PagedKernelParams>,
                 TilesOf<T, C> {
  using Base = TilesOf<T, C>;
  static constexpr bool has_lists() { return traits_of_tiles(C, T).mask_expression; }
  using Storage = SharedStorage<T, C>;
  static_assert(sizeof(Storage) == smem_bytes(C, T));

  const Params<ptx::TensorMap>& params;
  const ptx::SharedAddress shared = ptx::dynamic_shared();
  const ScoreParams* const score_params;
  const RaggedParams* const ragged_params;

  FC_DEVICE Context(const Params<ptx::TensorMap>& p, const ScoreParams* score, const RaggedParams* ragged,
                    const ExpressionParams* expression, const PagedKernelParams* paged)
      : tile::KernelExpressions<has_expression(T)>(expression),
        tile::KernelPool<T.paged, PagedKernelParams>(paged),
        params(p),
        score_params(score),
        ragged_params(ragged) {}

  FC_DEVICE static int rank() { return C.cluster == 1 ? 0 : ptx::cluster_ctarank(); }

  FC_DEVICE ptx::SharedAddress qo() const { return shared + FC_OFFSET_OF(Storage, qo); }
  FC_DEVICE ptx::SharedAddress p() const { return shared + FC_OFFSET_OF(Storage, p); }
  FC_SHARED_ADDRESS(slots)
  FC_SHARED_ADDRESS(q_full)
  FC_SHARED_ADDRESS(q_empty)
  FC_SHARED_ADDRESS(piece_full)
  FC_SHARED_ADDRESS(piece_empty)
  FC_SHARED_ADDRESS(tile_full)
  FC_SHARED_ADDRESS(tile_empty)
  FC_SHARED_ADDRESS(tile_number)
  // What a consumer tells the other of each row.
  FC_DEVICE ptx::SharedAddress maxima(int consumer) const {
    return shared + FC_OFFSET_OF(Storage, row_numbers) + consumer * (kRows * 4);
  }
  FC_DEVICE ptx::SharedAddress sums(int consumer) const { return maxima(kConsumers + consumer); }

  // --- heads of tiles -----------------------------------------------------------------------------------------------
  FC_DEVICE int head_tile(int head) const { return C.num_splits == 1 ? head : params.by_splits.quotient(head); }
  // The first of the CTA's.
  FC_DEVICE int first_head(int head) const {
    return head_tile(head) * C.pack_heads + (divides_heads(C) ? rank() * own_heads(C) : 0);
  }
  // Of the blocks that the cluster's rows see.
  FC_DEVICE Share share_of(tile::BlockRange blocks, int head) const {
    if constexpr (C.num_splits == 1) {
      return {blocks, 1, 0};
    } else {
      const int count = blocks.count(), begin = blocks.begin;
      const int parts = tile::clamped(count, 1, params.num_splits), part = head - head_tile(head) * params.num_splits;
      if (part >= parts) return {{0, 0}, parts, part};
      // 64 bits: blocks times parts may be more than 2^31.
      const auto end_of = [&](int i) { return begin + static_cast<int>(static_cast<long long>(count) * i / parts); };
      return {{end_of(part), end_of(part + 1)}, parts, part};
    }
  }

  // --- what RaggedContext asks for, and where its tiles are others
  // ----------------------------------------------------
  FC_DEVICE const ForwardParams& forward_params() const { return params.tiles; }
  FC_DEVICE ptx::SharedAddress ragged_table() const { return shared + FC_OFFSET_OF(Storage, table); }
  FC_DEVICE static int takers() { return ptx::opaque(ptx::nctaid_x()) / C.cluster; }
  FC_DEVICE void write_bad() const {
    const PagedParams* paged = nullptr;
    if constexpr (T.paged) paged = &this->pool.paged;
    typename Base::Ragged{params.problem, *ragged_params, ragged_table(), paged}.write_bad(kThreads);
  }
  // Of several loading warps the first one passes tiles on. The others do not wait for it: of tiles without a piece of
  // theirs they may be phases behind.
  FC_DEVICE void pass_tile(const tile::SlotTile& tile, Ring<kTileSlots>& ring) const {
    if (!T.paged || ptx::tid_x() < 32) Base::pass_tile(tile, ring);
    else ring.advance();
  }
  FC_DEVICE auto take_ragged_tile(int number, Ring<kTileSlots>& ring) const {
    auto tile = Base::take_ragged_tile(number, ring);
    tile.blocks = share_of(tile.blocks, tile.head_q).blocks;
    // What a CTA loads is for the rows of all.
    if constexpr (T.paged && T.bounded_left)
      tile.first_seen = tile::max_int(tile.first_seen - rank() * kStepOfRank<C>, 0);
    return tile;
  }

  // Of a dense batch: the CTA's rows, and the blocks that some rows of its cluster see.
  FC_DEVICE auto whole_tile_at(int number) const {
    using Mask = tile::Mask<T, ForwardParams>;
    typename Base::LoadedTile tile = {};
    static_cast<tile::TileIndex&>(tile) =
        tile::tile_at<Mask::kLongestLast>(params.order, params.tiles, number, cluster_positions(C));
    if constexpr (has_lists()) {
      tile.list = tile::BlockList::of(*this->expression_params, tile.batch, tile.head_q, tile.first_row / kRows);
      tile.blocks = {0, tile.list.count(this->expression_params)};
      return tile;
    }
    const int end = tile::min_int(tile.first_row + cluster_positions(C), params.problem.seqlen_q);
    tile.blocks = Mask{params.problem}.template blocks<C.block_n>(tile.first_row, end - 1);
    tile.first_row += rank() * kStepOfRank<C>;
    return tile;
  }
  // What the producer loads of it.
  FC_DEVICE auto tile_at(int number) const {
    auto tile = whole_tile_at(number);
    tile.blocks = share_of(tile.blocks, tile.head_q).blocks;
    return tile;
  }
};

}  // namespace flashcore::sm90_wide_fwd
