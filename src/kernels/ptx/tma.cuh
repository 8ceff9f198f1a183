#pragma once
// The tensor memory accelerator: tiles of tensors between global and shared memory. PTX ISA, "cp.async.bulk.tensor".

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// An encoded CUtensorMap, handed to the kernel by value as a __grid_constant__ parameter.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

FC_DEVICE void prefetch_tensormap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Loads the map's box at (column, row, head, batch); elements outside the tensor become zero and count as bytes all the
// same. Completes on `barrier`, which must expect the box's bytes.
FC_DEVICE void tma_load_4d(SharedAddress destination, const TensorMap& map, SharedAddress barrier, int column, int row,
                           int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

// Stores the box; elements outside the tensor are left out. What was written to shared memory by ordinary stores needs
// fence_proxy_async() in each writing thread and a barrier before.
FC_DEVICE void tma_store_4d(const TensorMap& map, SharedAddress source, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(source), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}

FC_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most kPending of the thread's store groups still have to read shared memory.
template <int kPending>
FC_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Orders ordinary shared-memory accesses before those of the asynchronous proxy (TMA, wgmma).
FC_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace flashcore::ptx
