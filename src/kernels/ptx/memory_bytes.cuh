#pragma once
// Loads and stores of single bytes in global memory. PTX ISA, "ld", "st". Apart from memory.cuh, which every 16-bit
// kernel is compiled from.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE unsigned ld_global_u8(const unsigned char* address) {
  unsigned value;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}
FC_DEVICE void st_global_u8(unsigned char* address, unsigned value) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

}  // namespace flashcore::ptx
