#pragma once
// Plain loads and stores of global and shared memory. PTX ISA, "ld", "st". Kernels use these and nothing else, so that
// an emulator sees every access; they inline to the same instructions.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

struct Vector4 {
  unsigned x, y, z, w;
};

FC_DEVICE float ld_global_f32(const float* address) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(address));
  return value;
}
FC_DEVICE unsigned short ld_global_u16(const unsigned short* address) {
  unsigned short value;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(value) : "l"(address));
  return value;
}
FC_DEVICE void st_global_f32(float* address, float value) {
  asm volatile("st.global.f32 [%0], %1;" ::"l"(address), "f"(value) : "memory");
}
FC_DEVICE void st_global_u16(unsigned short* address, unsigned short value) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "h"(value) : "memory");
}
// 16 bytes; `address` a multiple of 16.
FC_DEVICE void st_global_v4(void* address, Vector4 value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}

FC_DEVICE Vector4 ld_global_v4(const void* address) {
  Vector4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

FC_DEVICE void st_shared_u32(SharedAddress address, unsigned value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
FC_DEVICE unsigned ld_shared_u32(SharedAddress address) {
  unsigned value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
// 16 bytes; `address` a multiple of 16.
FC_DEVICE void st_shared_v4(SharedAddress address, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
FC_DEVICE void st_global_u32(unsigned* address, unsigned value) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
// 16 bytes; `address` a multiple of 16.
FC_DEVICE Vector4 ld_shared_v4(SharedAddress address) {
  Vector4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address));
  return value;
}

}  // namespace flashcore::ptx
