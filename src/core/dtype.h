#pragma once
// Element types and their conversions.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace flashcore {

enum class DType { kF32, kF16, kBF16, kE4M3, kE5M2, kInt8, kInt4 };
// Of q and o, and of k and v that are not a quantised cache.
inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kE4M3, DType::kE5M2};
// What a quantised cache stores (Problem::kv_dtype).
inline constexpr DType kCacheDTypes[] = {DType::kE4M3, DType::kE5M2, DType::kInt8, DType::kInt4};

std::string_view to_string(DType dtype);  // "fp32" | "fp16" | "bf16" | "e4m3" | "e5m2" | "int8" | "int4"
// One of kAllDTypes. Accepts also float32, float16, bfloat16, half, float8_e4m3fn and float8_e5m2; else Error
// kBadInput.
DType parse_dtype(std::string_view name);
std::size_t size_of(DType dtype);      // bytes of one element; not of int4, which is half of one: bytes_of()
int bits_of(DType dtype);              // of one element
std::size_t least_bytes(DType dtype);  // that a tensor's address is a multiple of: those of one element, at least 1
// Of so many elements in a row; of int4, which has two a byte, an even number.
std::int64_t bytes_of(DType dtype, std::int64_t elements);
// Whole numbers, of which every code is one: int8 and int4 have neither NaN nor infinities.
constexpr bool is_integer(DType dtype) { return dtype == DType::kInt8 || dtype == DType::kInt4; }

// IEEE binary16 and bfloat16, round to nearest even, subnormals and NaN kept. Bit-exact with the hardware's cvt.rn.
std::uint16_t float_to_half(float value);
float half_to_float(std::uint16_t bits);
std::uint16_t float_to_bfloat16(float value);
float bfloat16_to_float(std::uint16_t bits);

// What becomes of a value past the largest of an 8-bit type.
enum class Overflow {
  kSaturate,   // the largest finite one, as cvt.rn.satfinite; of an infinity too
  kNonFinite,  // e4m3: NaN, for it has no infinity; e5m2: infinity (ml_dtypes, PyTorch)
};
// OCP FP8 (OFP8): e4m3 without infinities (float8_e4m3fn: largest 448, NaN 0x7f and 0xff), e5m2 as IEEE would have it
// (largest 57344). Round to nearest even; NaN becomes 0x7f, as cvt makes it.
std::uint8_t float_to_e4m3(float value, Overflow overflow = Overflow::kSaturate);
float e4m3_to_float(std::uint8_t bits);
std::uint8_t float_to_e5m2(float value, Overflow overflow = Overflow::kSaturate);
float e5m2_to_float(std::uint8_t bits);
// Round to nearest even, saturating at -127 and 127, so that a value and its negative have the same magnitude; NaN
// becomes 0. The code of -128 reads as -128.
std::uint8_t float_to_int8(float value);
float int8_to_float(std::uint8_t bits);
// The same of int4: -7 to 7 are written, and the code of -8 reads as -8. A code is a two's complement of 4 bits; the
// element of an even index is the lower half of its byte.
std::uint8_t float_to_int4(float value);
float int4_to_float(std::uint8_t code);
void store_int4_code(void* data, std::int64_t index, std::uint8_t code);

// What rounding to a type costs and what it can hold.
struct Precision {
  double unit;      // the largest relative error of rounding to nearest: 2^-11 for fp16
  double smallest;  // half the gap between subnormals: the largest error below the normal numbers
  double largest;   // finite
};
Precision precision_of(DType dtype);

// Rounds to the nearest value of `dtype` (fp32: unchanged); types of 8 bits and less saturate.
float round_to(DType dtype, float value);

// Reads or writes element `index` of an array of `dtype` as float; writing rounds, and types of 8 bits and less
// saturate.
float load_element(DType dtype, const void* data, std::int64_t index);
void store_element(DType dtype, void* data, std::int64_t index, float value);
// From `index` on.
void store_elements(DType dtype, void* data, std::int64_t index, std::span<const float> values);

}  // namespace flashcore
