#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE void bar_sync() { flashcore_services->bar_sync(0, 0); }
FC_DEVICE void bar_warp_sync() { flashcore_services->bar_warp_sync(); }

}  // namespace flashcore::ptx
