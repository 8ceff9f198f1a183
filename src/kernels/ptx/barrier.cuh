#pragma once
// PTX ISA, "Parallel Synchronization and Communication Instructions".

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// bar.sync 0: every thread of the CTA; orders their shared-memory accesses.
FC_DEVICE void bar_sync() { asm volatile("bar.sync 0;" ::: "memory"); }

// bar.warp.sync over the full warp: orders its lanes' shared-memory accesses.
FC_DEVICE void bar_warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// Named barrier `id` (1 to 15) over `threads` threads, a multiple of 32: sync waits, arrive only counts.
FC_DEVICE void bar_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
FC_DEVICE void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace flashcore::ptx
