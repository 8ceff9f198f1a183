#pragma once
// Plain accesses to the shared memory of another CTA of the cluster: PTX ISA, "ld", "st" (.shared::cluster) and
// "mbarrier.arrive". Addresses from mapa; the CTA must have started and not yet ended. st_async_v4 (cluster.cuh) needs
// no barrier of its own to be waited for.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE unsigned ld_cluster_u32(SharedAddress remote) {
  unsigned value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(remote) : "memory");
  return value;
}
FC_DEVICE float ld_cluster_f32(SharedAddress remote) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
  return value;
}
FC_DEVICE void st_cluster_u32(SharedAddress remote, unsigned value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(remote), "r"(value) : "memory");
}
// 16 bytes; `remote` a multiple of 16.
FC_DEVICE void st_cluster_v4(SharedAddress remote, float a, float b, float c, float d) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(remote), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

// One arrival at an mbarrier of any CTA of the cluster; whoever waits with mbarrier_wait_cluster sees what the thread
// did before.
FC_DEVICE void mbarrier_arrive_cluster(SharedAddress remote_barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote_barrier) : "memory");
}

// The same, but orders no memory: enough where what the thread did has completed, as TMA and wgmma that it waited for,
// and what follows is asynchronous too. The release above is a fence for the whole GPU (MEMBAR.ALL.GPU), some 1000
// clocks.
FC_DEVICE void mbarrier_arrive_cluster_relaxed(SharedAddress remote_barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote_barrier) : "memory");
}

}  // namespace flashcore::ptx
