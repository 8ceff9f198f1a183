#pragma once
// Special registers. PTX ISA, "Special Registers".

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// Read anew at every call rather than held in a register.
FC_DEVICE int tid_x() {
  int tid;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(tid));
  return tid;
}
FC_DEVICE int ctaid_x() { return static_cast<int>(blockIdx.x); }
FC_DEVICE int ctaid_y() { return static_cast<int>(blockIdx.y); }
FC_DEVICE int ctaid_z() { return static_cast<int>(blockIdx.z); }
FC_DEVICE int nctaid_x() { return static_cast<int>(gridDim.x); }
FC_DEVICE int nctaid_z() { return static_cast<int>(gridDim.z); }

}  // namespace flashcore::ptx
