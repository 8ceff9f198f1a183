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
// Bits of an fp16: its exponent's bias is 8 more, and below 2^-6 a multiple of 2^-9 is a normal number there.
FC_DEVICE unsigned cvt_f16_e4m3(unsigned code) {
  const unsigned sign = (code & 0x80u) << 8, magnitude = code & 0x7fu;
  if (magnitude == 0x7f) return 0x7fff;
  if (magnitude >= 8) return sign | (magnitude + (8u << 3)) << 7;
  if (magnitude == 0) return sign;
  const unsigned shift = magnitude >= 4 ? 1 : magnitude >= 2 ? 2 : 3;  // to the leading bit's place
  return sign | ((9 - shift) << 10) | ((magnitude << shift & 7u) << 7);
}
FC_DEVICE unsigned cvt_f16x2_e4m3x2(unsigned codes) {
  return cvt_f16_e4m3(codes & 0xff) | cvt_f16_e4m3(codes >> 8 & 0xff) << 16;
}

}  // namespace flashcore::ptx
