#pragma once
// Thread block clusters and distributed shared memory. PTX ISA, "barrier.cluster", "mapa", "st.async". A kernel that
// was launched without clusters is a cluster of one CTA.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// Of this CTA within its cluster.
FC_DEVICE int cluster_ctarank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Where the CTA `rank` of the cluster has what this CTA has at `address`: an address of the shared::cluster window.
FC_DEVICE SharedAddress mapa(SharedAddress address, int rank) {
  SharedAddress remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// Every thread of every CTA of the cluster arrives and waits in turn. `relaxed` orders no memory: enough where a fence
// (fence_mbarrier_init) does, and it does not hold up what follows behind loads in flight.
FC_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
FC_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
FC_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// 16 bytes to a CTA of the cluster, counted by the mbarrier there; both addresses from mapa and of the same CTA, which
// must have started and not yet ended. The barrier's phase ends once the bytes it expects can be read.
FC_DEVICE void st_async_v4(SharedAddress remote, float a, float b, float c, float d, SharedAddress remote_barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote),
      "f"(a), "f"(b), "f"(c), "f"(d), "r"(remote_barrier)
      : "memory");
}

// As mbarrier_wait, for what other CTAs of the cluster have written.
FC_DEVICE void mbarrier_wait_cluster(SharedAddress barrier, int parity) {
  unsigned done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!done);
}

}  // namespace flashcore::ptx
