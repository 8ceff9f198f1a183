#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

template <bool kE5m2, int kCount>
FC_DEVICE void wgmma_fp8_ss(float (&d)[kCount], unsigned long long a, unsigned long long b, int accumulate) {
  constexpr auto kElement = kE5m2 ? emulator::MatrixElement::kE5m2 : emulator::MatrixElement::kE4m3;
  flashcore_services->wgmma({d, nullptr, a, b, 2 * kCount, kElement, false, accumulate != 0});
}
template <bool kE5m2, bool kE5m2OfB = kE5m2, int kCount>
FC_DEVICE void wgmma_fp8_rs(float (&d)[kCount], const unsigned (&a)[4], unsigned long long b, int accumulate) {
  static_assert(!kE5m2 || kE5m2OfB, "a of e5m2 with b of e4m3 is not here");
  constexpr auto kElement = kE5m2      ? emulator::MatrixElement::kE5m2
                            : kE5m2OfB ? emulator::MatrixElement::kE4m3ByE5m2
                                       : emulator::MatrixElement::kE4m3;
  flashcore_services->wgmma({d, a, 0, b, 2 * kCount, kElement, false, accumulate != 0});
}

}  // namespace flashcore::ptx
