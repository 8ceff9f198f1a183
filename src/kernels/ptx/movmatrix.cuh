#pragma once
// PTX ISA, "movmatrix". An 8×8 tile of 16-bit elements as ldmatrix leaves it, transposed: lane l gives elements (l/4,
// 2(l%4)) and the next, and receives elements (2(l%4), l/4) and (2(l%4) + 1, l/4).

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE unsigned movmatrix_trans(unsigned tile) {
  unsigned transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(tile));
  return transposed;
}

}  // namespace flashcore::ptx
