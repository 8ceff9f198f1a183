#pragma once
#include "kernels/ptx/common.cuh"
#include "kernels/ptx/tma.cuh"

namespace flashcore::ptx {

FC_DEVICE void bulk_load(SharedAddress destination, const void* source, int bytes, SharedAddress barrier) {
  flashcore_services->bulk_load(destination, source, bytes, barrier);
}
FC_DEVICE void bulk_store(void* destination, SharedAddress source, int bytes) {
  flashcore_services->bulk_store(destination, source, bytes);
}
template <int kPending>
FC_DEVICE void bulk_wait() {
  flashcore_services->bulk_wait(kPending);
}
FC_DEVICE void tma_load_4d_multicast(SharedAddress destination, const TensorMap& map, SharedAddress barrier, int column,
                                     int row, int head, int batch, unsigned short ctas) {
  flashcore_services->tma_load_multicast(destination, &map, barrier, {column, row, head, batch}, ctas);
}

}  // namespace flashcore::ptx
