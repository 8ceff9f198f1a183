#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// Every NaN that the hardware computes has these bits.
FC_DEVICE float canonical(float x) { return x == x ? x : __builtin_bit_cast(float, 0x7fffffffu); }
FC_DEVICE float ex2(float x) { return canonical(flashcore_services->ex2(x)); }
FC_DEVICE float lg2(float x) { return canonical(flashcore_services->lg2(x)); }
FC_DEVICE float fma(float a, float b, float c) { return canonical(__builtin_fmaf(a, b, c)); }
FC_DEVICE float max(float a, float b) {
  return a > b ? a : b > a ? b : a == b ? (__builtin_signbit(a) ? b : a) : a == a ? a : canonical(b);
}
// Flushes subnormals to zero on both sides, as .ftz does.
FC_DEVICE float flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x; }
FC_DEVICE unsigned max_u16x2(unsigned a, unsigned b) {
  const unsigned low = a & 0xffff, other = b & 0xffff;
  return (low > other ? low : other) | (a >> 16 > b >> 16 ? a >> 16 : b >> 16) << 16;
}
FC_DEVICE float rcp(float x) { return canonical(flush(1.0f / flush(x))); }

// cvt.rn.f16.f32: round to nearest even; every NaN becomes 0x7fff.
FC_DEVICE unsigned short cvt_f16(float value) {
  if (value != value) return 0x7fff;
  return __builtin_bit_cast(unsigned short, static_cast<_Float16>(value));
}
FC_DEVICE unsigned short cvt_bf16(float value) {
  const unsigned bits = __builtin_bit_cast(unsigned, value);
  if (value != value) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
FC_DEVICE unsigned cvt_f16x2(float low, float high) {
  return cvt_f16(low) | static_cast<unsigned>(cvt_f16(high)) << 16;
}
FC_DEVICE unsigned cvt_bf16x2(float low, float high) {
  return cvt_bf16(low) | static_cast<unsigned>(cvt_bf16(high)) << 16;
}
FC_DEVICE float cvt_f32_f16(unsigned short bits) {
  // Any NaN becomes this one: recorded on an H200.
  if ((bits & 0x7fff) > 0x7c00) return __builtin_bit_cast(float, 0x7fffffffu);
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
}
FC_DEVICE unsigned sub_f16x2(unsigned a, unsigned b) {
  // fp32 has more than twice the bits of fp16, so rounding twice is rounding once.
  const auto half = [&](int shift) {
    return static_cast<unsigned>(cvt_f16(cvt_f32_f16(static_cast<unsigned short>(a >> shift)) -
                                         cvt_f32_f16(static_cast<unsigned short>(b >> shift))));
  };
  return half(0) | half(16) << 16;
}
FC_DEVICE float cvt_f32_bf16(unsigned short bits) {
  return __builtin_bit_cast(float, static_cast<unsigned>(bits) << 16);
}

FC_DEVICE float float_of_bits(unsigned bits) { return __builtin_bit_cast(float, bits); }
FC_DEVICE unsigned bits_of_float(float value) { return __builtin_bit_cast(unsigned, value); }
FC_DEVICE float negative_infinity() { return -__builtin_inff(); }

}  // namespace flashcore::ptx
