#pragma once
// What the device code of expressions (core/expression_code.h) is made of. Ints wrap, min and max hand NaN on, and
// float functions are within a few units in the last place unless stated; what is subnormal is 0 in exp and log.

#include "kernels/ptx/math.cuh"
#include "kernels/ptx/read_only.cuh"
#include "kernels/tile/expression.h"

namespace flashcore::expression {

// C++ leaves the overflow of ints undefined, and that of unsigned numbers not.
FC_DEVICE int add(int a, int b) { return static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b)); }
FC_DEVICE int subtract(int a, int b) { return static_cast<int>(static_cast<unsigned>(a) - static_cast<unsigned>(b)); }
FC_DEVICE int multiply(int a, int b) { return static_cast<int>(static_cast<unsigned>(a) * static_cast<unsigned>(b)); }

// Rounded down; 0 where b is 0. -1 is apart because the least int has no opposite.
FC_DEVICE int floor_divide(int a, int b) {
  if (b == 0) return 0;
  if (b == -1) return subtract(0, a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}
FC_DEVICE int modulo(int a, int b) {
  if (b == 0 || b == -1) return 0;
  const int left = a % b;
  return left != 0 && (left < 0) != (b < 0) ? left + b : left;
}

FC_DEVICE float min(float a, float b) { return a < b || a != a ? a : b; }
FC_DEVICE float max(float a, float b) { return a > b || a != a ? a : b; }
FC_DEVICE float abs(float x) { return ptx::float_of_bits(ptx::bits_of_float(x) & 0x7fffffffu); }

FC_DEVICE float exp2(float x) { return ptx::ex2(x); }
FC_DEVICE float log2(float x) { return ptx::lg2(x); }
// The product is rounded before the power: off by 2^-24 of x, relatively.
FC_DEVICE float exp(float x) { return ptx::ex2(x * 1.44269504f); }
FC_DEVICE float log(float x) { return ptx::lg2(x) * 0.693147181f; }
// One step of Newton's method from an estimate that is good to 2^-20.
FC_DEVICE float sqrt(float x) {
  const float estimate = ptx::ex2(0.5f * ptx::lg2(x));
  return x >= 0x1p-126f && x <= 0x1.fffffep127f ? 0.5f * (estimate + x / estimate) : estimate;
}
// A quotient of polynomials of x^2, fitted for the least relative error up to 9, from where tanh is 1: 2^-25, and 2^-21
// in fp32. One special function and no branch; by exp it would be two. tanh.approx, an instruction, is off by 2^-11:
// times a cap of 50 that is more than an fp16 result allows.
FC_DEVICE float tanh(float x) {
  const float bounded = -ptx::max(-ptx::max(x, -9.0f), -9.0f), z = bounded * bounded;
  float p = ptx::fma(1.33542430e-8f, z, 2.06087734e-5f), q = ptx::fma(7.77638434e-7f, z, 3.28560389e-4f);
  p = ptx::fma(p, z, 3.49556934e-3f), q = ptx::fma(q, z, 2.58769114e-2f);
  p = ptx::fma(p, z, 0.133810103f), q = ptx::fma(q, z, 0.467143267f);
  p = ptx::fma(p, z, 1.0f), q = ptx::fma(q, z, 1.0f);
  return x != x ? x : bounded * p * ptx::rcp(q);  // max drops NaN
}

template <class... Indices>
FC_DEVICE long long offset_of(const Tensor& tensor, Indices... indices) {
  const long long all[] = {indices...};
  long long offset = 0;
#pragma unroll
  for (int x = 0; x < static_cast<int>(sizeof...(indices)); ++x) offset += all[x] * tensor.stride[x];
  return offset;
}
template <class... Indices>
FC_DEVICE float float_element(const Tensor& tensor, Indices... indices) {
  return ptx::ld_global_nc_f32(static_cast<const float*>(tensor.data) + offset_of(tensor, indices...));
}
template <class... Indices>
FC_DEVICE int int_element(const Tensor& tensor, Indices... indices) {
  return static_cast<int>(ptx::bits_of_float(float_element(tensor, indices...)));
}
template <class... Indices>
FC_DEVICE bool bool_element(const Tensor& tensor, Indices... indices) {
  return ptx::ld_global_nc_u8(static_cast<const unsigned char*>(tensor.data) + offset_of(tensor, indices...)) != 0;
}

}  // namespace flashcore::expression
