#pragma once
// Barriers in shared memory that count arrivals and bytes. PTX ISA, "mbarrier". A barrier is 8 bytes, 8-byte aligned.
// Its phase ends when all expected arrivals and bytes have come; parity 0 is the first phase.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE void mbarrier_init(SharedAddress barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the inits visible to the asynchronous proxy and, before a cluster barrier, to the cluster.
FC_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// One arrival; orders the thread's earlier accesses before the end of the phase.
FC_DEVICE void mbarrier_arrive(SharedAddress barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival that also adds `bytes` to what the phase waits for.
FC_DEVICE void mbarrier_arrive_expect_tx(SharedAddress barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

FC_DEVICE bool mbarrier_try_wait(SharedAddress barrier, int parity) {
  unsigned done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done;
}

// Returns once the phase of that parity has ended. No trap in the loop: ptxas drops the register budget at one (C7512).
FC_DEVICE void mbarrier_wait(SharedAddress barrier, int parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

}  // namespace flashcore::ptx
