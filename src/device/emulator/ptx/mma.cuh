#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  flashcore_services->mma_sync({d, a, b0, b1}, emulator::MatrixElement::kF16);
}
FC_DEVICE void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  flashcore_services->mma_sync({d, a, b0, b1}, emulator::MatrixElement::kBf16);
}

}  // namespace flashcore::ptx
