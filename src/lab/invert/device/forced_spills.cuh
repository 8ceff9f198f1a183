#pragma once
// Launch bounds that leave FC_REGISTERS registers a thread, or as many more as whole CTAs allow, and none handed from
// warpgroup to warpgroup: their pool is what the launch was given.

#include "kernels/ptx/common.cuh"

#define FC_PLANTED_KERNEL(threads, min_ctas) FC_KERNEL(threads, 65536 / ((threads)*FC_REGISTERS))

namespace flashcore::planted {

template <int kRegisters>
FC_DEVICE void setmaxnreg_inc() {}
template <int kRegisters>
FC_DEVICE void setmaxnreg_dec() {}

}  // namespace flashcore::planted
