#include "core/data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "core/error.h"
#include "core/hash.h"
#include "core/indexed_random.h"
#include "core/reference.h"

namespace flashcore {
namespace {

std::string hash_of(const HostTensor& tensor) {
  return hash128({reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()});
}

TEST(DataTest, PatternNamesRoundTrip) {
  for (const Pattern pattern : all_patterns()) EXPECT_EQ(parse_word<Pattern>(to_string(pattern)), pattern);
  EXPECT_EQ(all_patterns().size(), 12u);
  EXPECT_EQ(patterns_of(Problem::parse("b1_h1_s1_d8_fp16")).size(), 9u);
  EXPECT_EQ(patterns_of(Problem::parse("b1_h1_s1_d8_e4m3")).size(), 11u);
  EXPECT_EQ(patterns_of(Problem::parse("b1_h1_s1_d8_fp16_kvint8")).size(), 11u);
  EXPECT_THROW(parse_word<Pattern>("zeros"), Error);
}

// One that nobody draws is N(0, 1), and passes every test.
TEST(DataTest, NoTwoPatternsAreTheSameData) {
  const PlacedProblem p = PlacedProblem::parse("b1_h2_s64_d64_fp16");
  std::map<std::string, Pattern> seen;
  for (const Pattern pattern : all_patterns()) {
    const AttentionInputs in = make_inputs(p, pattern, 1);
    const auto [other, is_new] = seen.emplace(hash_of(in.q) + hash_of(in.k) + hash_of(in.v), pattern);
    EXPECT_TRUE(is_new) << to_string(pattern) << " has q, k and v of " << to_string(other->second);
  }
}

// The bits themselves: a change here makes stored seeds mean something else.
TEST(DataTest, BitsAreFixedForever) {
  const AttentionInputs in = make_inputs(PlacedProblem::parse("b2_h2_s100_d64_fp16"), Pattern::kNormal, 1);
  EXPECT_EQ(hash_of(in.q), "e80864a4934d887eb9d556d1c807103e");
  EXPECT_EQ(hash_of(in.k), "e479ff877cc32b1537e57b9676836a04");
  EXPECT_EQ(hash_of(in.v), "cfdd06a67558fbd24d585ebb2170397e");
}

// Several at a time, by vectors where the machine has them, and from one to the next group of them.
TEST(DataTest, NumbersInARowAreThoseOneByOne) {
  const IndexedRandom random(7, DataStream::kK);
  for (const std::int64_t first : {std::int64_t{0}, std::int64_t{3}, std::int64_t{1} << 40}) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{64}, std::size_t{5003}}) {
      std::vector<double> row(count);
      random.normals(first, row);
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(row[i], random.normal(first + static_cast<std::int64_t>(i))) << first << " " << i;
    }
  }
}

TEST(DataTest, LayoutDoesNotChangeValuesAndGapsAreNan) {
  for (const Pattern pattern : all_patterns()) {
    const AttentionInputs plain = make_inputs(PlacedProblem::parse("b2_h4_hk2_sq9_sk70_d24_bf16"), pattern, 7);
    for (const char* layout : {"_bshd", "_strided"}) {
      const AttentionInputs other =
          make_inputs(PlacedProblem::parse(std::string("b2_h4_hk2_sq9_sk70_d24_bf16") + layout), pattern, 7);
      const std::vector<float> a = gather_rows(plain.k, {}), b = gather_rows(other.k, {});
      ASSERT_EQ(a.size(), b.size());
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * 4), 0) << to_string(pattern);
    }
  }
  const HostTensor strided = make_inputs(PlacedProblem::parse("b2_h4_s9_d24_fp16_strided"), Pattern::kNormal, 7).q;
  const TensorLayout& at = strided.layout;
  EXPECT_EQ(at.stride_head, 32);
  EXPECT_EQ(at.stride_row, 128);
  std::int64_t nans = 0;
  for (std::int64_t i = 0; i < at.span(); ++i)
    nans += std::isnan(load_element(DType::kF16, strided.data.data(), i)) ? 1 : 0;
  EXPECT_EQ(nans, at.span() - at.elements());
  EXPECT_GT(nans, 0);
}

