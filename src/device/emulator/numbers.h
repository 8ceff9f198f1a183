#pragma once
// Element values of 16 and 8 bits as floats, for matrix instructions. Exact; quicker than core/dtype.h, which keeps NaN
// payloads.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "device/emulator/services.h"

namespace flashcore::emulator {

inline float half_value(unsigned bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // The multiplication moves the exponent's bias and makes subnormals normal.
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f) | sign);
}
inline float bfloat16_value(unsigned bits) { return std::bit_cast<float>(bits << 16); }

// e5m2 is the upper half of an fp16; e4m3 has its exponent's bias 8 lower, no infinity, and one NaN.
inline float e5m2_value(unsigned bits) { return half_value(bits << 8); }
inline float e4m3_value(unsigned bits) {
  if ((bits & 0x7fu) == 0x7fu) return std::bit_cast<float>(0x7fffffffu);
  return half_value((bits & 0x80u) << 8 | (bits & 0x7fu) << 7) * 256.0f;
}

constexpr bool has_8_bits(MatrixElement element) {
  return element == MatrixElement::kE4m3 || element == MatrixElement::kE5m2 || element == MatrixElement::kE4m3ByE5m2;
}
constexpr MatrixElement element_of_a(MatrixElement element) {
  return element == MatrixElement::kE4m3ByE5m2 ? MatrixElement::kE4m3 : element;
}
constexpr MatrixElement element_of_b(MatrixElement element) {
  return element == MatrixElement::kE4m3ByE5m2 ? MatrixElement::kE5m2 : element;
}
// Of one operand.
template <MatrixElement kElement>
float element_value(unsigned bits) {
  static_assert(kElement == element_of_b(kElement));
  switch (kElement) {
    case MatrixElement::kF16: return half_value(bits);
    case MatrixElement::kBf16: return bfloat16_value(bits);
    case MatrixElement::kE4m3: return e4m3_value(bits);
    default: return e5m2_value(bits);
  }
}
// How a matrix instruction packs an operand.
template <MatrixElement kElement>
struct Packing {
  static constexpr unsigned kBytes = has_8_bits(kElement) ? 1 : 2;
  static constexpr unsigned kInWord = 4 / kBytes;
  static constexpr unsigned kK = 32 / kBytes;  // of one instruction
  // The elements of a register, the lowest first.
  static void unpack(unsigned packed, float* to) {
    for (unsigned i = 0; i < kInWord; ++i)
      to[i] = element_value<kElement>(packed >> (8 * kBytes * i) & (kBytes == 1 ? 0xffu : 0xffffu));
  }
};

// d[column] += the sum over k of a[k] * b[k * stride + column], for n columns, as Hopper's tensor cores add products of
// 8-bit floats: every addend, d among them, is cut off 13 bits below the largest one's leading bit.
template <unsigned kK>
void add_products_of_8_bits(const float (&a)[kK], const float* b, unsigned stride, float* d, int n) {
  constexpr std::uint32_t kKept = 13, kExponents = 0x7f800000u, kLeast = 64;  // 2^-63 is below every product
  for (int column = 0; column < n; ++column) {
    float largest = std::abs(d[column]), plain = d[column];
    for (unsigned k = 0; k < kK; ++k) {
      const float product = a[k] * b[k * stride + static_cast<unsigned>(column)];
      largest = std::max(largest, std::abs(product));
      plain += product;
    }
    if ((std::bit_cast<std::uint32_t>(plain) & kExponents) == kExponents) {  // NaN and infinities are not cut
      d[column] = plain;
      continue;
    }
    const std::uint32_t exponent = std::max(std::bit_cast<std::uint32_t>(largest) >> 23, kLeast);
    const float scale = std::bit_cast<float>((254 + kKept - exponent) << 23);
    const float back = std::bit_cast<float>((exponent - kKept) << 23);
    float sum = static_cast<float>(static_cast<int>(d[column] * scale));
    for (unsigned k = 0; k < kK; ++k)
      sum += static_cast<float>(static_cast<int>(a[k] * b[k * stride + static_cast<unsigned>(column)] * scale));
    d[column] = sum * back;
  }
}

// Calls function.template operator()<element>().
template <class Function>
auto with_element(MatrixElement element, Function function) {
  switch (element) {
    case MatrixElement::kF16: return function.template operator()<MatrixElement::kF16>();
    case MatrixElement::kBf16: return function.template operator()<MatrixElement::kBf16>();
    case MatrixElement::kE4m3: return function.template operator()<MatrixElement::kE4m3>();
    case MatrixElement::kE5m2: return function.template operator()<MatrixElement::kE5m2>();
    default: return function.template operator()<MatrixElement::kE4m3ByE5m2>();
  }
}

}  // namespace flashcore::emulator
