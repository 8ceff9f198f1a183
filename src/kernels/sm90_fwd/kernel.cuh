#pragma once
// Forward attention for Hopper: one producer warpgroup feeds K and V through a ring by TMA, each consumer warpgroup
// owns 64 query rows and multiplies with wgmma, P in registers. The schedule of FlashAttention-3 (Shah et al., 2024):
// the scores of the next block are computed under the P·V of the last, and consumers take turns at the tensor cores.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/setmaxnreg.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sm90_fwd/config.h"
#include "kernels/sm90_fwd/consumer.cuh"
#include "kernels/sm90_fwd/loader.cuh"
#include "kernels/sm90_fwd/paged_loader.cuh"
#include "kernels/sm90_fwd/params.h"
#include "kernels/tile/list_blocks.cuh"

namespace flashcore::sm90_fwd {

template <Traits T, Config C>
FC_DEVICE void init_barriers(const Context<T, C>& context) {
  constexpr int kArrivals = 4 * C.num_consumers;            // one lane of each consumer warp
  constexpr int kOfABlock = C.cluster * 4 * row_groups(C);  // of those that read it
  for (int stage = 0; stage < C.q_stages; ++stage) {
    for (int group = 0; group < row_groups(C); ++group)
      tile::init_stage(context.q_full(stage, group), context.q_empty(stage, group), 4 * C.key_groups);
  }
  for (int stage = 0; stage < C.num_stages; ++stage) {
    tile::init_stage(context.k_full(stage), context.k_empty(stage), kOfABlock, loading_warps(C, T));
    tile::init_stage(context.v_full(stage), context.v_empty(stage), kOfABlock, loading_warps(C, T));
  }
  for (int slot = 0; slot < kTileSlots; ++slot)
    tile::init_stage(context.tile_full(slot), context.tile_empty(slot), kArrivals + loading_warps(C, T) - 1);
  // Once: by every thread that has made one, the fences cost 2000 clocks.
  ptx::fence_mbarrier_init();
}

template <Traits T, Config C>
FC_DEVICE void attend(const Params<ptx::TensorMap>& params, const ScoreParams* score, const RaggedParams* ragged,
                      const ExpressionParams* expression = nullptr, const PagedKernelParams* paged = nullptr) {
  const Context<T, C> context(params, score, ragged, expression, paged);
  const int warpgroup = ptx::shfl_idx(ptx::tid_x() / 128, 0);
  // Of a ragged batch by a thread with less to do: the first ones read the boundaries.
  if (ptx::tid_x() == (T.ragged ? threads_per_block(C) - 32 : 0)) init_barriers(context);
  if (ptx::tid_x() == 32) {
    ptx::prefetch_tensormap(params.q);
    ptx::prefetch_tensormap(params.k);
    ptx::prefetch_tensormap(params.v);
  }
  if constexpr (T.ragged) context.ragged_tiles().make(ptx::nctaid_x() / C.cluster);
  // A cluster's CTAs write to each other's shared memory as soon as they have started.
  if constexpr (C.cluster == 1) ptx::bar_sync();
  else ptx::cluster_arrive(), ptx::cluster_wait();
  if constexpr (T.ragged) context.ragged_tiles().write_bad(threads_per_block(C));
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<producer_registers(C)>();
    if constexpr (T.paged) {
      if (ptx::tid_x() < 32) {
        tile::produce_tiles<C.scheduler, row_groups(C), kTileSlots, true, true>(
            context, params, PagedLoader<T, C>{{context}}, ptx::ctaid_x(), ptx::nctaid_x());
      } else if (ptx::tid_x() < 32 * loading_warps(C, T)) {
        PagedLoader<T, C>{{context}}.follow();
      }
    } else if (ptx::tid_x() == 0) {
      tile::produce_tiles<C.scheduler, row_groups(C), kTileSlots, T.ragged>(
          context, params, Loader<T, C>{context}, ptx::ctaid_x() / C.cluster, ptx::nctaid_x() / C.cluster);
    }
  } else {
    ptx::setmaxnreg_inc<consumer_registers(C)>();
    Consumer<T, C>(context, warpgroup - 1).run();
  }
  // Nor may one end before the others have arrived at its barriers for the last time.
  if constexpr (C.cluster > 1) {
    ptx::bar_warp_sync();
    ptx::cluster_arrive(), ptx::cluster_wait();
  }
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward(const __grid_constant__ Params<ptx::TensorMap> params) {
  attend<T, C>(params, nullptr, nullptr);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_scored(const __grid_constant__ Scored<Params<ptx::TensorMap>> params) {
  attend<T, C>(params.plain, &params.score, nullptr);
}

// Functions of the user's own, with built-in ones or without.
template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_expressed(const __grid_constant__ Expressed<Params<ptx::TensorMap>> params) {
  attend<T, C>(params.plain, &params.score, nullptr, &params.expression);
}

// Sequences of different lengths, with a function of scores or without.
template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_ragged(const __grid_constant__ Ragged<Params<ptx::TensorMap>> params) {
  attend<T, C>(params.plain, &params.score, &params.ragged);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<Params<ptx::TensorMap>>> params) {
  attend<T, C>(params.all.plain, &params.all.score, &params.all.ragged, &params.expression);
}

// As forward_ragged, with K and V in pages.
template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_paged(const __grid_constant__ PagedKernelParams params) {
  attend<T, C>(params.plain.plain, &params.score, &params.ragged, nullptr, &params);
}

}  // namespace flashcore::sm90_fwd
