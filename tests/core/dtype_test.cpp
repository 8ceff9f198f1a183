#include "core/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

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
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
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
    EXPECT_NE(std::string(error.what()).find("fp32, fp16 or bf16"), std::string::npos);
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

TEST(DTypeTest, ElementsAreStoredRoundedAndRead) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
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
}

}  // namespace
}  // namespace flashcore
