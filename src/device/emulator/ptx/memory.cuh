#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

struct Vector4 {
  unsigned x, y, z, w;
};

FC_DEVICE float ld_global_f32(const float* address) {
  float value;
  flashcore_services->load_global(address, &value, 4);
  return value;
}
FC_DEVICE unsigned short ld_global_u16(const unsigned short* address) {
  unsigned short value;
  flashcore_services->load_global(address, &value, 2);
  return value;
}
FC_DEVICE void st_global_f32(float* address, float value) { flashcore_services->store_global(address, &value, 4); }
FC_DEVICE void st_global_u16(unsigned short* address, unsigned short value) {
  flashcore_services->store_global(address, &value, 2);
}
FC_DEVICE void st_global_v4(void* address, Vector4 value) { flashcore_services->store_global(address, &value, 16); }

FC_DEVICE Vector4 ld_global_v4(const void* address) {
  Vector4 value;
  flashcore_services->load_global(address, &value, 16);
  return value;
}

FC_DEVICE void st_shared_u32(SharedAddress address, unsigned value) {
  flashcore_services->store_shared(address, &value, 4);
}
FC_DEVICE unsigned ld_shared_u32(SharedAddress address) {
  unsigned value;
  flashcore_services->load_shared(address, &value, 4);
  return value;
}
FC_DEVICE void st_shared_v4(SharedAddress address, float a, float b, float c, float d) {
  const float values[4] = {a, b, c, d};
  flashcore_services->store_shared(address, values, 16);
}
FC_DEVICE void st_global_u32(unsigned* address, unsigned value) {
  flashcore_services->store_global(address, &value, 4);
}
FC_DEVICE Vector4 ld_shared_v4(SharedAddress address) {
  Vector4 value;
  flashcore_services->load_shared(address, &value, 16);
  return value;
}

}  // namespace flashcore::ptx
