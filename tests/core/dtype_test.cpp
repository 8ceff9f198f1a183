#include "core/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"

namespace flashcore {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Decodes by definition, in double, independently of the bit tricks under test.
double half_by_definition(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(DTypeTest, NamesRoundTripAndAliasesAreKnown) {
  for (const DType dtype : kAllDTypes) EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  EXPECT_EQ(parse_dtype("float8_e4m3fn"), DType::kE4M3);
  EXPECT_EQ(parse_dtype("float8_e5m2"), DType::kE5M2);
  EXPECT_EQ(parse_dtype("half"), DType::kF16);
  EXPECT_EQ(parse_dtype("float16"), DType::kF16);
  EXPECT_EQ(parse_dtype("float32"), DType::kF32);
  EXPECT_EQ(parse_dtype("bfloat16"), DType::kBF16);
}

TEST(DTypeTest, UnknownNameSaysWhatIsAllowed) {
  try {
    parse_dtype("fp8");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    EXPECT_NE(std::string(error.what()).find("fp32, fp16, bf16, e4m3 or e5m2"), std::string::npos);
  }
}

TEST(DTypeTest, EveryHalfDecodesByDefinitionAndSurvivesARoundTrip) {
  for (unsigned i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float value = half_to_float(bits);
    if ((bits & 0x7c00) == 0x7c00) {
      if ((bits & 0x3ff) != 0) {
        EXPECT_TRUE(std::isnan(value));
        EXPECT_EQ(float_to_half(value), 0x7fff);
      } else {
        EXPECT_EQ(value, (bits & 0x8000) != 0 ? -kInf : kInf);
        EXPECT_EQ(float_to_half(value), bits);
      }
      continue;
    }
    ASSERT_EQ(value, half_by_definition(bits)) << i;
    ASSERT_EQ(float_to_half(value), bits) << i;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << i;
  }
}

// Between every two neighbouring halves: the midpoint goes to the even one, and its float neighbours to either side.
TEST(DTypeTest, HalfRoundsToNearestEvenAtEveryMidpoint) {
  for (unsigned i = 0; i < 0x7c00; ++i) {
    const auto low = static_cast<std::uint16_t>(i), high = static_cast<std::uint16_t>(i + 1);
    const double top = i + 1 == 0x7c00 ? 65536.0 : half_by_definition(high);  // what infinity's code would be worth
    const float midpoint = static_cast<float>((half_by_definition(low) + top) / 2);
    const std::uint16_t even = (low & 1) == 0 ? low : high;
    ASSERT_EQ(float_to_half(midpoint), even) << i;
    ASSERT_EQ(float_to_half(std::nextafter(midpoint, 0.0f)), low) << i;
    ASSERT_EQ(float_to_half(std::nextafter(midpoint, kInf)), high) << i;
    ASSERT_EQ(float_to_half(-midpoint), even | 0x8000) << i;
  }
}

TEST(DTypeTest, HalfOverflowAndUnderflow) {
  EXPECT_EQ(float_to_half(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(-1e30f), 0xfc00);
  EXPECT_EQ(float_to_half(0x1p-25f), 0);
  EXPECT_EQ(float_to_half(std::nextafter(0x1p-25f, 1.0f)), 1);
  EXPECT_EQ(float_to_half(-0.0f), 0x8000);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(DTypeTest, BFloat16RoundsToNearestEvenAtEveryMidpoint) {
  for (unsigned i = 0; i < 0x7f80; ++i) {
    const auto low = static_cast<std::uint16_t>(i), high = static_cast<std::uint16_t>(i + 1);
    const float midpoint = std::bit_cast<float>((i << 16) + 0x8000u);
    const std::uint16_t even = (low & 1) == 0 ? low : high;
    ASSERT_EQ(float_to_bfloat16(bfloat16_to_float(low)), low);
    ASSERT_EQ(float_to_bfloat16(midpoint), even) << i;
    ASSERT_EQ(float_to_bfloat16(std::bit_cast<float>((i << 16) + 0x7fffu)), low) << i;
    ASSERT_EQ(float_to_bfloat16(std::bit_cast<float>((i << 16) + 0x8001u)), high) << i;
    ASSERT_EQ(float_to_bfloat16(-midpoint), even | 0x8000) << i;
  }
  EXPECT_EQ(float_to_bfloat16(kInf), 0x7f80);
  EXPECT_EQ(float_to_bfloat16(-kInf), 0xff80);
  EXPECT_EQ(float_to_bfloat16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(DTypeTest, EveryNanBecomesTheCanonicalNan) {
  for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffc12345u}) {
    EXPECT_EQ(float_to_half(std::bit_cast<float>(bits)), 0x7fff);
    EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(bits)), 0x7fff);
  }
  EXPECT_TRUE(std::isnan(half_to_float(0x7fff)));
  EXPECT_TRUE(std::isnan(bfloat16_to_float(0x7fff)));
}

// The 8-bit types by the definition of OFP8, in double: sign, exponent, mantissa, and what has no number.
struct Fp8 {
  const char* name;
  int mantissa_bits, bias;
  unsigned largest;       // code of the largest finite value
  unsigned past_largest;  // code of what overflow gives without saturation
  std::uint8_t (*encode)(float, Overflow);
  float (*decode)(std::uint8_t);

  bool is_nan(unsigned code) const { return (code & 0x7f) > (past_largest == 0x7f ? 0x7e : 0x7c); }
  double value(unsigned code) const {
    const int exponent = static_cast<int>((code & 0x7f) >> mantissa_bits);
    const int mantissa = static_cast<int>(code & ((1u << mantissa_bits) - 1));
    const int implied = 1 << mantissa_bits;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                           : std::ldexp(implied + mantissa, exponent - bias - mantissa_bits);
    return (code & 0x80) != 0 ? -magnitude : magnitude;
  }
};
constexpr Fp8 kE4M3{"e4m3", 3, 7, 0x7e, 0x7f, float_to_e4m3, e4m3_to_float};
constexpr Fp8 kE5M2{"e5m2", 2, 15, 0x7b, 0x7c, float_to_e5m2, e5m2_to_float};

TEST(DTypeTest, EveryFp8DecodesByDefinitionAndSurvivesARoundTrip) {
  for (const Fp8& type : {kE4M3, kE5M2}) {
    for (unsigned code = 0; code < 256; ++code) {
      const auto bits = static_cast<std::uint8_t>(code);
      const float value = type.decode(bits);
      for (const Overflow overflow : {Overflow::kSaturate, Overflow::kNonFinite}) {
        const unsigned back = type.encode(value, overflow);
        if (type.is_nan(code)) {
          EXPECT_TRUE(std::isnan(value)) << type.name << code;
          EXPECT_EQ(back, 0x7fu) << type.name << code;
        } else if (std::isinf(value)) {
          EXPECT_EQ(code & 0x7f, 0x7cu) << type.name;
          EXPECT_EQ(back, (code & 0x80) | (overflow == Overflow::kSaturate ? 0x7b : 0x7c)) << type.name;
        } else {
          EXPECT_EQ(value, type.value(code)) << type.name << code;
          EXPECT_EQ(back, code) << type.name;
          EXPECT_EQ(std::signbit(value), code >= 128) << type.name << code;
        }
      }
    }
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(e5m2_to_float(0x7b), 57344.0f);
  EXPECT_EQ(e4m3_to_float(1), 0x1p-9f);
  EXPECT_EQ(e5m2_to_float(1), 0x1p-16f);
}

TEST(DTypeTest, Fp8RoundsToNearestAndTiesToEven) {
  for (const Fp8& type : {kE4M3, kE5M2}) {
    for (unsigned code = 0; code < type.largest; ++code) {
      const double low = type.value(code), high = type.value(code + 1), middle = (low + high) / 2;
      const unsigned even = code % 2 == 0 ? code : code + 1;
      const auto tie = static_cast<float>(middle);
      ASSERT_EQ(static_cast<double>(tie), middle);
      for (const unsigned sign : {0u, 0x80u}) {
        const float direction = sign ? -1.0f : 1.0f;
        const auto encode = [&](float value) -> unsigned {
          return type.encode(direction * value, Overflow::kSaturate);
        };
        EXPECT_EQ(encode(tie), sign | even) << type.name << code;
        EXPECT_EQ(encode(std::nextafter(tie, 0.0f)), sign | code) << type.name << code;
        EXPECT_EQ(encode(std::nextafter(tie, kInf)), sign | (code + 1)) << type.name << code;
      }
    }
  }
}

TEST(DTypeTest, Fp8PastItsRangeSaturatesOrIsNoNumber) {
  for (const Fp8& type : {kE4M3, kE5M2}) {
    // Half-way to the next step is still the largest where that is even, and past it where it is odd.
    const double step = type.value(type.largest) - type.value(type.largest - 1);
    const auto tie = static_cast<float>(type.value(type.largest) + step / 2);
    const unsigned of_tie = type.largest % 2 == 0 ? type.largest : type.past_largest;
    EXPECT_EQ(type.encode(tie, Overflow::kNonFinite), of_tie) << type.name;
    EXPECT_EQ(type.encode(std::nextafter(tie, 0.0f), Overflow::kNonFinite), type.largest) << type.name;
    for (const float value : {std::nextafter(tie, kInf), 1e30f, std::numeric_limits<float>::max(), kInf}) {
      EXPECT_EQ(type.encode(value, Overflow::kSaturate), type.largest) << type.name << value;
      EXPECT_EQ(type.encode(-value, Overflow::kSaturate), 0x80 | type.largest) << type.name << value;
      EXPECT_EQ(type.encode(value, Overflow::kNonFinite), type.past_largest) << type.name << value;
      EXPECT_EQ(type.encode(-value, Overflow::kNonFinite), 0x80 | type.past_largest) << type.name << value;
    }
    EXPECT_EQ(type.encode(kNan, Overflow::kSaturate), 0x7f) << type.name;
    EXPECT_EQ(type.encode(-kNan, Overflow::kNonFinite), 0x7f) << type.name;
    EXPECT_EQ(type.encode(0x1p-140f, Overflow::kSaturate), 0) << type.name;
    EXPECT_EQ(type.encode(-0.0f, Overflow::kSaturate), 0x80) << type.name;
  }
}

// Over every pair of neighbours: what precision_of says of a type is the largest error that there is, and no more.
TEST(DTypeTest, PrecisionIsThatOfTheCodec) {
  for (const auto& [dtype, type] : {std::pair(DType::kE4M3, kE4M3), std::pair(DType::kE5M2, kE5M2)}) {
    const Precision precision = precision_of(dtype);
    EXPECT_EQ(precision.largest, type.value(type.largest));
    EXPECT_EQ(precision.smallest, type.value(1) / 2);
    double unit = 0;
    for (unsigned code = 1u << type.mantissa_bits; code < type.largest; ++code) {
      const double low = type.value(code), gap = type.value(code + 1) - low;
      unit = std::max(unit, gap / 2 / low);
    }
    EXPECT_EQ(precision.unit, unit);
  }
  EXPECT_EQ(precision_of(DType::kF16).largest, half_to_float(0x7bff));
  EXPECT_EQ(precision_of(DType::kF16).smallest, half_to_float(1) / 2.0);
  EXPECT_EQ(precision_of(DType::kBF16).largest, bfloat16_to_float(0x7f7f));
}

TEST(Int8Test, EveryCodeAndTheRoundingBetweenThem) {
  for (int code = -128; code < 128; ++code)
    EXPECT_EQ(int8_to_float(static_cast<std::uint8_t>(code)), static_cast<float>(code));
  for (int code = -127; code < 128; ++code)
    EXPECT_EQ(float_to_int8(static_cast<float>(code)), static_cast<std::uint8_t>(code));
  EXPECT_EQ(round_to(DType::kInt8, 2.5f), 2.0f);
  EXPECT_EQ(round_to(DType::kInt8, -3.5f), -4.0f);
  EXPECT_EQ(round_to(DType::kInt8, 126.5f), 126.0f);
  EXPECT_EQ(round_to(DType::kInt8, 1e9f), 127.0f);
  EXPECT_EQ(round_to(DType::kInt8, -INFINITY), -127.0f);
  EXPECT_EQ(round_to(DType::kInt8, NAN), 0.0f);
  EXPECT_EQ(size_of(DType::kInt8), 1u);
  EXPECT_THROW(parse_dtype("int8"), Error);  // of caches alone
}

TEST(Int4Test, EveryCodeAndTheRoundingBetweenThem) {
  for (int code = -8; code < 8; ++code)
    EXPECT_EQ(int4_to_float(static_cast<std::uint8_t>(code & 0xf)), static_cast<float>(code));
  for (int code = -7; code < 8; ++code) EXPECT_EQ(float_to_int4(static_cast<float>(code)), code & 0xf);
  EXPECT_EQ(round_to(DType::kInt4, 2.5f), 2.0f);
  EXPECT_EQ(round_to(DType::kInt4, -3.5f), -4.0f);
  EXPECT_EQ(round_to(DType::kInt4, 6.6f), 7.0f);
  EXPECT_EQ(round_to(DType::kInt4, 1e9f), 7.0f);
  EXPECT_EQ(round_to(DType::kInt4, -INFINITY), -7.0f);
  EXPECT_EQ(round_to(DType::kInt4, NAN), 0.0f);
  EXPECT_EQ(bits_of(DType::kInt4), 4);
  EXPECT_EQ(bytes_of(DType::kInt4, 6), 3);
  EXPECT_EQ(bytes_of(DType::kInt8, 6), 6);
  EXPECT_THROW(bytes_of(DType::kInt4, 5), Error);
  EXPECT_THROW(size_of(DType::kInt4), Error);
  EXPECT_THROW(parse_dtype("int4"), Error);  // of caches alone
}

// Every byte is two codes, the even element in its lower half, and a code is written beside any other.
TEST(Int4Test, TwoElementsShareAByte) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::uint8_t memory[2] = {0x5a, static_cast<std::uint8_t>(byte)};
    EXPECT_EQ(load_element(DType::kInt4, memory, 2), int4_to_float(static_cast<std::uint8_t>(byte & 0xf)));
    EXPECT_EQ(load_element(DType::kInt4, memory, 3), int4_to_float(static_cast<std::uint8_t>(byte >> 4)));
    std::uint8_t copy[2] = {};
    store_int4_code(copy, 3, memory[1] >> 4);
    store_int4_code(copy, 2, memory[1]);
    EXPECT_EQ(copy[0], 0);
    EXPECT_EQ(copy[1], memory[1]);
  }
  std::uint8_t memory[2] = {0xff, 0xff};
  // Before the address, where a stride is negative.
  const std::uint8_t codes[2] = {0x5a, 0};
  EXPECT_EQ(load_element(DType::kInt4, codes + 1, -1), 5.0f);
  EXPECT_EQ(load_element(DType::kInt4, codes + 1, -2), -6.0f);
  store_element(DType::kInt4, memory, 1, -3.2f);
  store_element(DType::kInt4, memory, 2, 5);
  EXPECT_EQ(memory[0], 0xdf);
  EXPECT_EQ(memory[1], 0xf5);
}

TEST(DTypeTest, ElementsAreStoredRoundedAndRead) {
  for (const DType dtype : kAllDTypes) {
    unsigned char memory[16] = {};
    store_element(dtype, memory, 2, 1.0f / 3);
    store_element(dtype, memory, 3, -2.5f);
    EXPECT_EQ(load_element(dtype, memory, 2), round_to(dtype, 1.0f / 3));
    EXPECT_EQ(load_element(dtype, memory, 3), -2.5f);
    EXPECT_EQ(load_element(dtype, memory, 1), 0.0f);
  }
  EXPECT_EQ(round_to(DType::kF32, 0.1f), 0.1f);
  EXPECT_EQ(round_to(DType::kF16, 0.1f), 0.0999755859375f);
  EXPECT_EQ(round_to(DType::kBF16, 0.1f), 0.10009765625f);
  EXPECT_TRUE(std::isnan(round_to(DType::kBF16, kNan)));
  EXPECT_EQ(round_to(DType::kE4M3, 0.1f), 0.1015625f);
  EXPECT_EQ(round_to(DType::kE5M2, 0.1f), 0.09375f);
  EXPECT_EQ(round_to(DType::kE4M3, -1000.0f), -448.0f);
}

}  // namespace
}  // namespace flashcore
