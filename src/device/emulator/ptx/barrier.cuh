#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE void bar_sync() { flashcore_services->bar_sync(0, 0); }
FC_DEVICE void bar_warp_sync() { flashcore_services->bar_warp_sync(); }
FC_DEVICE void bar_sync(int id, int threads) { flashcore_services->bar_sync(id, threads); }
FC_DEVICE void bar_arrive(int id, int threads) { flashcore_services->bar_arrive(id, threads); }

}  // namespace flashcore::ptx
