#pragma once
// PTX ISA, "atom": fp32 and shared memory. All relaxed: they order nothing else. Returned is what stood there before.
// Sums of floats depend on the order in which threads come.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE float atomic_add_global_f32(float* address, float value) {
  float old;
  asm volatile("atom.relaxed.gpu.global.add.f32 %0, [%1], %2;" : "=f"(old) : "l"(address), "f"(value) : "memory");
  return old;
}

FC_DEVICE unsigned atomic_add_shared_u32(SharedAddress address, unsigned value) {
  unsigned old;
  asm volatile("atom.relaxed.cta.shared.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(address), "r"(value) : "memory");
  return old;
}

FC_DEVICE float atomic_add_shared_f32(SharedAddress address, float value) {
  float old;
  asm volatile("atom.relaxed.cta.shared.add.f32 %0, [%1], %2;" : "=f"(old) : "r"(address), "f"(value) : "memory");
  return old;
}

}  // namespace flashcore::ptx
