#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// Exponent bias 7, three bits of mantissa, multiples of 2^-9 below 2^-6; 0x7e is 448, the largest, and 0x7f is NaN.
FC_DEVICE unsigned cvt_e4m3(float value) {
  const unsigned bits = __builtin_bit_cast(unsigned, value), sign = bits >> 24 & 0x80u;
  if (value != value) return 0x7f;
  const float magnitude = __builtin_fabsf(value);
  if (magnitude >= 448.0f) return sign | 0x7e;
  // Adding a number whose last bit is worth 2^-9 rounds to multiples of that, to the even one in between.
  if (magnitude < 0x1p-6f) return sign | (__builtin_bit_cast(unsigned, magnitude + 0x1p14f) & 0xfu);
  const unsigned whole = bits & 0x7fffffffu;
  const unsigned rounded = (whole + 0x7ffffu + (whole >> 20 & 1u)) >> 20;
  return sign | (rounded - (120u << 3));
}
FC_DEVICE unsigned cvt_e4m3x4(float a, float b, float c, float d) {
  return cvt_e4m3(a) | cvt_e4m3(b) << 8 | cvt_e4m3(c) << 16 | cvt_e4m3(d) << 24;
}

}  // namespace flashcore::ptx
