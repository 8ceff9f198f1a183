#pragma once
// What producer and consumers of sm90_fwd share: the layout of shared memory, and where a tile lies.

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sm90_fwd/config.h"
#include "kernels/sm90_fwd/params.h"
#include "kernels/tile/mask.cuh"
#include "kernels/tile/pipeline.cuh"
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
  // From the warps of the other key groups, and what fills up.
  unsigned char parts[parts_bytes(C, T) + tile::round_up(tail_bytes(C, T), 1024) - tail_bytes(C, T)];
  Barrier q_full[C.q_stages][row_groups(C)], q_empty[C.q_stages][row_groups(C)];
  Barrier k_full[C.num_stages], k_empty[C.num_stages];
  Barrier v_full[C.num_stages], v_empty[C.num_stages];
  Barrier tile_full[kTileSlots], tile_empty[kTileSlots];
  int tile_number[kTileSlots][2];
};

// Where a tile lies and which keys it needs.
struct Tile : tile::TileIndex {
  tile::BlockRange blocks;  // of block_n keys that some row of the tile sees, or of its neighbours in the cluster
};

template <Traits T, Config C>
struct Context {
  using Storage = SharedStorage<T, C>;
  static_assert(sizeof(Storage) == smem_bytes(C, T));

  const Params<ptx::TensorMap>& params;
  const ptx::SharedAddress shared = ptx::dynamic_shared();

  const ScoreParams* const score_params;

  FC_DEVICE Context(const Params<ptx::TensorMap>& p, const ScoreParams* score) : params(p), score_params(score) {}

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

  FC_DEVICE Tile tile_at(int number) const {
    Tile tile = {
        tile::tile_at<tile::Mask<T, ForwardParams>::kLongestLast>(params.order, params.problem, number, cluster_m(C)),
        {}};
    tile.blocks = mask().template blocks<C.block_n>(
        tile.first_row, min_int(tile.first_row + cluster_m(C), params.problem.seqlen_q) - 1);
    tile.first_row += rank() * block_m(C);
    return tile;
  }
};

}  // namespace flashcore::sm90_fwd
