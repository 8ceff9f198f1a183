#pragma once
// PTX ISA, "prmt", default mode.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// Four of the eight bytes of {b, a}, the lowest of a being number 0: a hexadecimal digit of `selector` for each, the
// lowest for the lowest. A digit above 7 gives the sign of byte (digit - 8), eight times.
FC_DEVICE unsigned prmt(unsigned a, unsigned b, unsigned selector) {
  unsigned permuted;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(permuted) : "r"(a), "r"(b), "r"(selector));
  return permuted;
}

}  // namespace flashcore::ptx
