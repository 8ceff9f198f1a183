#pragma once
// Forward attention on 8-bit operands for Hopper: sm90_fwd's schedule, with warps that transpose V on its way and sums
// of the tensor cores that are promoted to fp32.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/setmaxnreg.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sm90_fp8_fwd/config.h"
#include "kernels/sm90_fp8_fwd/consumer.cuh"
#include "kernels/sm90_fp8_fwd/loader.cuh"
#include "kernels/sm90_fp8_fwd/paged_loader.cuh"
#include "kernels/sm90_fp8_fwd/params.h"
#include "kernels/sm90_fp8_fwd/transposer.cuh"
#include "kernels/tile/list_blocks.cuh"

namespace flashcore::sm90_fp8_fwd {

template <Traits T, Config C>
FC_DEVICE void init_barriers(const Context<T, C>& context) {
  constexpr int kConsumerWarps = 4 * C.num_consumers;  // one lane of each arrives
  for (int stage = 0; stage < C.q_stages; ++stage) {
    for (int i = 0; i < C.num_consumers; ++i) tile::init_stage(context.q_full(stage, i), context.q_empty(stage, i), 4);
  }
  for (int stage = 0; stage < C.num_stages; ++stage) {
    tile::init_stage(context.k_full(stage), context.k_empty(stage), kConsumerWarps);
    ptx::mbarrier_init(context.vt_full(stage), takes_transposed_v(C) ? 1 : kTransposers);
    ptx::mbarrier_init(context.vt_empty(stage), kConsumerWarps);
  }
  if constexpr (!takes_transposed_v(C)) {
    for (int stage = 0; stage < C.v_stages; ++stage)
      tile::init_stage(context.v_full(stage), context.v_empty(stage), kTransposers);
  }
  constexpr int kTileTakers = kConsumerWarps + (takes_transposed_v(C) ? 0 : kTransposers);
  for (int slot = 0; slot < kTileSlots; ++slot)
    tile::init_stage(context.tile_full(slot), context.tile_empty(slot), kTileTakers);
  // Once: by every thread that has made one, the fences cost 2000 clocks.
  ptx::fence_mbarrier_init();
}

// `k_odd`: of V that lies transposed.
template <Traits T, Config C>
FC_DEVICE void attend(const Params<ptx::TensorMap>& params, const ptx::TensorMap* k_odd,
                      const ScoreParams* score = nullptr, const RaggedParams* ragged = nullptr,
                      const ExpressionParams* expression = nullptr, const PagedKernelParams* paged = nullptr) {
  const Context<T, C> context(params, score, ragged, expression, paged);
  const int warp = ptx::shfl_idx(ptx::tid_x() / 32, 0);
  // Of a ragged batch by a thread with less to do: the first ones read the boundaries.
  if (ptx::tid_x() == (T.ragged ? threads_per_block(C) - 32 : 0)) init_barriers(context);
  if (ptx::tid_x() == 32) {
    ptx::prefetch_tensormap(params.q);
    ptx::prefetch_tensormap(params.k);
    ptx::prefetch_tensormap(params.v);
    if constexpr (takes_transposed_v(C)) ptx::prefetch_tensormap(*k_odd);
  }
  if constexpr (T.ragged) context.ragged_tiles().make(ptx::nctaid_x());
  ptx::bar_sync();
  if constexpr (T.ragged) context.ragged_tiles().write_bad(threads_per_block(C));
  if (warp < 4) {
    ptx::setmaxnreg_dec<producer_registers(C)>();
    if (warp >= 4 - kTransposers) {
      if constexpr (!takes_transposed_v(C)) Transposer<T, C>{context, warp - (4 - kTransposers)}.run();
    } else if constexpr (T.paged) {
      tile::produce_tiles<C.scheduler, C.num_consumers, kTileSlots, true, true>(
          context, params, PagedLoader<T, C>{{context}}, ptx::ctaid_x(), ptx::nctaid_x());
    } else if (ptx::tid_x() == 0) {
      tile::produce_tiles<C.scheduler, C.num_consumers, kTileSlots, T.ragged>(
          context, params, Loader<T, C>{context, k_odd}, ptx::ctaid_x(), ptx::nctaid_x());
    }
  } else {
    ptx::setmaxnreg_inc<consumer_registers(C)>();
    Consumer<T, C>(context, warp / 4 - 1).run();
  }
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8(const __grid_constant__ Params<ptx::TensorMap> params) {
  attend<T, C>(params, nullptr);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_vdn(const __grid_constant__ TransposedParams<ptx::TensorMap> params) {
  attend<T, C>(params.plain, &params.k_odd);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_scored(const __grid_constant__ Scored<Params<ptx::TensorMap>> params) {
  attend<T, C>(params.plain, nullptr, &params.score);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_vdn_scored(const __grid_constant__ Scored<TransposedParams<ptx::TensorMap>> params) {
  attend<T, C>(params.plain.plain, &params.plain.k_odd, &params.score);
}

// Functions of the user's own, with built-in ones or without.
template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_expressed(const __grid_constant__ Expressed<Params<ptx::TensorMap>> params) {
  attend<T, C>(params.plain, nullptr, &params.score, nullptr, &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_vdn_expressed(const __grid_constant__ Expressed<TransposedParams<ptx::TensorMap>> params) {
  attend<T, C>(params.plain.plain, &params.plain.k_odd, &params.score, nullptr, &params.expression);
}

// Sequences of different lengths, with a function of scores or without.
template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_ragged(const __grid_constant__ Ragged<Params<ptx::TensorMap>> params) {
  attend<T, C>(params.plain, nullptr, &params.score, &params.ragged);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<Params<ptx::TensorMap>>> params) {
  attend<T, C>(params.all.plain, nullptr, &params.all.score, &params.all.ragged, &params.expression);
}

// As forward_fp8_ragged, with K and V in pages.
template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_paged(const __grid_constant__ PagedKernelParams params) {
  attend<T, C>(params.plain.plain, nullptr, &params.score, &params.ragged, nullptr, &params);
}

}  // namespace flashcore::sm90_fp8_fwd
