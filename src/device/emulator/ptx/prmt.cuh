#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE unsigned prmt(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
  unsigned permuted = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned digit = selector >> 4 * i & 15, byte = static_cast<unsigned>(bytes >> 8 * (digit & 7)) & 0xff;
    permuted |= (digit < 8 ? byte : byte & 0x80 ? 0xffu : 0u) << 8 * i;
  }
  return permuted;
}

}  // namespace flashcore::ptx