TEST(DataTest, SeedsTensorsAndHeadsDiffer) {
  const PlacedProblem p = PlacedProblem::parse("b2_h2_s64_d64_fp32");
  const AttentionInputs one = make_inputs(p, Pattern::kNormal, 1), two = make_inputs(p, Pattern::kNormal, 2);
  EXPECT_NE(hash_of(one.q), hash_of(two.q));
  EXPECT_NE(hash_of(one.q), hash_of(one.k));
  EXPECT_NE(hash_of(one.k), hash_of(one.v));
  EXPECT_NE(one.q.at(0, 0, 0, 0), one.q.at(0, 1, 0, 0));
  EXPECT_EQ(hash_of(one.q), hash_of(make_inputs(p, Pattern::kNormal, 1).q));
}

TEST(DataTest, NormalIsStandardNormalAndUncorrelated) {
  const PlacedProblem p = PlacedProblem::parse("b1_h4_s1024_d64_fp32");
  const AttentionInputs in = make_inputs(p, Pattern::kNormal, 3);
  const std::vector<float> q = gather_rows(in.q, {}), k = gather_rows(in.k, {});
  const auto n = static_cast<double>(q.size());
  double sum = 0, sum2 = 0, sum3 = 0, sum4 = 0, cross = 0, neighbour = 0, within1 = 0, beyond3 = 0;
  for (std::size_t i = 0; i < q.size(); ++i) {
    const double x = q[i];
    sum += x;
    sum2 += x * x;
    sum3 += x * x * x;
    sum4 += x * x * x * x;
    cross += x * k[i];
    if (i > 0) neighbour += x * q[i - 1];
    within1 += std::abs(x) < 1 ? 1 : 0;
    beyond3 += std::abs(x) > 3 ? 1 : 0;
  }
  const double sigma = 1 / std::sqrt(n);  // bounds are five standard deviations of each estimate
  EXPECT_NEAR(sum / n, 0, 5 * sigma);
  EXPECT_NEAR(sum2 / n, 1, 5 * std::sqrt(2.0) * sigma);
  EXPECT_NEAR(sum3 / n, 0, 5 * std::sqrt(15.0) * sigma);
  EXPECT_NEAR(sum4 / n, 3, 5 * std::sqrt(96.0) * sigma);
  EXPECT_NEAR(cross / n, 0, 5 * sigma);
  EXPECT_NEAR(neighbour / n, 0, 5 * sigma);
  EXPECT_NEAR(within1 / n, 0.6826895, 5 * 0.47 * sigma);
  EXPECT_NEAR(beyond3 / n, 0.0026998, 5 * 0.052 * sigma);
}

double largest_probability(const PlacedProblem& p, const AttentionInputs& in, std::int64_t row) {
  double maximum = -1e300, sum = 0;
  std::vector<double> scores;
  const KeyRange<std::int64_t> keys = p.band().keys_of_row(row);
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    double s = 0;
    for (std::int64_t d = 0; d < p.head_dim; ++d) s += static_cast<double>(in.q.at(0, 0, row, d)) * in.k.at(0, 0, j, d);
    scores.push_back(s * p.softmax_scale());
    maximum = std::max(maximum, scores.back());
  }
  for (const double s : scores) sum += std::exp(s - maximum);
  return 1 / sum;
}

TEST(DataTest, PeakedRowsAreCloseToOneHot) {
  for (const char* id : {"b1_h1_s128_d64_fp16_causal", "b1_h1_s128_d128_bf16", "b1_h1_s128_d32_fp32_scale0.01",
                         "b1_h1_s128_d64_fp16_causal_wl20"}) {
    const PlacedProblem p = PlacedProblem::parse(id);
    const AttentionInputs in = make_inputs(p, Pattern::kPeaked, 1);
    double mean = 0;
    for (std::int64_t row = 0; row < 128; ++row) mean += largest_probability(p, in, row) / 128;
    EXPECT_GT(mean, 0.95) << id;
  }
}

TEST(DataTest, LargeLogitsAreLargeAndFinite) {
  for (const char* id : {"b1_h1_s128_d64_fp16", "b1_h1_s128_d256_bf16", "b1_h1_s64_d64_fp16_scale1"}) {
    const PlacedProblem p = PlacedProblem::parse(id);
    const AttentionInputs in = make_inputs(p, Pattern::kLargeLogits, 1);
    for (const HostTensor* tensor : {&in.q, &in.k, &in.v}) {
      for (const float value : gather_rows(*tensor, {})) ASSERT_TRUE(std::isfinite(value));
    }
    const Reference ref = reference_forward(p, in, {});
    // Above 88.7, exp overflows fp32 if the maximum is not subtracted.
    EXPECT_GT(*std::max_element(ref.lse.begin(), ref.lse.end()), 500) << id;
  }
}

