#pragma once
// Elements as floats, 16 bytes at a time, and the largest magnitude among them: what kernels that move tensors share.

#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/tile/element.cuh"
#include "kernels/tile/traits.h"

namespace flashcore::tile {

constexpr int bytes_of_element(Element element) { return is_8bit(element) ? 1 : element == Element::kF32 ? 4 : 2; }

// Of fp16 or bf16.
template <Element E>
FC_DEVICE float value_of(unsigned short bits) {
  if constexpr (E == Element::kF16) return ptx::cvt_f32_f16(bits);
  else return ptx::cvt_f32_bf16(bits);
}

// 16 bytes at `from`, a multiple of 16, to values[first] and those behind it.
template <Element E, int kCount>
FC_DEVICE void load_16_bytes(const void* from, float (&values)[kCount], int first = 0) {
  const ptx::Vector4 words = ptx::ld_global_v4(from);
  const unsigned all[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (E == Element::kF32) {
      values[first + i] = ptx::float_of_bits(all[i]);
    } else {
      values[first + 2 * i] = value_of<E>(static_cast<unsigned short>(all[i]));
      values[first + 2 * i + 1] = value_of<E>(static_cast<unsigned short>(all[i] >> 16));
    }
  }
}

// The larger of `largest` and of the finite magnitudes.
template <int kCount>
FC_DEVICE float largest_finite(const float (&values)[kCount], float largest) {
  constexpr unsigned kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const unsigned bits = ptx::bits_of_float(values[i]) & kMagnitude;
    if (bits < kInfinity) largest = ptx::max(largest, ptx::float_of_bits(bits));
  }
  return largest;
}

// Of a warp's lanes.
FC_DEVICE float largest_of_warp(float value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value = ptx::max(value, ptx::shfl_bfly(value, mask));
  return value;
}

}  // namespace flashcore::tile
