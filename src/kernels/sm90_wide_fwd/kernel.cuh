#pragma once
// Forward attention for Hopper and heads whose O no warpgroup can hold: two consumer warpgroups share 64 query rows.
// Each multiplies Q with half of a block's keys, they exchange P through shared memory, and each multiplies all of it
// with its half of V's columns, by wgmma. A producer, of pages up to four warps and else a thread, feeds pieces of K
// and V through a ring by TMA.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/setmaxnreg.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sm90_wide_fwd/consumer.cuh"
#include "kernels/sm90_wide_fwd/loader.cuh"
#include "kernels/sm90_wide_fwd/paged_loader.cuh"
#include "kernels/tile/list_blocks.cuh"

namespace flashcore::sm90_wide_fwd {

template <Traits T, Config C>
FC_DEVICE void init_barriers(const Context<T, C>& context) {
  constexpr int kArrivals = 4 * kConsumers;  // one lane of each consumer warp
  tile::init_stage(context.q_full(), context.q_empty(), kArrivals);
  for (int slot = 0; slot < C.num_slots; ++slot)
    tile::init_stage(context.piece_full(slot), context.piece_empty(slot), C.cluster * kArrivals);
  for (int slot = 0; slot < kTileSlots; ++slot)
    tile::init_stage(context.tile_full(slot), context.tile_empty(slot), kArrivals);
  ptx::fence_mbarrier_init();
}

template <Traits T, Config C>
FC_DEVICE void attend(const Params<ptx::TensorMap>& params, const ScoreParams* score, const RaggedParams* ragged,
                      const PagedKernelParams* paged = nullptr, const ExpressionParams* expression = nullptr) {
  const Context<T, C> context(params, score, ragged, expression, paged);
  const int warpgroup = ptx::shfl_idx(ptx::tid_x() / 128, 0);
  // Of a ragged batch by a thread with less to do: the first ones read the boundaries.
  if (ptx::tid_x() == (T.ragged ? kThreads - 32 : 0)) init_barriers(context);
  if (ptx::tid_x() == 32) {
    ptx::prefetch_tensormap(params.q);
    ptx::prefetch_tensormap(params.k);
    ptx::prefetch_tensormap(params.v);
  }
  if constexpr (T.ragged) context.ragged_tiles().make(ptx::nctaid_x() / C.cluster);
  // A cluster's CTAs write to each other's shared memory as soon as they have started.
  if constexpr (C.cluster == 1) ptx::bar_sync();
  else ptx::cluster_arrive(), ptx::cluster_wait();
  if constexpr (T.ragged) context.write_bad();
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if constexpr (T.paged) {
      if (ptx::tid_x() < 32 * loading_warps(C)) {
        tile::produce_tiles<C.scheduler, 1, kTileSlots, true, true>(
            context, params, PagedLoader<T, C>{{context}}, ptx::ctaid_x() / C.cluster, ptx::nctaid_x() / C.cluster);
      }
    } else if (ptx::tid_x() == 0) {
      tile::produce_tiles<C.scheduler, 1, kTileSlots, T.ragged>(
          context, params, Loader<T, C>{context}, ptx::ctaid_x() / C.cluster, ptx::nctaid_x() / C.cluster);
    }
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    Consumer<T, C>(context, warpgroup - 1).run();
  }
  // Nor may one end before the others have arrived at its barriers for the last time.
  if constexpr (C.cluster > 1) {
    ptx::bar_warp_sync();
    ptx::cluster_arrive(), ptx::cluster_wait();
  }
}

template <Traits T, Config C>
FC_KERNEL(kThreads, 1)
forward(const __grid_constant__ Params<ptx::TensorMap> params) {
  attend<T, C>(params, nullptr, nullptr);
}

template <Traits T, Config C>
FC_KERNEL(kThreads, 1)
forward_scored(const __grid_constant__ Scored<Params<ptx::TensorMap>> params) {
  attend<T, C>(params.plain, &params.score, nullptr);
}

// Sequences of different lengths, with a function of scores or without.
template <Traits T, Config C>
FC_KERNEL(kThreads, 1)
forward_ragged(const __grid_constant__ Ragged<Params<ptx::TensorMap>> params) {
  attend<T, C>(params.plain, &params.score, &params.ragged);
}

// As forward_ragged, with K and V in pages.
template <Traits T, Config C>
FC_KERNEL(kThreads, 1)
forward_paged(const __grid_constant__ PagedKernelParams params) {
  attend<T, C>(params.plain.plain, &params.score, &params.ragged, &params);
}

// With functions of the user's own.
template <Traits T, Config C>
FC_KERNEL(kThreads, 1)
forward_expressed(const __grid_constant__ Expressed<Params<ptx::TensorMap>> params) {
  attend<T, C>(params.plain, &params.score, nullptr, nullptr, &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(kThreads, 1)
forward_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<Params<ptx::TensorMap>>> params) {
  attend<T, C>(params.all.plain, &params.all.score, &params.all.ragged, nullptr, &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(kThreads, 1)
forward_paged_expressed(const __grid_constant__ ExpressedRagged<PagedKernelParams> params) {
  const PagedKernelParams& all = params.all;
  attend<T, C>(all.plain.plain, &all.score, &all.ragged, &all, &params.expression);
}

// The second step where keys are split, with the parameters of the first: a CTA for each row.
template <Traits T, Config C>
FC_KERNEL(merge_threads(T), 1)
merge(const __grid_constant__ Params<ptx::TensorMap> params) {
  merge_row<T, C>(params, nullptr, nullptr);
}

template <Traits T, Config C>
FC_KERNEL(merge_threads(T), 1)
merge_scored(const __grid_constant__ Scored<Params<ptx::TensorMap>> params) {
  merge_row<T, C>(params.plain, &params.score, nullptr);
}

template <Traits T, Config C>
FC_KERNEL(merge_threads(T), 1)
merge_ragged(const __grid_constant__ Ragged<Params<ptx::TensorMap>> params) {
  merge_row<T, C>(params.plain, &params.score, &params.ragged);
}

template <Traits T, Config C>
FC_KERNEL(merge_threads(T), 1)
merge_paged(const __grid_constant__ PagedKernelParams params) {
  merge_row<T, C>(params.plain.plain, &params.score, &params.ragged, &params.paged);
}

template <Traits T, Config C>
FC_KERNEL(merge_threads(T), 1)
merge_expressed(const __grid_constant__ Expressed<Params<ptx::TensorMap>> params) {
  merge_row<T, C>(params.plain, &params.score, nullptr);
}

template <Traits T, Config C>
FC_KERNEL(merge_threads(T), 1)
merge_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<Params<ptx::TensorMap>>> params) {
  merge_row<T, C>(params.all.plain, &params.all.score, &params.all.ragged);
}

template <Traits T, Config C>
FC_KERNEL(merge_threads(T), 1)
merge_paged_expressed(const __grid_constant__ ExpressedRagged<PagedKernelParams> params) {
  const PagedKernelParams& all = params.all;
  merge_row<T, C>(all.plain.plain, &all.score, &all.ragged, &all.paged);
}

}  // namespace flashcore::sm90_wide_fwd
