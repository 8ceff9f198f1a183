#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE unsigned ld_cluster_u32(SharedAddress remote) {
  unsigned value;
  flashcore_services->load_cluster(remote, &value, 4);
  return value;
}
FC_DEVICE float ld_cluster_f32(SharedAddress remote) {
  float value;
  flashcore_services->load_cluster(remote, &value, 4);
  return value;
}
FC_DEVICE void st_cluster_u32(SharedAddress remote, unsigned value) {
  flashcore_services->store_cluster(remote, &value, 4);
}
FC_DEVICE void st_cluster_v4(SharedAddress remote, float a, float b, float c, float d) {
  const float values[4] = {a, b, c, d};
  flashcore_services->store_cluster(remote, values, 16);
}
FC_DEVICE void mbarrier_arrive_cluster(SharedAddress remote_barrier) {
  flashcore_services->mbarrier_arrive_cluster(remote_barrier);
}
FC_DEVICE void mbarrier_arrive_cluster_relaxed(SharedAddress remote_barrier) {
  flashcore_services->mbarrier_arrive_cluster_relaxed(remote_barrier);
}

}  // namespace flashcore::ptx
