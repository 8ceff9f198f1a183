#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

enum class WgmmaSwizzle : unsigned { kNone = 0, k128 = 1, k64 = 2, k32 = 3 };

FC_DEVICE unsigned long long wgmma_descriptor(SharedAddress address, int leading_bytes, int stride_bytes,
                                              WgmmaSwizzle swizzle) {
  return (address & 0x3ffff) >> 4 | static_cast<unsigned long long>(leading_bytes >> 4 & 0x3fff) << 16 |
         static_cast<unsigned long long>(stride_bytes >> 4 & 0x3fff) << 32 |
         static_cast<unsigned long long>(swizzle) << 62;
}

}  // namespace flashcore::ptx
