#pragma once
// PTX ISA, "Floating Point Instructions" and "cvt".

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// 2^x. ex2.approx.ftz.f32: maximum relative error 2^-22; ex2(-inf) = +0, NaN in, NaN out.
FC_DEVICE float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(x). lg2.approx.ftz.f32: maximum absolute error 2^-22 near 1.
FC_DEVICE float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// a·b + c with one rounding.
FC_DEVICE float fma(float a, float b, float c) {
  float d;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
  return d;
}

// The larger one; a NaN operand is ignored (max.f32).
FC_DEVICE float max(float a, float b) {
  float c;
  asm("max.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

// The larger ones of two packed pairs of unsigned 16-bit numbers.
FC_DEVICE unsigned max_u16x2(unsigned a, unsigned b) {
  unsigned c;
  asm("max.u16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// 1/x, maximum relative error 2^-23 (rcp.approx.ftz.f32).
FC_DEVICE float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats to packed 16-bit, round to nearest even; `low` in the low half.
FC_DEVICE unsigned cvt_f16x2(float low, float high) {
  unsigned packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
FC_DEVICE unsigned cvt_bf16x2(float low, float high) {
  unsigned packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
// a - b of packed fp16, round to nearest even.
FC_DEVICE unsigned sub_f16x2(unsigned a, unsigned b) {
  unsigned difference;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  return difference;
}

// One 16-bit value, given in the low half of `bits`, to float. Exact.
FC_DEVICE float cvt_f32_f16(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
FC_DEVICE float cvt_f32_bf16(unsigned short bits) {
  float value;
  asm("mov.b32 %0, {0, %1};" : "=f"(value) : "h"(bits));
  return value;
}

// The float of these bits.
FC_DEVICE float float_of_bits(unsigned bits) { return __uint_as_float(bits); }
FC_DEVICE unsigned bits_of_float(float value) { return __float_as_uint(value); }

FC_DEVICE float negative_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

}  // namespace flashcore::ptx
