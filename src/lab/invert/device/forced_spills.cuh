#pragma once
// Registers for 64 a thread where the launch allows so few, and none handed from warpgroup to warpgroup: their pool is
// what the launch was given.

#include "kernels/ptx/common.cuh"

#define FC_PLANTED_KERNEL(threads, min_ctas) FC_KERNEL(threads, 65536 / ((threads)*64))

namespace flashcore::planted {

template <int kRegisters>
FC_DEVICE void setmaxnreg_inc() {}
template <int kRegisters>
FC_DEVICE void setmaxnreg_dec() {}

}  // namespace flashcore::planted
