#pragma once
// Forward attention of few query rows against many keys, as in decoding, where time is reading K and V: the blocks of
// all sequences and key heads are dealt out evenly to as many CTAs as are resident, each of which reads its own without
// a pause, across the borders of heads. Tiles that several CTAs share are merged by the last of them. The idea of
// dealing out work below the size of a tile is Stream-K's (Osama et al., 2023).

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sm90_decode_fwd/config.h"
#include "kernels/sm90_decode_fwd/consumer.cuh"
#include "kernels/sm90_decode_fwd/params.h"
#include "kernels/sm90_decode_fwd/producer.cuh"

namespace flashcore::sm90_decode_fwd {

template <Traits T, Config C>
FC_DEVICE void init_barriers(const Context<T, C>& context) {
  for (int stage = 0; stage < kQStages; ++stage)
    ptx::mbarrier_init(context.q_full(stage), 1), ptx::mbarrier_init(context.q_empty(stage), 4);  // warps
  for (int stage = 0; stage < C.num_stages; ++stage) {
    ptx::mbarrier_init(context.k_full(stage), 1), ptx::mbarrier_init(context.k_empty(stage), 4);
    ptx::mbarrier_init(context.v_full(stage), 1), ptx::mbarrier_init(context.v_empty(stage), 4);
  }
  ptx::fence_mbarrier_init();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward(const __grid_constant__ Params<ptx::TensorMap> params) {
  const Context<T, C> context(params);
  if (ptx::tid_x() == 128) {
    ptx::prefetch_tensormap(params.q);
    ptx::prefetch_tensormap(params.k);
    ptx::prefetch_tensormap(params.v);
    init_barriers(context);
  }
  ptx::bar_sync();
  if (ptx::tid_x() >= 128) {
    if (ptx::tid_x() == 128) Producer<T, C>{context}.run();
  } else {
    Consumer<T, C>(context).run();
  }
}

}  // namespace flashcore::sm90_decode_fwd
