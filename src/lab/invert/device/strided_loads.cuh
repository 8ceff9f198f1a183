#pragma once
// Loads in pieces of a quarter or a half: neighbouring lanes' pieces do not touch, so that each request moves as many
// sectors as the whole load did.

#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/memory_bytes.cuh"

namespace flashcore::planted {

FC_DEVICE ptx::Vector4 ld_global_v4(const void* address) {
  const float* words = static_cast<const float*>(address);
  return {ptx::bits_of_float(ptx::ld_global_f32(words)), ptx::bits_of_float(ptx::ld_global_f32(words + 1)),
          ptx::bits_of_float(ptx::ld_global_f32(words + 2)), ptx::bits_of_float(ptx::ld_global_f32(words + 3))};
}
FC_DEVICE unsigned short ld_global_u16(const unsigned short* address) {
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(address);
  return static_cast<unsigned short>(ptx::ld_global_u8(bytes) | ptx::ld_global_u8(bytes + 1) << 8);
}

}  // namespace flashcore::planted
