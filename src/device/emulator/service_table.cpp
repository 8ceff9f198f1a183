#include "device/emulator/service_table.h"

#include "device/emulator/instructions.h"

namespace flashcore::emulator {

const Services& service_table() {
  static const Services table = {
      .tid = tid,
      .ctaid = ctaid,
      .nctaid = nctaid,
      .load_global = load_global,
      .store_global = store_global,
      .shared_base = shared_base,
      .load_shared = load_shared,
      .store_shared = store_shared,
      .cp_async = cp_async,
      .cp_async_commit = cp_async_commit,
      .cp_async_wait = cp_async_wait,
      .ldmatrix = ldmatrix,
      .mma_m16n8k16 = mma_m16n8k16,
      .shuffle_xor = shuffle_xor,
      .bar_warp_sync = bar_warp_sync,
      .stmatrix = stmatrix,
      .shuffle_index = shuffle_index,
      .vote_any = vote_any,
      .setmaxnreg = setmaxnreg,
      .bar_sync = bar_sync,
      .bar_arrive = bar_arrive,
      .mbarrier_init = mbarrier_init,
      .mbarrier_arrive = mbarrier_arrive,
      .mbarrier_try_wait = mbarrier_try_wait,
      .mbarrier_wait = mbarrier_wait,
      .fence_mbarrier_init = fence_mbarrier_init,
      .fence_proxy_async = fence_proxy_async,
      .mbarrier_wait_cluster = mbarrier_wait_cluster,
      .cluster_ctarank = cluster_ctarank,
      .mapa = mapa,
      .cluster_arrive = cluster_arrive,
      .cluster_wait = cluster_wait,
      .st_async = st_async,
      .griddepcontrol_wait = griddepcontrol_wait,
      .griddepcontrol_launch_dependents = griddepcontrol_launch_dependents,
      .tma_prefetch = tma_prefetch,
      .tma_load = tma_load,
      .tma_store = tma_store,
      .bulk_commit = bulk_commit,
      .bulk_wait_read = bulk_wait_read,
      .wgmma = wgmma,
      .wgmma_fence = wgmma_fence,
      .wgmma_commit = wgmma_commit,
      .wgmma_wait = wgmma_wait,
      .atomic_add_global = atomic_add_global,
      .ex2 = ex2,
      .lg2 = lg2,
  };
  return table;
}

}  // namespace flashcore::emulator
