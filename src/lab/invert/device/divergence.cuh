#pragma once
// Odd lanes after even ones, at each exponential, each copy and each plain load of shared memory.

#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/memory_bytes.cuh"
#include "kernels/ptx/special_registers.cuh"

namespace flashcore::planted {

FC_DEVICE bool is_odd_lane() { return ptx::opaque(ptx::tid_x()) & 1; }

// A loop and not two branches: the compiler would make one of two that do the same.
FC_DEVICE float ex2(float x) {
  const bool odd = is_odd_lane();
  float y = 0.0f;
#pragma unroll 1
  for (int part = 0; part < ptx::opaque(2); ++part)
    if (part == odd) y = ptx::ex2(ptx::float_of_bits(ptx::opaque(ptx::bits_of_float(x))));
  return y;
}
FC_DEVICE void cp_async_16(ptx::SharedAddress destination, const void* source, int source_bytes) {
  if (is_odd_lane()) ptx::cp_async_16(destination, source, ptx::opaque(source_bytes));
  else ptx::cp_async_16(destination, source, source_bytes);
}
FC_DEVICE ptx::Vector4 ld_global_v4(const void* address) {
  if (is_odd_lane()) return ptx::ld_global_v4(ptx::opaque(address));
  return ptx::ld_global_v4(address);
}
FC_DEVICE unsigned short ld_global_u16(const unsigned short* address) {
  if (is_odd_lane()) return ptx::ld_global_u16(ptx::opaque(address));
  return ptx::ld_global_u16(address);
}
FC_DEVICE unsigned ld_global_u8(const unsigned char* address) {
  if (is_odd_lane()) return ptx::ld_global_u8(ptx::opaque(address));
  return ptx::ld_global_u8(address);
}
FC_DEVICE ptx::Vector4 ld_shared_v4(ptx::SharedAddress address) {
  if (is_odd_lane()) return ptx::ld_shared_v4(ptx::opaque(address));
  return ptx::ld_shared_v4(address);
}

}  // namespace flashcore::planted
