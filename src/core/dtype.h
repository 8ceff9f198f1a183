#pragma once
// Element types and their conversions.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace flashcore {

enum class DType { kF32, kF16, kBF16 };

std::string_view to_string(DType dtype);   // "fp32" | "fp16" | "bf16"
DType parse_dtype(std::string_view name);  // accepts also float32, float16, bfloat16, half; else Error kBadInput
std::size_t size_of(DType dtype);          // bytes of one element

// IEEE binary16 and bfloat16, round to nearest even, subnormals and NaN kept. Bit-exact with the hardware's cvt.rn.
std::uint16_t float_to_half(float value);
float half_to_float(std::uint16_t bits);
std::uint16_t float_to_bfloat16(float value);
float bfloat16_to_float(std::uint16_t bits);

// Rounds to the nearest value of `dtype` (fp32: unchanged).
float round_to(DType dtype, float value);

// Reads or writes element `index` of an array of `dtype` as float; writing rounds.
float load_element(DType dtype, const void* data, std::int64_t index);
void store_element(DType dtype, void* data, std::int64_t index, float value);

}  // namespace flashcore
