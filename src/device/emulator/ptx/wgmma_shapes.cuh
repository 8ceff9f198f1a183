#pragma once
// Every width of wgmma at once: the accumulator's size is the shape.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

template <bool kBf16, int kCount>
FC_DEVICE void wgmma_ss(float (&d)[kCount], unsigned long long a, unsigned long long b, int accumulate) {
  constexpr auto kElement = kBf16 ? emulator::MatrixElement::kBf16 : emulator::MatrixElement::kF16;
  flashcore_services->wgmma({d, nullptr, a, b, 2 * kCount, kElement, false, accumulate != 0});
}
template <bool kBf16, bool kTransposeB, int kCount>
FC_DEVICE void wgmma_rs(float (&d)[kCount], const unsigned (&a)[4], unsigned long long b, int accumulate) {
  constexpr auto kElement = kBf16 ? emulator::MatrixElement::kBf16 : emulator::MatrixElement::kF16;
  flashcore_services->wgmma({d, a, 0, b, 2 * kCount, kElement, kTransposeB, accumulate != 0});
}

}  // namespace flashcore::ptx
