#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE unsigned atomic_add_global(unsigned* address, unsigned value) {
  return flashcore_services->atomic_add_global(address, value);
}
FC_DEVICE unsigned atomic_add_global_acq_rel(unsigned* address, unsigned value) {
  return flashcore_services->atomic_add_global_acq_rel(address, value);
}

}  // namespace flashcore::ptx
