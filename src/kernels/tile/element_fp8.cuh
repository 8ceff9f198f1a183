#pragma once
// Single elements of 8 bits, by integer arithmetic that every architecture has (cvt on e4m3 and e5m2 needs sm_89): for
// the naive kernel, which is an oracle of those that use the instructions.

#include "kernels/ptx/memory_bytes.cuh"
#include "kernels/tile/element.cuh"
#include "kernels/tile/traits.h"

namespace flashcore::tile {

// Exact.
template <Element E>
FC_DEVICE float float_of_fp8(unsigned bits) {
  if constexpr (E == Element::kInt8) return static_cast<float>(static_cast<signed char>(bits));
  // e5m2 is the upper half of an fp16.
  if constexpr (E == Element::kE5M2) return ptx::cvt_f32_f16(static_cast<unsigned short>(bits << 8));
  if ((bits & 0x7fu) == 0x7fu) return ptx::float_of_bits(0x7fffffffu);
  // e4m3's exponent has a bias that is 8 less than an fp16's.
  return ptx::cvt_f32_f16(static_cast<unsigned short>((bits & 0x80u) << 8 | (bits & 0x7fu) << 7)) * 256.0f;
}

// The lower 4 bits, a two's complement.
FC_DEVICE float float_of_int4(unsigned bits) { return static_cast<float>(static_cast<int>((bits & 0xfu) ^ 8u) - 8); }

// Rounded to nearest even, saturating; NaN becomes 0x7f (cvt.rn.satfinite).
template <Element E>
FC_DEVICE unsigned fp8_of_float(float value) {
  constexpr unsigned kBias = E == Element::kE4M3 ? 7 : 15, kDropped = E == Element::kE4M3 ? 20 : 21;
  constexpr unsigned kLargest = E == Element::kE4M3 ? 0x7e : 0x7b;
  const unsigned bits = ptx::bits_of_float(value), sign = bits >> 31 << 7, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fu;
  if (magnitude < (128 - kBias) << 23) {
    // Subnormal: the sum's last bit is worth as much as the result's.
    constexpr unsigned kAligned = (128 - kBias + kDropped) << 23;
    return sign | (ptx::bits_of_float(ptx::float_of_bits(magnitude) + ptx::float_of_bits(kAligned)) - kAligned);
  }
  const unsigned rounded = magnitude + (1u << (kDropped - 1)) - 1 + (magnitude >> kDropped & 1u);
  const unsigned code = (rounded - ((127 - kBias) << 23)) >> kDropped;
  return sign | (code > kLargest ? kLargest : code);
}

// The nearest of -127 to 127, to even between two; NaN becomes 0.
FC_DEVICE unsigned int8_of_float(float value) {
  if (value != value) return 0;
  // Beside 1.5 * 2^23 the last bit of a sum is worth 1.
  constexpr float kWhole = 12582912.0f;
  const float clamped = value > 127.0f ? 127.0f : value < -127.0f ? -127.0f : value;
  return ptx::bits_of_float(clamped + kWhole) & 0xffu;
}

// The same of -7 to 7, in 4 bits: within int8's range their lower bits are the code.
FC_DEVICE unsigned int4_of_float(float value) {
  return int8_of_float(value > 7.0f ? 7.0f : value < -7.0f ? -7.0f : value) & 0xfu;
}

template <Element E>
FC_DEVICE unsigned code_of_float(float value) {
  if constexpr (E == Element::kInt8) return int8_of_float(value);
  else return fp8_of_float<E>(value);
}

// load and store of tile/element.cuh, for every element type.
template <Element E>
FC_DEVICE float load_any(const void* base, long long index) {
  if constexpr (E == Element::kInt4)
    return float_of_int4(ptx::ld_global_u8(static_cast<const unsigned char*>(base) + (index >> 1)) >> (index & 1) * 4);
  else if constexpr (is_8bit(E))
    return float_of_fp8<E>(ptx::ld_global_u8(static_cast<const unsigned char*>(base) + index));
  else return load<E>(base, index);
}

template <Element E>
FC_DEVICE void store_any(void* base, long long index, float value) {
  if constexpr (is_8bit(E)) ptx::st_global_u8(static_cast<unsigned char*>(base) + index, fp8_of_float<E>(value));
  else store<E>(base, index, value);
}

// The factor of an operand for one batch entry and kv head.
FC_DEVICE float descale(const Descale& by, int batch, int head_kv) {
  if (!by.values) return 1.0f;
  return ptx::ld_global_f32(by.values + static_cast<long long>(batch) * by.batch_stride + head_kv * by.head_stride);
}

// The same of a key of it, where each has its own; of a row of q by its query head.
FC_DEVICE float descale(const Descale& by, int batch, int head_kv, int key) {
  if (!by.values) return 1.0f;
  return ptx::ld_global_f32(by.values + static_cast<long long>(batch) * by.batch_stride +
                            static_cast<long long>(head_kv) * by.head_stride + key);
}

}  // namespace flashcore::tile
