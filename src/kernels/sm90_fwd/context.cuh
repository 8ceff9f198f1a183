#pragma once
// What producer and consumers of sm90_fwd share: the layout of shared memory, and where a tile lies.

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sm90_fwd/config.h"
#include "kernels/sm90_fwd/params.h"
#include "kernels/tile/batch_tiles.cuh"
#include "kernels/tile/expressed.cuh"
#include "kernels/tile/pipeline.cuh"
#include "kernels/tile/score.cuh"

namespace flashcore::sm90_fwd {

using tile::Barrier;
using tile::min_int;
using tile::Ring;
using tile::SlotTile;
using tile::TileOf;

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

// All parameters of `forward_paged`.
using PagedKernelParams = Paged<PoolParams<ptx::TensorMap>>;

template <Traits T, Config C>
struct Context : tile::KernelExpressions<has_expression(T)>,
                 tile::KernelPool<T.paged, PagedKernelParams>,
                 tile::RaggedContext<Context<T, C>, T, cluster_m(C), block_m(C), C.block_n, kTileSlots> {
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

  // --- what RaggedContext asks for -----------------------------------------------------------------------------
  FC_DEVICE const ForwardParams& forward_params() const { return params.problem; }
  FC_DEVICE ptx::SharedAddress ragged_table() const {
    return shared + FC_OFFSET_OF(Storage, parts) + parts_bytes(C, T);
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
      tile::ListedTile tile = {{place_of(number), {}}, {}};
      tile.list = tile::BlockList::of(*this->expression_params, tile.batch, tile.head_q, tile.first_row / block_m(C));
      tile.blocks = {0, tile.list.count(this->expression_params)};
      return tile;
    } else {
      tile::Tile tile = {
          tile::tile_at<tile::Mask<T, ForwardParams>::kLongestLast>(params.order, params.problem, number, cluster_m(C)),
          {}};
      tile.blocks = mask().template blocks<C.block_n>(
          tile.first_row, min_int(tile.first_row + cluster_m(C), params.problem.seqlen_q) - 1);
      tile.first_row += rank() * block_m(C);
      return tile;
    }
  }
};

}  // namespace flashcore::sm90_fwd
