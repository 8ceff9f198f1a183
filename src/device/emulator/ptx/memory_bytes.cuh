#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE unsigned ld_global_u8(const unsigned char* address) {
  unsigned char value;
  flashcore_services->load_global(address, &value, 1);
  return value;
}
FC_DEVICE void st_global_u8(unsigned char* address, unsigned value) {
  const auto byte = static_cast<unsigned char>(value);
  flashcore_services->store_global(address, &byte, 1);
}

}  // namespace flashcore::ptx
