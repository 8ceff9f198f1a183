#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE int cluster_ctarank() { return flashcore_services->cluster_ctarank(); }
FC_DEVICE SharedAddress mapa(SharedAddress address, int rank) { return flashcore_services->mapa(address, rank); }
FC_DEVICE void cluster_arrive_relaxed() { flashcore_services->cluster_arrive(false); }
FC_DEVICE void cluster_arrive() { flashcore_services->cluster_arrive(true); }
FC_DEVICE void cluster_wait() { flashcore_services->cluster_wait(); }
FC_DEVICE void st_async_v4(SharedAddress remote, float a, float b, float c, float d, SharedAddress remote_barrier) {
  const float values[4] = {a, b, c, d};
  flashcore_services->st_async(remote, values, 16, remote_barrier);
}
FC_DEVICE void mbarrier_wait_cluster(SharedAddress barrier, int parity) {
  flashcore_services->mbarrier_wait_cluster(barrier, parity);
}

}  // namespace flashcore::ptx
