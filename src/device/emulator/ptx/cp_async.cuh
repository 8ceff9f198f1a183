#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE void cp_async_16(SharedAddress destination, const void* source, int source_bytes) {
  flashcore_services->cp_async(destination, source, source_bytes);
}
FC_DEVICE void cp_async_commit() { flashcore_services->cp_async_commit(); }

template <int kPending>
FC_DEVICE void cp_async_wait() {
  flashcore_services->cp_async_wait(kPending);
}

}  // namespace flashcore::ptx
