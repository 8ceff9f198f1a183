#pragma once
// What the roles of sm90_fp8_fwd share: the layout of shared memory, and where a tile lies.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sm90_fp8_fwd/config.h"
#include "kernels/sm90_fp8_fwd/params.h"
#include "kernels/tile/batch_tiles.cuh"
#include "kernels/tile/byte_tile.cuh"
#include "kernels/tile/expressed.cuh"
#include "kernels/tile/mask.cuh"
#include "kernels/tile/pipeline.cuh"
#include "kernels/tile/scheduler.cuh"
#include "kernels/tile/score.cuh"

namespace flashcore::sm90_fp8_fwd {

using tile::Barrier;
using tile::min_int;
using tile::Ring;
using tile::TileOf;

template <Traits T, Config C>
struct SharedStorage {
  unsigned char qo[C.q_stages][C.num_consumers][qo_slab_bytes(T)];
  unsigned char k[C.num_stages][k_tile_bytes(C, T)];
  unsigned char vt[C.num_stages][vt_tile_bytes(C, T)];  // V transposed: a line of keys for each column
  unsigned char v[v_slots(C)][v_part_bytes(C, T)];      // as it lies in memory
  Barrier q_full[C.q_stages][C.num_consumers], q_empty[C.q_stages][C.num_consumers];
  Barrier k_full[C.num_stages], k_empty[C.num_stages];
  Barrier vt_full[C.num_stages], vt_empty[C.num_stages];
  Barrier v_full[v_slots(C)], v_empty[v_slots(C)];
  Barrier tile_full[kTileSlots], tile_empty[kTileSlots];
  int tile_number[kTileSlots][tile_slot_bytes(T) / 4];
  unsigned char tail[tail_bytes(C, T)];
};

template <Traits T, Config C>
using TileQ = tile::ByteTile<kRowsPerConsumer, T.head_dim, kWidthQ>;
template <Traits T, Config C>
using TileK = tile::ByteTile<C.block_n, T.head_dim, width_of(T.head_dim)>;
template <Traits T, Config C>
using TileV = tile::ByteTile<C.block_n, width_of(T.head_dim_v), width_of(T.head_dim_v)>;  // a part
template <Traits T, Config C>
using TileVt = tile::ByteTile<padded_dim(T.head_dim_v), C.block_n, width_of_keys(C.block_n)>;

// All parameters of `forward_fp8_paged`.
using PagedKernelParams = Paged<PoolParams<ptx::TensorMap>>;

template <Traits T, Config C>
struct Context : tile::KernelExpressions<has_expression(T)>,
                 tile::KernelPool<T.paged, PagedKernelParams>,
                 tile::RaggedContext<Context<T, C>, T, block_m(C), block_m(C), C.block_n, kTileSlots> {
  using Storage = SharedStorage<T, C>;
  static_assert(sizeof(Storage) == smem_bytes(C, T));

  const Params<ptx::TensorMap>& params;
  const ForwardParams& problem;
  const ptx::SharedAddress shared = ptx::dynamic_shared();

  const ScoreParams* const score_params;
  const RaggedParams* const ragged_params;

  FC_DEVICE Context(const Params<ptx::TensorMap>& p, const ScoreParams* score, const RaggedParams* ragged,
                    const ExpressionParams* expression, const PagedKernelParams* paged)
      : tile::KernelExpressions<has_expression(T)>(expression),
        tile::KernelPool<T.paged, PagedKernelParams>(paged),
        params(p),
        problem(p.fp8.problem),
        score_params(score),
        ragged_params(ragged) {}

  FC_SHARED_ADDRESS_2D(qo)
  FC_SHARED_ADDRESS_2D(q_full)
  FC_SHARED_ADDRESS_2D(q_empty)
  FC_SHARED_ADDRESS(k)
  FC_SHARED_ADDRESS(v)
  FC_SHARED_ADDRESS(vt)
  FC_SHARED_ADDRESS(k_full)
  FC_SHARED_ADDRESS(k_empty)
  FC_SHARED_ADDRESS(v_full)
  FC_SHARED_ADDRESS(v_empty)
  FC_SHARED_ADDRESS(vt_full)
  FC_SHARED_ADDRESS(vt_empty)
  FC_SHARED_ADDRESS(tile_full)
  FC_SHARED_ADDRESS(tile_empty)
  FC_SHARED_ADDRESS(tile_number)

  // --- what RaggedContext asks for -----------------------------------------------------------------------------
  FC_DEVICE const ForwardParams& forward_params() const { return problem; }
  FC_DEVICE ptx::SharedAddress ragged_table() const { return shared + FC_OFFSET_OF(Storage, tail); }
  FC_DEVICE static int rank() { return 0; }

  FC_DEVICE tile::Mask<T, ForwardParams> mask() const { return {problem}; }

  FC_DEVICE tile::Score<T> score() const { return {problem, score_params}; }

  // Without its blocks, which are read from memory where they are listed.
  FC_DEVICE auto place_of(int number) const {
    if constexpr (!T.mask_expression) return tile_at(number);
    else return tile::tile_at<tile::Mask<T, ForwardParams>::kLongestLast>(params.order, problem, number, block_m(C));
  }
  FC_DEVICE auto tile_at(int number) const {
    if constexpr (T.mask_expression) {
      tile::ListedTile tile = {{place_of(number), {}}, {}};
      tile.list = tile::BlockList::of(*this->expression_params, tile.batch, tile.head_q, tile.first_row / block_m(C));
      tile.blocks = {0, tile.list.count(this->expression_params)};
      return tile;
    } else {
      tile::Tile tile = {
          tile::tile_at<tile::Mask<T, ForwardParams>::kLongestLast>(params.order, problem, number, block_m(C)), {}};
      tile.blocks =
          mask().template blocks<C.block_n>(tile.first_row, min_int(tile.first_row + block_m(C), problem.seqlen_q) - 1);
      return tile;
    }
  }
};

}  // namespace flashcore::sm90_fp8_fwd
