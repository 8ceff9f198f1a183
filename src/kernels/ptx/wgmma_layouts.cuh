#pragma once
// Matrix descriptors of every layout. PTX ISA, "Matrix Descriptor Format" and "Shared Memory Matrix Layout" of the
// asynchronous warpgroup level matrix instructions. WgmmaDescriptor (wgmma.cuh) is the 128-byte swizzle alone, cheaper.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// Bits 62 and 63 of a descriptor. The swizzle of S bytes is the tensor map's of the same width: the 16-byte chunks of
// each S bytes change places, by address. Tiles start at multiples of 8·S bytes.
enum class WgmmaSwizzle : unsigned { kNone = 0, k128 = 1, k64 = 2, k32 = 3 };

// Units of 8 rows × 16 bytes, rows S bytes apart (16 without swizzle).
// K-major: `stride_bytes` from 8 rows to the next 8; `leading_bytes` from 16 bytes of k to the next, without swizzle
// only. MN-major (16-bit elements): with swizzle, lines of S bytes of M or N, 8 of k to a unit; `leading_bytes` from
// one unit to the next along M or N, `stride_bytes` from 8 of k to the next 8. Without swizzle, 16 bytes of M or N:
// `stride_bytes` to the next along M or N, `leading_bytes` from 8 of k to the next 8.
FC_DEVICE unsigned long long wgmma_descriptor(SharedAddress address, int leading_bytes, int stride_bytes,
                                              WgmmaSwizzle swizzle) {
  return (address & 0x3ffff) >> 4 | static_cast<unsigned long long>(leading_bytes >> 4 & 0x3fff) << 16 |
         static_cast<unsigned long long>(stride_bytes >> 4 & 0x3fff) << 32 |
         static_cast<unsigned long long>(swizzle) << 62;
}

}  // namespace flashcore::ptx
