#include "core/expression_division.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/expression_value.h"
#include "random_expression.h"

namespace flashcore {
namespace {

constexpr auto kScore = ExpressionUse::kScore;
constexpr auto kMask = ExpressionUse::kMask;
constexpr ExpressionSizes kSmall{2, 4, 2, 10, 12};

std::string refusal(std::string_view text, ExpressionUse use = kScore, const ExpressionSizes& sizes = kSmall,
                    bool lengths_vary = false) {
  const Expression expression = Expression::parse(text, use, example_tensors());
  try {
    check_divisions(expression, ExpressionBox::of(sizes, lengths_vary));
    check_expression(expression, ExpressionBox::of(sizes, lengths_vary));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    return error.what();
  }
  return "nothing";
}

TEST(ExpressionDivision, WhatMayDivideByZeroIsRefused) {
  EXPECT_EQ(refusal("s / (i - j)"),
            "column 3 of the score: '/' may divide by 0: its divisor may be -11 to 9; max(x, 1) or where(x == 0, 1, x) "
            "excludes it");
  EXPECT_EQ(refusal("s / (i - i)"),
            "column 3 of the score: '/' divides by 0: its divisor is 0; max(x, 1) or where(x == 0, 1, x) excludes it");
  EXPECT_EQ(refusal("j / i < 0.5", kMask),
            "column 3 of the mask: '/' may divide by 0: its divisor may be 0 to 9; max(x, 1) or where(x == 0, 1, x) "
            "excludes it");
  for (const char* text : {"s / i",
                           "s / (h - 2)",
                           "s + 1 / (0.5 * j - 2)",
                           "s / (i * j)",
                           "s / log(1 + i)",
                           "s / tanh(i - j)",
                           "s / (i // 4)",
                           "s / (j % 5)",
                           "s / sqrt(i)",
                           "s / (log2(1 + i) - 3)",
                           "s / (1 - tanh(0.1 * i + 10))",
                           "s / exp(-100 * j)",
                           "s / abs(i - j)",
                           "s / max(i - j, 0)",
                           "s / min(i, 5)",
                           "s / where(i > 3, i, j)",
                           "s / where(i == 0, i, 1)",
                           "where(i == 0, s / i, s)",
                           "where(s / i > 0, s, 0)",
                           "s + i // (h - 1)",
                           "s + j % i",
                           "where(i > 0, 0, s / j)",
                           "s / (i - j + 0.001)",
                           "s + h / (b * 0.0)",
                           "s / (i + seqlen_kv - seqlen_q - j)"})  // fmt: skip
    EXPECT_NE(refusal(text).find("by 0: its divisor"), std::string::npos) << text;
  for (const char* text :
       {"i / j < 2 || j != 0", "i != 0 || j / i < 2", "!(i == 0) && 1 / j < 2", "j / i < 2 && j != 0"})
    EXPECT_NE(refusal(text, kMask).find("by 0: its divisor"), std::string::npos) << text;
}

TEST(ExpressionDivision, WhatCannotIsTaken) {
  for (const char* text : {"s / (1 + i)",
                           "s / 30",
                           "s / seqlen_kv",
                           "s / (seqlen_q - i)",
                           "s / (seqlen_kv - j)",
                           "s / log(1 + seqlen_kv)",
                           "s / sqrt(1.0 + i)",
                           "s / (log2(2 + i) - 0.8)",
                           "s / sqrt(abs(i - j + 0.5))",
                           "s / ((0.5 * i + 1) * (0.5 * i + 1) - 0.5)",
                           "s / (1 + abs(i - j))",
                           "s / (1 + exp(-0.1 * (i - j)))",
                           "s / exp2(-0.1 * i)",
                           "s / (i - j + 0.5)",
                           "s / (2 * (i - j) + 1)",
                           "s / (0.5 * i - 0.25 * j + 0.125)",
                           "s / ((i - j) * (i - j) + 1)",
                           "s / max(i - j, 1)",
                           "s / (h // 2 + 1)",
                           "s / (h % 3 + 1)",
                           "s / (i - 12)",
                           "s / (-1 - h)",
                           "s / min(i - j, -1)",
                           "s / ((1 + i) * (1 + j))",
                           "s / -abs(i + 1)",
                           "1 / (1 + i) * s"})  // fmt: skip
    EXPECT_EQ(refusal(text), "nothing") << text;
}

// As docs/expressions.md says: divisors that cannot be bounded, and those that only rounding makes 0.
TEST(ExpressionDivision, WhatIsNotJudgedIsTaken) {
  for (const char* text : {"s / (1 / (i - j + 0.5) - 2)", "s / (0.1 + 0.2 - 0.3)", "s / (1e-30 * 1e-30)", "1 / s"})
    EXPECT_EQ(refusal(text), "nothing") << text;
}

TEST(ExpressionDivision, AConditionSaysThatItIsNotZero) {
  for (const char* text : {"s / where(i == j, 1, i - j)",
                           "s / where(i - j == 0, 1, i - j)",
                           "s / where(j != i, i - j, 1)",
                           "s / where(i > j, i - j, 1)",
                           "s / where(i >= j + 1, i - j, 1)",
                           "s / where(!(i == j), 2 * (j - i), 1)",
                           "s / where(0.5 * i == 0.0, 1.0, 0.5 * i)",
                           "where(i == 0, s, s / i)",
                           "where(i > 0, s / i, s)",
                           "where(i == 0, s, s * (1 - 1 / i))",
                           "where(i == 0 || j == 0, s, s / (i * 1.0) + s / j)",
                           "where(i != 0 && j > 2, s / i - s / (j - 1), 0)",
                           "s / where(abs(i - j) < 1, 1, j - i)",
                           "s / (2 * where(i == 0, 1, i))",
                           "s / max(where(i == 0, 1, i), where(j == 0, 3, j))",
                           "where(abs(i - j) > 0.5, s / (i - j), s)",
                           "where(i > j, where(j > 0, s / (i - j) + s / j, 0), 1)",
                           "where(tanh(i) == 0, s, s / tanh(i))",
                           "where(i > j, s / sqrt(i - j), s)",
                           "where(i == j, s, s / sqrt(abs(i - j)))",
                           "where(i == j, s, s / (2 * abs(i - j)))",
                           "where(i != j, s / ((i - j) * (i - j)), s)",
                           "where(i > 0 && j > 0, s / (i * j), s)"})  // fmt: skip
    EXPECT_EQ(refusal(text), "nothing") << text;
  for (const char* text : {"i != 0 && j / i < 2", "i == 0 || j / i < 2", "j // max(i, 1) < 2", "!(i == 0) && 1 / i < 2",
                           "j / i < 2 && i > 0"})
    EXPECT_EQ(refusal(text, kMask), "nothing") << text;
}

// What a mask of the problem hides is nobody's division.
TEST(ExpressionDivision, PairsThatABandHidesAreLeftOut) {
  const auto taken = [](const char* text, const VisibleKeys& visible) {
    try {
      check_divisions(Expression::parse(text, kScore), ExpressionBox::of(kSmall, false), visible);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  const VisibleKeys causal{.last = 0}, window{.first = -3, .last = 2};
  for (const char* text : {"s / (i - j + 1)", "s / (1 + 0.5 * (i - j))", "s / sqrt(1 + i - j)"}) {
    EXPECT_FALSE(taken(text, {})) << text;
    EXPECT_TRUE(taken(text, causal)) << text;
    EXPECT_FALSE(taken(text, window)) << text;
  }
  EXPECT_FALSE(taken("s / (i - j)", causal));
  EXPECT_FALSE(taken("s / (i - 2 * j + 1)", causal)) << "no multiple of j - i";
  EXPECT_TRUE(taken("s / (i - j + 3)", window));
}

// Nobody but the device knows; what IEEE 754 says comes of it.
TEST(ExpressionDivision, ScoresAndElementsAreNotJudged) {
  for (const char* text : {"1 / s", "1 / (1 - s)", "s / slope[h]", "s / (doc[b, i] - doc[b, j])",
                           "s / where(s > 0, i, j)", "i / where(keep[j], 0 * j, 1)", "s * i / tanh(s)"})  // fmt: skip
    EXPECT_EQ(refusal(text), "nothing") << text;
  // Ints have no infinity.
  EXPECT_EQ(refusal("s + i // doc[b, j]"),
            "column 7 of the score: '//' may divide by 0: its divisor may be -2147483648 to 2147483647; max(x, 1) "
            "excludes it");
  EXPECT_EQ(refusal("s + i // max(doc[b, j], 1)"), "nothing");
}

// Lengths are 1 at least where there is a pair, and a row is within its sequence.
TEST(ExpressionDivision, LengthsThatVary) {
  const auto ragged = [](const char* text) { return refusal(text, kScore, kSmall, true); };
  for (const char* text : {"s / seqlen_q", "s / (seqlen_q - i)", "s / (2 * seqlen_kv - j - 1)",
                           "s / (seqlen_kv - j + abs(i - j))", "s / (3 * seqlen_q - 2 * i)"})  // fmt: skip
    EXPECT_EQ(ragged(text), "nothing") << text;
  for (const char* text : {"s / (seqlen_q - i - 1)", "s / (seqlen_q - j)", "s / log(seqlen_kv)", "s / (seqlen_kv - 1)"})
    EXPECT_NE(ragged(text).find("by 0: its divisor"), std::string::npos) << text;
  EXPECT_EQ(refusal("s / seqlen_kv", kScore, {1, 1, 1, 0, 0}), "nothing");
}

// What is taken never divides by zero, at any pair; few are refused that do not.
TEST(ExpressionDivision, AgreesWithEveryPair) {
  int taken = 0, rightly = 0, needlessly = 0;
  for (int n = 0; n < 4000; ++n) {
    RandomExpressions random(static_cast<std::uint64_t>(n) + 900, false, false);
    const std::string divisor = random.next(1 + n % 3).text;
    if (divisor.find('s') != std::string::npos && divisor.find("seqlen") == std::string::npos &&
        divisor.find("abs") == std::string::npos)
      continue;  // names s
    const Expression value = Expression::parse(divisor, kScore);
    if (value.uses(ExpressionVariable::kS)) continue;
    ExpressionEvaluator evaluator(value);
    bool is_zero = false;
    for (std::int32_t b = 0; b < 2; ++b)
      for (std::int32_t h = 0; h < 4; ++h)
        for (std::int32_t i = 0; i < 10; ++i)
          for (std::int32_t j = 0; j < 12; ++j) {
            const ExpressionPoint at{.b = b, .h = h, .hk = h / 2, .i = i, .j = j, .seqlen_q = 10, .seqlen_kv = 12};
            is_zero |= evaluator.score(at) == 0;
          }
    const std::string said = refusal("s / (" + divisor + ")");
    const bool refused = said.find("by 0: its divisor") != std::string::npos;
    ASSERT_TRUE(refused || !is_zero || said != "nothing") << divisor;
    if (said == "nothing") ++taken;
    else if (refused) ++(is_zero ? rightly : needlessly);
    if (refusal("s + (" + divisor + ")") != "nothing") continue;
    const std::string guarded = refusal("where((" + divisor + ") != 0, s / (" + divisor + "), s)");
    EXPECT_EQ(guarded.find("by 0: its divisor"), std::string::npos) << divisor << ": " << guarded;
  }
  EXPECT_GT(taken, 300);
  EXPECT_GT(rightly, 300);
  EXPECT_LT(needlessly, (taken + rightly) / 20) << taken << " taken, " << rightly << " refused rightly";
}

}  // namespace
}  // namespace flashcore
