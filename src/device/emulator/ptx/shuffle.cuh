#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE float shfl_bfly(float value, int mask) {
  return __builtin_bit_cast(float, flashcore_services->shuffle_xor(__builtin_bit_cast(unsigned, value), mask));
}

}  // namespace flashcore::ptx
