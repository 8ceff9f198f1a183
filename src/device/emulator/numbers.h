#pragma once
// Element values of 16 and 8 bits as floats, for matrix instructions. Exact; quicker than core/dtype.h, which keeps NaN
// payloads.

#include <bit>
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
  return element == MatrixElement::kE4m3 || element == MatrixElement::kE5m2;
}
template <MatrixElement kElement>
float element_value(unsigned bits) {
  switch (kElement) {
    case MatrixElement::kF16: return half_value(bits);
    case MatrixElement::kBf16: return bfloat16_value(bits);
    case MatrixElement::kE4m3: return e4m3_value(bits);
    case MatrixElement::kE5m2: return e5m2_value(bits);
  }
}
// How a matrix instruction packs its operands.
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

// Calls function.template operator()<element>().
template <class Function>
auto with_element(MatrixElement element, Function function) {
  switch (element) {
    case MatrixElement::kF16: return function.template operator()<MatrixElement::kF16>();
    case MatrixElement::kBf16: return function.template operator()<MatrixElement::kBf16>();
    case MatrixElement::kE4m3: return function.template operator()<MatrixElement::kE4m3>();
    default: return function.template operator()<MatrixElement::kE5m2>();
  }
}

}  // namespace flashcore::emulator
