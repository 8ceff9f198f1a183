#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE void mma_m16n8k32_e4m3(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  flashcore_services->mma_sync({d, a, b0, b1}, emulator::MatrixElement::kE4m3);
}
FC_DEVICE void mma_m16n8k32_e5m2(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  flashcore_services->mma_sync({d, a, b0, b1}, emulator::MatrixElement::kE5m2);
}
FC_DEVICE void mma_m16n8k32_e4m3_e5m2(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  flashcore_services->mma_sync({d, a, b0, b1}, emulator::MatrixElement::kE4m3ByE5m2);
}

}  // namespace flashcore::ptx
