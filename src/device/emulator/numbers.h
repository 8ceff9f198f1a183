#pragma once
// 16-bit element values as floats, for matrix instructions. Exact; quicker than core/dtype.h, which keeps NaN payloads.

#include <bit>
#include <cstdint>

namespace flashcore::emulator {

inline float half_value(unsigned bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // The multiplication moves the exponent's bias and makes subnormals normal.
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f) | sign);
}
inline float bfloat16_value(unsigned bits) { return std::bit_cast<float>(bits << 16); }

template <bool kBf16>
float element_value(unsigned bits) {
  return kBf16 ? bfloat16_value(bits) : half_value(bits);
}

}  // namespace flashcore::emulator
