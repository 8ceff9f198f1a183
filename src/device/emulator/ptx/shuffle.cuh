#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE float shfl_bfly(float value, int mask) {
  return __builtin_bit_cast(float, flashcore_services->shuffle_xor(__builtin_bit_cast(unsigned, value), mask));
}
FC_DEVICE bool vote_any(bool condition) { return flashcore_services->vote_any(condition); }
FC_DEVICE int shfl_idx(int value, int source) {
  return static_cast<int>(flashcore_services->shuffle_index(static_cast<unsigned>(value), source));
}

}  // namespace flashcore::ptx
