#include "core/dtype.h"

#include <bit>
#include <cstring>

#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore {
namespace {

constexpr std::uint32_t kSignMask = 0x80000000u;
constexpr std::uint32_t kInfinityBits = 0x7f800000u;
// What cvt.rn.{f16,bf16}.f32 makes of every NaN, whatever its sign and payload (PTX ISA, "cvt").
constexpr std::uint16_t kCanonicalNan = 0x7fff;

}  // namespace

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "fp32";
    case DType::kF16: return "fp16";
    case DType::kBF16: return "bf16";
  }
  throw_internal("unknown dtype {}", static_cast<int>(dtype));
}

DType parse_dtype(std::string_view name) {
  if (name == "fp32" || name == "float32") return DType::kF32;
  if (name == "fp16" || name == "float16" || name == "half") return DType::kF16;
  if (name == "bf16" || name == "bfloat16") return DType::kBF16;
  throw_bad_input("dtype '{}' is not known; use fp32, fp16 or bf16", excerpt(name));
}

std::size_t size_of(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

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

float round_to(DType dtype, float value) {
  switch (dtype) {
    case DType::kF32: return value;
    case DType::kF16: return half_to_float(float_to_half(value));
    case DType::kBF16: return bfloat16_to_float(float_to_bfloat16(value));
  }
  throw_internal("unknown dtype {}", static_cast<int>(dtype));
}

float load_element(DType dtype, const void* data, std::int64_t index) {
  const char* at = static_cast<const char*>(data) + index * static_cast<std::int64_t>(size_of(dtype));
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return dtype == DType::kF16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

void store_element(DType dtype, void* data, std::int64_t index, float value) {
  char* at = static_cast<char*>(data) + index * static_cast<std::int64_t>(size_of(dtype));
  if (dtype == DType::kF32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = dtype == DType::kF16 ? float_to_half(value) : float_to_bfloat16(value);
  std::memcpy(at, &bits, sizeof bits);
}

}  // namespace flashcore