TEST(DataTest, ConstantRowsGiveVItself) {
  const PlacedProblem p = PlacedProblem::parse("b1_h2_s50_d16_fp16");
  const AttentionInputs in = make_inputs(p, Pattern::kConstant, 1);
  const Reference ref = reference_forward(p, in, {});
  for (std::size_t row = 0; row < 50; ++row) {
    for (std::int64_t d = 0; d < 16; ++d)
      EXPECT_NEAR(ref.o[row * 16 + static_cast<std::size_t>(d)], in.v.at(0, 0, 0, d), 1e-12);
  }
  EXPECT_NE(in.v.at(0, 0, 0, 0), in.v.at(0, 1, 0, 0));
}

TEST(DataTest, OutliersAreFewAndOneIsInTheLastKey) {
  const PlacedProblem p = PlacedProblem::parse("b1_h2_s200_d64_fp16");
  const AttentionInputs in = make_inputs(p, Pattern::kOutlier, 1), normal = make_inputs(p, Pattern::kNormal, 1);
  int changed = 0, last = 0;
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t row = 0; row < 200; ++row) {
      for (std::int64_t d = 0; d < 64; ++d) {
        if (in.v.at(0, h, row, d) == normal.v.at(0, h, row, d) || in.v.at(0, h, row, d) == 0) continue;
        EXPECT_NEAR(in.v.at(0, h, row, d) / normal.v.at(0, h, row, d), 1000, 2);
        ++changed;
        last += row == 199 ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(last, 2);
  EXPECT_GE(changed, 4);
  EXPECT_LE(changed, 30);
  // Beside them rows of zeros.
  EXPECT_EQ(in.q.at(0, 1, 5, 3), 0);
  EXPECT_EQ(in.k.at(0, 1, 6, 3), 0);
  EXPECT_EQ(in.v.at(0, 1, 8, 3), 0);
  EXPECT_EQ(in.k.at(0, 1, 7, 3), normal.k.at(0, 1, 7, 3));
}

TEST(DataTest, NonFiniteHasEveryKindAndLeavesMostRowsFinite) {
  const PlacedProblem p = PlacedProblem::parse("b1_h4_s256_d64_fp16_causal");
  const AttentionInputs in = make_inputs(p, Pattern::kNonFinite, 1);
  int nan = 0, plus = 0, minus = 0;
  for (const HostTensor* tensor : {&in.q, &in.k}) {
    for (const float value : gather_rows(*tensor, {})) {
      nan += std::isnan(value) ? 1 : 0;
      plus += std::isinf(value) && value > 0 ? 1 : 0;
      minus += std::isinf(value) && value < 0 ? 1 : 0;
    }
  }
  EXPECT_EQ(nan, 4 + 1);
  EXPECT_EQ(plus, 4 + 1);
  EXPECT_EQ(minus, 4 + 1);
  for (const float value : gather_rows(in.v, {})) ASSERT_TRUE(std::isfinite(value));
  const Reference ref = reference_forward(p, in, {});
  std::int64_t finite = 0;
  for (const double lse : ref.lse) finite += std::isfinite(lse) ? 1 : 0;
  EXPECT_GT(finite, 4 * 256 * 3 / 4);
  EXPECT_LT(finite, 4 * 256);
}

// Quantised, a tensor's largest finite value is the largest of the type, and each value is within its rounding of what
// 32 bits draw.
TEST(DataTest, EightBitsAreTheSameDataByTrueFactors) {
  for (const char* type :
       {"e4m3", "e5m2", "e4m3_perhead", "e4m3_pertoken", "e5m2_unscaled", "bf16_kve4m3", "fp16_kvint8_perhead",
        "fp32_kve5m2", "bf16_kve4m3_pertoken", "fp16_kvint8_pertoken", "bf16_kvint4_perhead", "fp16_kvint4_pertoken"}) {
    for (const Pattern pattern : {Pattern::kNormal, Pattern::kOutlier, Pattern::kPositive}) {
      const std::string sizes = "b2_h4_hk2_sq9_sk70_d24_";
      const PlacedProblem p = PlacedProblem::parse(sizes + type);
      const AttentionInputs in = make_inputs(p, pattern, 7);
      const AttentionInputs plain = make_inputs(PlacedProblem::parse(sizes + "fp32"), pattern, 7);
      const Precision precision = precision_of(p.cache_dtype());
      const DescaleCounts counts = descale_counts(p, make_layouts(p));
      ASSERT_EQ(static_cast<std::int64_t>(in.descale_q.size()), counts.q);
      ASSERT_EQ(static_cast<std::int64_t>(in.descale_k.size()), counts.k);
      ASSERT_EQ(static_cast<std::int64_t>(in.descale_v.size()), counts.v);
      ASSERT_EQ(in.q.dtype, p.dtype);
      const float least = p.cache_dtype() == DType::kInt8 ? -128.0f : p.cache_dtype() == DType::kInt4 ? -8.0f : NAN;
      if (is_integer(p.cache_dtype())) {
        EXPECT_EQ(in.k.at(1, 1, 8, 5), least);  // which no number becomes
        EXPECT_EQ(in.v.at(1, 1, 8, 5), least);
      }
      // Heads are far apart where each key has its own factor.
      const auto of_head = [&](std::int64_t b, std::int64_t h) {
        const bool apart = p.v_scaling() == Scaling::kToken && pattern == Pattern::kOutlier;
        return apart ? std::ldexp(1.0, -10 * static_cast<int>((b + h) % 4)) : 1.0;
      };
      float largest = 0;
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t h = 0; h < 2; ++h) {
          float largest_of_head = 0;
          for (std::int64_t row = 0; row < 70; ++row) {
            const double factor = descale_v_at(p, in.descale_v, b, h, row);
            float largest_of_row = 0;
            for (std::int64_t d = 0; d < 24; ++d) {
              const float stored = in.v.at(b, h, row, d);
              if (stored == least) {
                largest_of_row = precision.largest;  // it may be in the place of the largest
                continue;
              }
              const double value = of_head(b, h) * plain.v.at(b, h, row, d);
              largest_of_row = std::max(largest_of_row, std::abs(stored));
              if (std::abs(value / factor) > precision.largest) {
                EXPECT_EQ(std::abs(stored), precision.largest) << p.id();  // without factors: saturated, not wrapped
                continue;
              }
              EXPECT_NEAR(stored * factor, value,
                          1.001 * std::max(precision.unit * std::abs(value), precision.smallest * factor))
                  << p.id() << " " << to_string(pattern);
            }
            if (p.v_scaling() == Scaling::kToken) {
              const bool is_zero =
                  largest_of_row == 0 && plain.v.at(b, h, row, 0) == 0;  // but for int8's -128 and int4's -8
              EXPECT_EQ(largest_of_row, is_zero ? 0 : precision.largest) << p.id() << " row " << row;
            }
            largest_of_head = std::max(largest_of_head, largest_of_row);
          }
          largest = std::max(largest, largest_of_head);
          if (p.v_scaling() == Scaling::kHead) {
            EXPECT_EQ(largest_of_head, precision.largest) << p.id();
          }
        }
      }
      if (p.input_scaling() == Scaling::kTensor) {
        EXPECT_EQ(largest, precision.largest) << p.id();
      }
    }
  }
}

