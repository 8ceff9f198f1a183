#include "core/dtype.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore {
namespace {

constexpr std::uint32_t kSignMask = 0x80000000u;
constexpr std::uint32_t kInfinityBits = 0x7f800000u;
// What cvt.rn.{f16,bf16}.f32 makes of every NaN, whatever its sign and payload (PTX ISA, "cvt").
constexpr std::uint16_t kCanonicalNan = 0x7fff;
constexpr std::uint8_t kCanonicalNan8 = 0x7f;

// Sign, exponent of that bias, mantissa of kMantissa bits, in 8 bits. Codes above `largest` are what overflow gives
// where it does not saturate, `past`.
template <int kMantissa, int kBias>
std::uint8_t float_to_8_bits(float value, std::uint8_t largest, std::uint8_t past, Overflow overflow) {
  constexpr int kDropped = 23 - kMantissa;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits & kSignMask) >> 24;
  std::uint32_t magnitude = bits & ~kSignMask;
  if (magnitude > kInfinityBits) return kCanonicalNan8;
  if (magnitude < static_cast<std::uint32_t>(127 + 1 - kBias) << 23) {
    // Subnormal: adding the power of two whose last bit is worth as much as the result's lets the FPU round.
    constexpr std::uint32_t kAligned = static_cast<std::uint32_t>(127 + 1 - kBias + kDropped) << 23;
    const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kAligned);
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(sum) - kAligned));
  }
  magnitude += (1u << (kDropped - 1)) - 1 + ((magnitude >> kDropped) & 1u);
  magnitude = (magnitude - (static_cast<std::uint32_t>(127 - kBias) << 23)) >> kDropped;
  if (magnitude > largest) magnitude = overflow == Overflow::kSaturate ? largest : past;
  return static_cast<std::uint8_t>(sign | magnitude);
}

}  // namespace

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "fp32";
    case DType::kF16: return "fp16";
    case DType::kBF16: return "bf16";
    case DType::kE4M3: return "e4m3";
    case DType::kE5M2: return "e5m2";
    case DType::kInt8: return "int8";
    case DType::kInt4: return "int4";
  }
  throw_internal("unknown dtype {}", static_cast<int>(dtype));
}

DType parse_dtype(std::string_view name) {
  if (name == "fp32" || name == "float32") return DType::kF32;
  if (name == "fp16" || name == "float16" || name == "half") return DType::kF16;
  if (name == "bf16" || name == "bfloat16") return DType::kBF16;
  if (name == "e4m3" || name == "float8_e4m3fn") return DType::kE4M3;
  if (name == "e5m2" || name == "float8_e5m2") return DType::kE5M2;
  throw_bad_input("dtype '{}' is not known; use fp32, fp16, bf16, e4m3 or e5m2", excerpt(name));
}

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 4;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kE4M3:
    case DType::kE5M2:
    case DType::kInt8: return 1;
    case DType::kInt4: throw_internal("an int4 is half a byte");
  }
  throw_internal("unknown dtype {}", static_cast<int>(dtype));
}

int bits_of(DType dtype) { return dtype == DType::kInt4 ? 4 : 8 * static_cast<int>(size_of(dtype)); }

std::size_t least_bytes(DType dtype) { return static_cast<std::size_t>(std::max(1, bits_of(dtype) / 8)); }

std::int64_t bytes_of(DType dtype, std::int64_t elements) {
  FC_CHECK(elements * bits_of(dtype) % 8 == 0);
  return elements * bits_of(dtype) / 8;
}

std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits & kSignMask) >> 16;
  std::uint32_t magnitude = bits & ~kSignMask;
  if (magnitude > kInfinityBits) return kCanonicalNan;
  // 65520 is halfway between the largest half (65504) and the next power of two: it and all above round to infinity.
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is subnormal. Adding 0.5 aligns its last bit (2^-24) with the last bit of the sum, so the
    // FPU does the rounding to nearest even.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3f000000u));
  }
  magnitude += 0xfffu + ((magnitude >> 13) & 1u);        // round to nearest even at bit 13
  magnitude = (magnitude - ((127u - 15u) << 23)) >> 13;  // exponent bias 127 -> 15
  return static_cast<std::uint16_t>(sign | magnitude);
}

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | kInfinityBits | ((magnitude & 0x3ffu) << 13));
  if (magnitude < 0x400u) {
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

std::uint16_t float_to_bfloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & ~kSignMask) > kInfinityBits) return kCanonicalNan;
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float bfloat16_to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint8_t float_to_e4m3(float value, Overflow overflow) {
  return float_to_8_bits<3, 7>(value, 0x7e, kCanonicalNan8, overflow);
}

float e4m3_to_float(std::uint8_t bits) {
  // Its exponent's bias is 8 less than an fp16's: the same bits there are 2^-8 of the value.
  if ((bits & 0x7fu) == 0x7fu)
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits & 0x80u) << 24 | 0x7fc00000u);
  return half_to_float(static_cast<std::uint16_t>((bits & 0x80u) << 8 | (bits & 0x7fu) << 7)) * 256.0f;
}

std::uint8_t float_to_e5m2(float value, Overflow overflow) {
  return float_to_8_bits<2, 15>(value, 0x7b, 0x7c, overflow);
}

