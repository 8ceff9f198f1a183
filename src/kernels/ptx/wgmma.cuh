#pragma once
// Warpgroup matrix multiply. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". All four warps of a warpgroup
// execute each instruction; the accumulator of lane l of warp w holds rows 16w + l/4 (+8), columns 8i + 2(l%4) (+1).

#include "kernels/ptx/common.cuh"
#include "kernels/ptx/wgmma_shapes.cuh"
#include "kernels/ptx/wgmma_x4_shapes.cuh"

namespace flashcore::ptx {

// Orders register and shared-memory writes before the wgmmas that follow.
FC_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FC_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
FC_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps reads of accumulators behind the wait, and writes of operands before the instruction: the compiler does not
// know that wgmma works on registers after it was issued.
template <int kCount>
FC_DEVICE void warpgroup_fence_operand(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int kCount>
FC_DEVICE void warpgroup_fence_operand(unsigned (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

// Shared-memory matrix descriptor, 128-byte swizzle, 8-row groups 1024 bytes apart (stride offset). `leading_bytes`:
// K-major operands ignore it; for an MN-major one, the distance between blocks of 64 columns. Only the low word differs
// between tiles, and moving by whole 16-byte units is one addition to it: fields do not carry into each other below 256
// KB.
struct WgmmaDescriptor {
  unsigned low;

  FC_DEVICE static WgmmaDescriptor of(SharedAddress address, int leading_bytes) {
    return {((address & 0x3ffff) >> 4) | (static_cast<unsigned>(leading_bytes) >> 4 << 16)};
  }
  FC_DEVICE WgmmaDescriptor advanced(int bytes) const { return {low + bytes / 16}; }
  FC_DEVICE unsigned long long word() const {
    constexpr unsigned long long kHigh = 0x40000040ull << 32;  // swizzle mode 1 (128 bytes), stride offset 1024 / 16
    return kHigh | low;
  }
};

}  // namespace flashcore::ptx
