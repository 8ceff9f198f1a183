#pragma once
// Loads of what nobody writes while the kernel runs. PTX ISA, "ld.global.nc". Unlike those of memory.cuh the compiler
// may merge and move them: an element that many pairs share is loaded once.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE float ld_global_nc_f32(const float* address) {
  float value;
  asm("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(address));
  return value;
}
FC_DEVICE unsigned ld_global_nc_u8(const unsigned char* address) {
  unsigned value;
  asm("ld.global.nc.u8 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}

}  // namespace flashcore::ptx