// The upper half of an fp16.
float e5m2_to_float(std::uint8_t bits) { return half_to_float(static_cast<std::uint16_t>(bits << 8)); }

std::uint8_t float_to_int8(float value) {
  if (std::isnan(value)) return 0;
  return static_cast<std::uint8_t>(static_cast<std::int8_t>(std::clamp(std::nearbyint(value), -127.0f, 127.0f)));
}

float int8_to_float(std::uint8_t bits) { return static_cast<float>(static_cast<std::int8_t>(bits)); }

std::uint8_t float_to_int4(float value) {
  if (std::isnan(value)) return 0;
  return static_cast<std::uint8_t>(static_cast<int>(std::clamp(std::nearbyint(value), -7.0f, 7.0f)) & 0xf);
}

float int4_to_float(std::uint8_t code) { return static_cast<float>(((code & 0xf) ^ 8) - 8); }

Precision precision_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return {0x1p-24, 0x1p-150, 0x1.fffffep127};
    case DType::kF16: return {0x1p-11, 0x1p-25, 65504};
    case DType::kBF16: return {0x1p-8, 0x1p-134, 0x1.fep127};
    case DType::kE4M3: return {0x1p-4, 0x1p-10, 448};
    case DType::kE5M2: return {0x1p-3, 0x1p-17, 57344};
    case DType::kInt8: return {0, 0.5, 127};  // the gaps are all alike
    case DType::kInt4: return {0, 0.5, 7};
  }
  throw_internal("unknown dtype {}", static_cast<int>(dtype));
}

float round_to(DType dtype, float value) {
  switch (dtype) {
    case DType::kF32: return value;
    case DType::kF16: return half_to_float(float_to_half(value));
    case DType::kBF16: return bfloat16_to_float(float_to_bfloat16(value));
    case DType::kE4M3: return e4m3_to_float(float_to_e4m3(value));
    case DType::kE5M2: return e5m2_to_float(float_to_e5m2(value));
    case DType::kInt8: return int8_to_float(float_to_int8(value));
    case DType::kInt4: return int4_to_float(float_to_int4(value));
  }
  throw_internal("unknown dtype {}", static_cast<int>(dtype));
}

namespace {

template <class Bits>
Bits load_bits(const void* data, std::int64_t index) {
  Bits bits;
  std::memcpy(&bits, static_cast<const char*>(data) + index * static_cast<std::int64_t>(sizeof bits), sizeof bits);
  return bits;
}
template <class Bits>
void store_bits(void* data, std::int64_t index, Bits bits) {
  std::memcpy(static_cast<char*>(data) + index * static_cast<std::int64_t>(sizeof bits), &bits, sizeof bits);
}

}  // namespace

void store_int4_code(void* data, std::int64_t index, std::uint8_t code) {
  // Rounded down: an index may be negative, where strides are.
  const int shift = (index & 1) == 0 ? 0 : 4;
  const int others = load_bits<std::uint8_t>(data, index >> 1) & 0xf0 >> shift;
  store_bits(data, index >> 1, static_cast<std::uint8_t>(others | (code & 0xf) << shift));
}

float load_element(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::kF32: return load_bits<float>(data, index);
    case DType::kF16: return half_to_float(load_bits<std::uint16_t>(data, index));
    case DType::kBF16: return bfloat16_to_float(load_bits<std::uint16_t>(data, index));
    case DType::kE4M3: return e4m3_to_float(load_bits<std::uint8_t>(data, index));
    case DType::kE5M2: return e5m2_to_float(load_bits<std::uint8_t>(data, index));
    case DType::kInt8: return int8_to_float(load_bits<std::uint8_t>(data, index));
    case DType::kInt4:
      return int4_to_float(static_cast<std::uint8_t>(load_bits<std::uint8_t>(data, index >> 1) >> (index & 1) * 4));
  }
  throw_internal("unknown dtype {}", static_cast<int>(dtype));
}

void store_element(DType dtype, void* data, std::int64_t index, float value) {
  switch (dtype) {
    case DType::kF32: return store_bits(data, index, value);
    case DType::kF16: return store_bits(data, index, float_to_half(value));
    case DType::kBF16: return store_bits(data, index, float_to_bfloat16(value));
    case DType::kE4M3: return store_bits(data, index, float_to_e4m3(value));
    case DType::kE5M2: return store_bits(data, index, float_to_e5m2(value));
    case DType::kInt8: return store_bits(data, index, float_to_int8(value));
    case DType::kInt4: return store_int4_code(data, index, float_to_int4(value));
  }
  throw_internal("unknown dtype {}", static_cast<int>(dtype));
}

void store_elements(DType dtype, void* data, std::int64_t index, std::span<const float> values) {
  // Inlined for the types of which there are gigabytes.
  if (dtype == DType::kF16)
    for (const float value : values) store_bits(data, index++, float_to_half(value));
  else if (dtype == DType::kBF16)
    for (const float value : values) store_bits(data, index++, float_to_bfloat16(value));
  else
    for (const float value : values) store_element(dtype, data, index++, value);
}

}  // namespace flashcore
