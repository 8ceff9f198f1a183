#pragma once
// PTX ISA, "atom".

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// Adds to a global counter; returns what it held before. Relaxed: it hands out numbers and orders nothing else.
FC_DEVICE unsigned atomic_add_global(unsigned* address, unsigned value) {
  unsigned old;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(address), "r"(value) : "memory");
  return old;
}

// The same, with release and acquire: what came before the add in one thread is seen by threads that add later.
FC_DEVICE unsigned atomic_add_global_acq_rel(unsigned* address, unsigned value) {
  unsigned old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(address), "r"(value) : "memory");
  return old;
}

}  // namespace flashcore::ptx
