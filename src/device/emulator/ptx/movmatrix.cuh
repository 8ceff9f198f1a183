#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE unsigned movmatrix_trans(unsigned tile) {
  const int lane = flashcore_services->tid(0) % 32, from = lane % 4 * 8 + lane / 8, shift = lane / 4 % 2 * 16;
  const unsigned first = flashcore_services->shuffle_index(tile, from) >> shift;
  const unsigned second = flashcore_services->shuffle_index(tile, from + 4) >> shift;
  return (first & 0xffffu) | second << 16;
}

}  // namespace flashcore::ptx
