#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE float ld_global_nc_f32(const float* address) {
  float value;
  flashcore_services->load_global(address, &value, 4);
  return value;
}
FC_DEVICE unsigned ld_global_nc_u8(const unsigned char* address) {
  unsigned char value;
  flashcore_services->load_global(address, &value, 1);
  return value;
}

}  // namespace flashcore::ptx
