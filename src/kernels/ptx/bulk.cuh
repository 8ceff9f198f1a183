#pragma once
// Asynchronous copies of whole lines of bytes, and tiles for several CTAs. PTX ISA, "cp.async.bulk",
// "cp.async.bulk.tensor" (.multicast::cluster), "cp.async.bulk.wait_group".

#include "kernels/ptx/common.cuh"
#include "kernels/ptx/tma.cuh"

namespace flashcore::ptx {

// `bytes` from global to the CTA's own shared memory; counted by `barrier`, which must expect them. Addresses and size
// multiples of 16.
FC_DEVICE void bulk_load(SharedAddress destination, const void* source, int bytes, SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

// The other way, as part of the thread's open group (bulk_commit, bulk_wait). What was written to shared memory by
// ordinary stores needs fence_proxy_async() in each writing thread and a barrier before.
FC_DEVICE void bulk_store(void* destination, SharedAddress source, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination), "r"(source), "r"(bytes)
               : "memory");
}

// Until at most kPending of the thread's store groups are unfinished: the rest can be read from global memory by the
// thread. bulk_wait_read (tma.cuh) waits only until shared memory may be overwritten.
template <int kPending>
FC_DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// tma_load_4d into every CTA of the cluster whose rank's bit is in `ctas`: to the same place within each, counted by
// the barrier at the same place, which must expect the box's bytes. Those CTAs must have started.
FC_DEVICE void tma_load_4d_multicast(SharedAddress destination, const TensorMap& map, SharedAddress barrier, int column,
                                     int row, int head, int batch, unsigned short ctas) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
      "{%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "h"(ctas)
      : "memory");
}

}  // namespace flashcore::ptx