TEST(DataTest, EveryRowOf8BitsMayHaveItsFactor) {
  const PlacedProblem p = PlacedProblem::parse("b2_h4_hk2_sq9_sk70_d24_e4m3_pertoken_strided");
  for (const Pattern pattern : {Pattern::kNormal, Pattern::kOutlier}) {
    const AttentionInputs in = make_inputs(p, pattern, 7);
    const AttentionInputs plain = make_inputs(PlacedProblem::parse("b2_h4_hk2_sq9_sk70_d24_fp32"), pattern, 7);
    for (std::int64_t row = 0; row < 9; ++row) {
      const float factor = descale_q_at(p, in.descale_q, 1, 3, row);
      const double apart = pattern == Pattern::kOutlier ? std::ldexp(1.0, static_cast<int>((3 * row + 3) % 5) - 2) : 1;
      float largest = 0;
      for (std::int64_t c = 0; c < 24; ++c) {
        const double value = apart * plain.q.at(1, 3, row, c), stored = in.q.at(1, 3, row, c);
        EXPECT_NEAR(stored * factor, value, 0x1.01p-4 * std::abs(value) + 0x1.01p-10 * factor);
        largest = std::max(largest, static_cast<float>(std::abs(stored)));
      }
      EXPECT_EQ(largest, plain.q.at(1, 3, row, 0) == 0 ? 0 : 448) << row;
    }
  }
}

