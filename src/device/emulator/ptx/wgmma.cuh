#pragma once
#include "kernels/ptx/common.cuh"
#include "kernels/ptx/wgmma_shapes.cuh"

namespace flashcore::ptx {

FC_DEVICE void wgmma_fence() { flashcore_services->wgmma_fence(); }
FC_DEVICE void wgmma_commit() { flashcore_services->wgmma_commit(); }
template <int kPending>
FC_DEVICE void wgmma_wait() {
  flashcore_services->wgmma_wait(kPending);
}

// Accumulators live in memory that the engine writes at the wait: the host compiler reads them anew.
template <int kCount>
FC_DEVICE void warpgroup_fence_operand(float (&values)[kCount]) {
  __asm__ volatile("" : : "r"(&values) : "memory");
}
template <int kCount>
FC_DEVICE void warpgroup_fence_operand(unsigned (&values)[kCount]) {
  __asm__ volatile("" : : "r"(&values) : "memory");
}

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

#include "kernels/ptx/wgmma_x4_shapes.cuh"  // uses the descriptor
