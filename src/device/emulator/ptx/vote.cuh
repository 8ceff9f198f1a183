#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE bool vote_all(bool condition) { return flashcore_services->vote_ballot(condition) == 0xffffffffu; }
FC_DEVICE unsigned vote_ballot(bool condition) { return flashcore_services->vote_ballot(condition); }
FC_DEVICE float shfl_up(float value, int delta) {
  return __builtin_bit_cast(float, flashcore_services->shuffle_by(__builtin_bit_cast(unsigned, value), -delta));
}
FC_DEVICE float shfl_down(float value, int delta) {
  return __builtin_bit_cast(float, flashcore_services->shuffle_by(__builtin_bit_cast(unsigned, value), delta));
}
FC_DEVICE bool elect() { return flashcore_services->elect(); }

}  // namespace flashcore::ptx
