#pragma once
// PTX ISA, "Special Registers: %globaltimer".

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// Nanoseconds since some time, the same for the whole GPU; it moves in steps of up to a microsecond.
FC_DEVICE unsigned long long globaltimer() {
  unsigned long long nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds)::"memory");
  return nanoseconds;
}

}  // namespace flashcore::ptx