TEST(DataTest, TransposedVIsTheSameDataAndTheReferenceReadsIt) {
  const PlacedProblem plain = PlacedProblem::parse("b2_h4_hk2_sq3_sk37_d32_dv16_e4m3_perhead_causal"),
                      transposed = PlacedProblem::parse("b2_h4_hk2_sq3_sk37_d32_dv16_e4m3_perhead_causal_vdn");
  const AttentionInputs a = make_inputs(plain, Pattern::kNormal, 5), b = make_inputs(transposed, Pattern::kNormal, 5);
  EXPECT_EQ(a.descale_v, b.descale_v);
  for (int key = 0; key < 37; ++key)
    for (int column = 0; column < 16; ++column) EXPECT_EQ(a.v.at(1, 1, key, column), b.v.at(1, 1, column, key));
  // Between the columns is NaN.
  EXPECT_TRUE(std::isnan(load_element(DType::kE4M3, b.v.data.data(), b.v.layout.offset(0, 1, 3) + 37)));
  EXPECT_EQ(reference_forward(plain, a, RowSample()).o, reference_forward(transposed, b, RowSample()).o);
}

TEST(DataTest, EightBitsKeepNanAndGaps) {
  for (const char* id : {"b1_h4_s64_d16_e4m3_strided", "b1_h4_s64_d16_e5m2_strided"}) {
    const PlacedProblem p = PlacedProblem::parse(id);
    const AttentionInputs in = make_inputs(p, Pattern::kNonFinite, 1);
    int nan = 0, infinite = 0;
    for (const float value : gather_rows(in.q, {})) nan += std::isnan(value), infinite += std::isinf(value);
    EXPECT_EQ(nan, 4) << id;  // of each head
    EXPECT_EQ(infinite, p.dtype == DType::kE5M2 ? 8 : 0) << id;
    for (const unsigned char code : {0x7f, 0xff})
      EXPECT_NE(std::find(in.q.data.begin(), in.q.data.end(), std::byte{code}), in.q.data.end()) << id;
    std::int64_t gaps = 0;
    for (std::int64_t i = 0; i < in.q.layout.span(); ++i)
      gaps += std::isnan(load_element(p.dtype, in.q.data.data(), i)) ? 1 : 0;
    EXPECT_EQ(gaps, in.q.layout.span() - in.q.layout.elements() + nan) << id;
  }
}

// What clamps a score or an output, or has no room for it, shows; and what is right has room.
TEST(DataTest, ExtremeLogitsAndOutputsAreFiniteInFp16AndHoldWhenVIsDoubled) {
  for (const char* id :
       {"b1_h2_s64_d64_fp16", "b1_h2_s64_d16_fp16_causal", "b1_h2_s64_d256_fp16", "b1_h2_sq1_sk70_d128_fp16"}) {
    const PlacedProblem p = PlacedProblem::parse(id);
    const AttentionInputs in = make_inputs(p, Pattern::kExtreme, 1);
    const Reference ref = reference_forward(p, in, {});
    double largest_o = 0, largest_lse = 0;
    for (const double o : ref.o) largest_o = std::max(largest_o, std::abs(o));
    for (const double lse : ref.lse) largest_lse = std::max(largest_lse, std::abs(lse));
    EXPECT_GT(largest_o, 6000) << id;
    EXPECT_LT(2 * largest_o, 65504) << id;
    EXPECT_GT(largest_lse, p.seqlen_q > 1 ? 8000 : 4000) << id;
    for (const auto tensor : {&AttentionInputs::q, &AttentionInputs::k, &AttentionInputs::v})
      for (const float value : gather_rows(in.*tensor, {})) ASSERT_LT(std::abs(value), 65504 / 2) << id;
  }
}

// Where o has the range: heads are far larger and far smaller than fp16 has numbers for.
TEST(DataTest, ExtremeOutputsUseTheRangeOfTheirType) {
  for (const char* id : {"b1_h2_s64_d16_bf16_causal", "b1_h2_s64_d256_fp32", "b1_h2_s64_d64_e4m3",
                         "b1_h2_s64_d64_e4m3_perhead", "b1_h2_sq2_sk64_d64_bf16_kvint8_perhead"}) {
    const PlacedProblem p = PlacedProblem::parse(id);
    const Reference ref = reference_forward(p, make_inputs(p, Pattern::kExtreme, 1), {});
    const std::size_t half = ref.o.size() / 2;
    const auto largest = [&](std::size_t begin) {
      double found = 0;
      for (std::size_t i = begin; i < begin + half; ++i) found = std::max(found, std::abs(ref.o[i]));
      return found;
    };
    EXPECT_GT(largest(0), 0x1p40) << id;
    EXPECT_LT(largest(0), 0x1p44) << id;
    // One factor for all heads leaves nothing of smaller ones.
    if (p.input_scaling() == Scaling::kTensor) EXPECT_GT(largest(half), 0x1p40) << id;
    else EXPECT_LT(largest(half), 0x1p-36) << id;
    EXPECT_GT(largest(half), 0x1p-44) << id;
  }
}

