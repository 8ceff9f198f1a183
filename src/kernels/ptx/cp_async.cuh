#pragma once
// Asynchronous copies of sm_80. PTX ISA, "cp.async", "cp.async.commit_group", "cp.async.wait_group".

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// 16 bytes from global to shared memory, past L1. Both addresses multiples of 16. `source_bytes` 16 copies; 0 reads
// nothing and writes zeros, so `source` need not be valid then.
FC_DEVICE void cp_async_16(SharedAddress destination, const void* source, int source_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(source_bytes)
               : "memory");
}

// Closes the thread's current group of copies (an empty one is fine).
FC_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of the thread's most recent groups are unfinished. Other threads' copies need a barrier
// after it.
template <int kPending>
FC_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace flashcore::ptx
