#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE void mbarrier_init(SharedAddress barrier, int arrivals) {
  flashcore_services->mbarrier_init(barrier, arrivals);
}
FC_DEVICE void fence_mbarrier_init() { flashcore_services->fence_mbarrier_init(); }
FC_DEVICE void mbarrier_arrive(SharedAddress barrier) { flashcore_services->mbarrier_arrive(barrier, 0); }
FC_DEVICE void mbarrier_arrive_expect_tx(SharedAddress barrier, int bytes) {
  flashcore_services->mbarrier_arrive(barrier, bytes);
}
FC_DEVICE bool mbarrier_try_wait(SharedAddress barrier, int parity) {
  return flashcore_services->mbarrier_try_wait(barrier, parity);
}
FC_DEVICE void mbarrier_wait(SharedAddress barrier, int parity) { flashcore_services->mbarrier_wait(barrier, parity); }

}  // namespace flashcore::ptx
