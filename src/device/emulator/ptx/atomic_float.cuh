#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE float atomic_add_global_f32(float* address, float value) {
  return flashcore_services->atomic_add_global_f32(address, value);
}
FC_DEVICE unsigned atomic_add_shared_u32(SharedAddress address, unsigned value) {
  return flashcore_services->atomic_add_shared_u32(address, value);
}
FC_DEVICE float atomic_add_shared_f32(SharedAddress address, float value) {
  return flashcore_services->atomic_add_shared_f32(address, value);
}

}  // namespace flashcore::ptx
