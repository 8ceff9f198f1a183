#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE unsigned atomic_max_global(unsigned* address, unsigned value) {
  return flashcore_services->atomic_max_global(address, value);
}

}  // namespace flashcore::ptx