// q of fp16's subnormal numbers and V too; in types with more range q that fp16 does not hold. The scores are small.
TEST(DataTest, UnequalOperandsAreBeyondFp16OnEitherSide) {
  const auto largest = [](const HostTensor& tensor) {
    float found = 0;
    for (const float value : gather_rows(tensor, {})) found = std::max(found, std::abs(value));
    return found;
  };
  const auto mean = [](const HostTensor& tensor) {
    double sum = 0;
    const std::vector<float> values = gather_rows(tensor, {});
    for (const float value : values) sum += std::abs(value);
    return sum / static_cast<double>(values.size());
  };
  for (const char* id : {"b1_h2_s64_d64_fp16", "b1_h2_s64_d64_bf16", "b1_h2_sq4_sk64_d64_bf16_kve4m3_perhead"}) {
    const PlacedProblem p = PlacedProblem::parse(id);
    const AttentionInputs in = make_inputs(p, Pattern::kUnequal, 1);
    if (p.dtype == DType::kF16) {
      EXPECT_LT(mean(in.q), 0x1p-14) << id;
      EXPECT_LT(mean(in.v), 0x1p-14) << id;
      EXPECT_GT(largest(in.k), 0x1p14) << id;
    } else {
      EXPECT_GT(mean(in.q), 65504) << id;
    }
    for (const double lse : reference_forward(p, in, {}).lse) EXPECT_LT(std::abs(lse), 10) << id;
  }
  const PlacedProblem bare = PlacedProblem::parse("b1_h2_sq4_sk64_d64_bf16_kve4m3_unscaled");
  EXPECT_LT(largest(make_inputs(bare, Pattern::kUnequal, 1).q), 10) << "codes without factors";
}

// Sinks of the size of scores, far larger and far smaller, and not finite; slopes of either sign, and none.
TEST(DataTest, SinksAndSlopesAreFarFromTheUsualToo) {
  const PlacedProblem p = PlacedProblem::parse("b1_h8_s64_d64_bf16_alibi_sink");
  std::vector<float> sinks, slopes;
  int nan = 0;
  for (const Pattern pattern : all_patterns()) {
    const AttentionInputs in = make_inputs(p, pattern, 1);
    for (const float sink : in.sink) {
      if (std::isnan(sink)) ++nan;
      else sinks.push_back(sink);
    }
    slopes.insert(slopes.end(), in.alibi.begin(), in.alibi.end());
  }
  const auto has = [](const std::vector<float>& values, const auto& is_it) {
    return std::any_of(values.begin(), values.end(), is_it);
  };
  EXPECT_EQ(nan, 1);
  EXPECT_TRUE(has(sinks, [](float x) { return x == std::numeric_limits<float>::infinity(); }));
  EXPECT_TRUE(has(sinks, [](float x) { return x == -std::numeric_limits<float>::infinity(); }));
  EXPECT_TRUE(has(sinks, [](float x) { return x == 100; }) && has(sinks, [](float x) { return x == -100; }));
  EXPECT_TRUE(has(sinks, [](float x) { return x > 20 && x < 40; }));
  EXPECT_TRUE(has(slopes, [](float x) { return x < -0.1f; }) && has(slopes, [](float x) { return x == 0; }));
}

TEST(DataTest, ZeroLengthsAndSingleElements) {
  for (const Pattern pattern : all_patterns()) {
    for (const char* id : {"b1_h2_sq0_sk5_d8_fp16", "b1_h2_sq5_sk0_d8_fp16_causal", "b1_h1_s1_d1_fp32",
                           "b1_h1_s0_d8_bf16_strided", "b1_h2_sq5_sk0_d8_e4m3_perhead", "b1_h1_s1_d1_e5m2"}) {
      const PlacedProblem p = PlacedProblem::parse(id);
      const AttentionInputs in = make_inputs(p, pattern, 1);
      EXPECT_EQ(in.q.data.size(), static_cast<std::size_t>(in.q.layout.span()) * size_of(p.dtype));
    }
  }
}

}  // namespace
}  // namespace flashcore
