#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

struct alignas(64) TensorMap {
  unsigned long long words[16];
};

FC_DEVICE void prefetch_tensormap(const TensorMap& map) { flashcore_services->tma_prefetch(&map); }
FC_DEVICE void tma_load_4d(SharedAddress destination, const TensorMap& map, SharedAddress barrier, int column, int row,
                           int head, int batch) {
  flashcore_services->tma_load(destination, &map, barrier, {column, row, head, batch});
}
FC_DEVICE void tma_store_4d(const TensorMap& map, SharedAddress source, int column, int row, int head, int batch) {
  flashcore_services->tma_store(&map, source, {column, row, head, batch});
}
FC_DEVICE void bulk_commit() { flashcore_services->bulk_commit(); }
template <int kPending>
FC_DEVICE void bulk_wait_read() {
  flashcore_services->bulk_wait_read(kPending);
}
FC_DEVICE void fence_proxy_async() { flashcore_services->fence_proxy_async(); }

}  // namespace flashcore::ptx
