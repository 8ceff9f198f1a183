#include "core/expression.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/error.h"
#include "core/expression_derivative.h"
#include "core/expression_value.h"
#include "random_expression.h"

namespace flashcore {
namespace {

constexpr auto kScore = ExpressionUse::kScore;
constexpr auto kMask = ExpressionUse::kMask;

Expression parse(std::string_view text, ExpressionUse use) { return Expression::parse(text, use, example_tensors()); }

std::string refusal(std::string_view text, ExpressionUse use,
                    std::vector<ExpressionTensor> tensors = example_tensors()) {
  try {
    Expression::parse(text, use, tensors);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput) << error.what();
    return error.what();
  }
  return "nothing";
}

double value(std::string_view text, const ExpressionPoint& point) {
  const Expression expression = parse(text, kScore);
  return ExpressionEvaluator(expression,
                             [&](int tensor, std::span<const std::int32_t> at) {
                               return example_element(expression.tensors()[static_cast<std::size_t>(tensor)].name, at);
                             })
      .score(point);
}
bool holds(std::string_view text, const ExpressionPoint& point) {
  const Expression expression = parse(text, kMask);
  return ExpressionEvaluator(expression,
                             [&](int tensor, std::span<const std::int32_t> at) {
                               return example_element(expression.tensors()[static_cast<std::size_t>(tensor)].name, at);
                             })
      .mask(point);
}

TEST(Expression, EachOperationIsWhatItSays) {
  const ExpressionPoint p{.s = 2.5, .b = 1, .h = 3, .hk = 1, .i = 7, .j = 4, .seqlen_q = 10, .seqlen_kv = 20};
  const std::pair<const char*, double> scores[] = {
      {"s", 2.5},
      {"b", 1},
      {"h", 3},
      {"hk", 1},
      {"i", 7},
      {"j", 4},
      {"seqlen_q", 10},
      {"seqlen_kv", 20},
      {"s + 1", 3.5},
      {"1 - s", -1.5},
      {"s * 4", 10},
      {"i / j", 1.75},
      {"i // j", 1},
      {"-i // j", -2},
      {"i // -j", -2},
      {"i % j", 3},
      {"-i % j", 1},
      {"i % -j", -1},
      {"-s", -2.5},
      {"--s", 2.5},
      {"min(i, j)", 4},
      {"min(s, 1.0)", 1},
      {"max(i, j)", 7},
      {"max(s, i)", 7},
      {"abs(j - i)", 3},
      {"abs(-s)", 2.5},
      {"exp2(s)", std::exp2(2.5)},
      {"exp(s)", std::exp(2.5)},
      {"log2(i)", std::log2(7.0)},
      {"log(i)", std::log(7.0)},
      {"tanh(s)", std::tanh(2.5)},
      {"sqrt(j)", 2},
      {"where(j < i, s, 0)", 2.5},
      {"where(j > i, s, -inf)", -std::numeric_limits<double>::infinity()},
      {"1 + 2 * 3", 7},
      {"(1 + 2) * 3", 9},
      {"10 - 3 - 2", 5},
      {"10 - (3 - 2)", 9},
      {"64 / 4 / 2", 8},
      {"1e2 + .5 + 2.", 102.5},
      {"30 * tanh(s / 30) + slope[h] * (j - i)", 30 * std::tanh(2.5 / 30) + 0.125 * -3},
      {"bias[b, h, i, j]", 0.25 - 3 + 3.5 - 0.5},
      {"bias[b, 0, i - j + 1, min(j, 3)]", 0.25 + 2 - 0.375},
      {"2147483647 + i", -2147483642},  // ints wrap
      {"(-2147483647 - 1) // -b", -2147483648.0},
      {"(-2147483647 - 1) % -b", 0},
      {"i // (b - 1)", 0},
  };
  for (const auto& [text, expected] : scores) EXPECT_DOUBLE_EQ(value(text, p), expected) << text;
  const std::pair<const char*, bool> masks[] = {
      {"j < i", true},
      {"j <= 4", true},
      {"i < j", false},
      {"i >= 8", false},
      {"i > j", true},
      {"i == 7", true},
      {"i != 7", false},
      {"j < i && i < 7", false},
      {"j < i || i < 7", true},
      {"!(j < i)", false},
      {"i * 0.5 == 3.5", true},
      {"doc[b, i] == doc[b, j]", false},
      {"keep[j]", false},
      {"!keep[j] && !keep[i]", true},
      {"where(b == 0, keep[j], keep[i - 1])", true},
      // a || (b && c), not (a || b) && c
      {"i == 7 || i == 8 && i == 9", true},
      // fp32, not fp64: 0.1f * 3 is not 0.3f, though 0.1 * 3 is larger than 0.3 in both
      {"16777217 * 1.0 == 16777216.0", true},
  };
  for (const auto& [text, expected] : masks) EXPECT_EQ(holds(text, p), expected) << text;
  // NaN goes on, from either side.
  for (const char* text : {"min(log(-s), 1.0)", "min(1.0, log(-s))", "max(log(-s), 1.0)", "max(1.0, log(-s))"})
    EXPECT_TRUE(std::isnan(value(text, p))) << text;
}

TEST(Expression, RandomTreesAreWorthWhatASecondEvaluationSays) {
  int finite = 0, held = 0;
  for (int n = 0; n < 1500; ++n) {
    const bool mask = n % 2 == 0;
    RandomExpressions random(static_cast<std::uint64_t>(n), mask, true);
    const RandomTree tree = random.next(1 + n % 4);
    const Expression expression = parse(tree.text, mask ? kMask : kScore);
    ExpressionEvaluator evaluator(expression, [&](int tensor, std::span<const std::int32_t> at) {
      return example_element(expression.tensors()[static_cast<std::size_t>(tensor)].name, at);
    });
    for (int k = 0; k < 8; ++k) {
      const auto draw = [&](std::int64_t bound) { return static_cast<std::int32_t>(random.draws().below(bound)); };
      const ExpressionPoint p{.s = random.draws().normal() * 4,
                              .b = draw(2),
                              .h = draw(8),
                              .hk = draw(2),
                              .i = draw(50),
                              .j = draw(50),
                              .seqlen_q = 50,
                              .seqlen_kv = 50};
      const RandomTree::Value expected = tree.value(p);
      if (mask) {
        ASSERT_EQ(evaluator.mask(p), expected.truth) << tree.text << "\nseed " << n;
        held += expected.truth ? 1 : 0;
        continue;
      }
      const double real = tree.type == RandomTree::Type::kInt ? static_cast<double>(expected.whole) : expected.real;
      const double ours = evaluator.score(p);
      ASSERT_TRUE(ours == real || (std::isnan(ours) && std::isnan(real)))
          << tree.text << "\nseed " << n << ": " << ours << " and " << real;
      finite += std::isfinite(ours) ? 1 : 0;
    }
  }
  EXPECT_GT(finite, 3000);
  EXPECT_GT(held, 1000);
  EXPECT_LT(held, 5000);
}

// Row by row as key by key, across the lanes' border.
TEST(Expression, RowsAreTheirKeys) {
  for (int n = 0; n < 200; ++n) {
    const bool mask = n % 2 == 0;
    RandomExpressions random(static_cast<std::uint64_t>(n) + 80000, mask, true);
    const Expression expression = parse(random.next(1 + n % 4).text, mask ? kMask : kScore);
    ExpressionEvaluator evaluator(expression, [&](int tensor, std::span<const std::int32_t> at) {
      return example_element(expression.tensors()[static_cast<std::size_t>(tensor)].name, at);
    });
    ExpressionPoint p{.b = 1, .h = 3, .hk = 1, .i = 9 + n % 80, .j = 5, .seqlen_q = 99, .seqlen_kv = 99};
    std::vector<double> scores(90);
    std::vector<std::uint8_t> visible(90);
    for (double& s : scores) s = random.draws().normal();
    const std::vector<double> s = scores;
    if (mask) evaluator.masks(p, visible);
    else evaluator.scores(p, scores);
    for (std::size_t k = 0; k < s.size(); ++k, ++p.j) {
      p.s = s[k];
      if (mask) ASSERT_EQ(visible[k] != 0, evaluator.mask(p)) << expression.text();
      else if (!std::isnan(scores[k])) ASSERT_EQ(scores[k], evaluator.score(p)) << expression.text();
      else ASSERT_TRUE(std::isnan(evaluator.score(p))) << expression.text();
    }
  }
}

TEST(Expression, WhatIsPrintedIsReadAsTheSame) {
  std::set<std::string> tokens, texts;
  for (int n = 0; n < 1000; ++n) {
    const bool mask = n % 2 == 0;
    RandomExpressions random(static_cast<std::uint64_t>(n) + 5000, mask, true);
    const Expression first = parse(random.next(1 + n % 4).text, mask ? kMask : kScore);
    const Expression again = parse(first.text(), first.use());
    ASSERT_EQ(again.text(), first.text());
    ASSERT_EQ(again.token(), first.token());
    ASSERT_EQ(again.nodes().size(), first.nodes().size()) << first.text();
    for (std::size_t at = 0; at < first.nodes().size(); ++at) {
      const ExpressionNode &a = first.nodes()[at], &b = again.nodes()[at];
      ASSERT_TRUE(a.op == b.op && a.type == b.type && a.variable == b.variable && a.whole == b.whole &&
                  a.real == b.real && a.tensor == b.tensor && a.count == b.count && a.args == b.args)
          << first.text();
    }
    tokens.insert(first.token());
    texts.insert(first.text());
  }
  EXPECT_EQ(tokens.size(), texts.size());
}

TEST(Expression, TextIsCanonical) {
  const std::pair<const char*, const char*> texts[] = {
      {"30*tanh((s)/30)+slope[h]*(j-i)", "30.0 * tanh(s / 30.0) + slope[h] * (j - i)"},
      {" ( ( s + ( 1 ) ) ) ", "s + 1.0"},
      {"s-(1-(2-s))", "s - (1.0 - (2.0 - s))"},
      {"(s-1)-2", "s - 1.0 - 2.0"},
      {"-(-s)*2", "--s * 2.0"},
      {"-(s*2)", "-(s * 2.0)"},
      {"min( s,inf )", "min(s, inf)"},
      {"s*1e30", "s * 1e+30"},
      {"i//(j//2+1)%3 + 0.5", "i // (j // 2 + 1) % 3 + 0.5"},
  };
  for (const auto& [given, text] : texts) EXPECT_EQ(parse(given, kScore).text(), text);
  EXPECT_EQ(parse("(j<=i)&&(!(doc[b,i]!=doc[b,j])||keep[j])", kMask).text(),
            "j <= i && (!(doc[b, i] != doc[b, j]) || keep[j])");
  // Stable: stored trials hold it.
  EXPECT_EQ(parse("s+1", kScore).token(), parse("( s + 1.0 )", kScore).token());
  EXPECT_EQ(parse("30 * tanh(s / 30)", kScore).token(), "7728cc53a337");
  EXPECT_NE(parse("s + 1", kScore).token(), parse("s + 2", kScore).token());
  const std::vector<ExpressionTensor> floats = {{"doc", ExpressionType::kFloat, 2}};
  EXPECT_NE(parse("doc[b, i] == 1", kMask).token(), Expression::parse("doc[b, i] == 1", kMask, floats).token());
}

TEST(Expression, SaysWhatItNeeds) {
  const Expression score = parse("bias[b, h, i, j] + slope[h] * s + bias[b, h, 0, 0]", kScore);
  ASSERT_EQ(score.tensors().size(), 2u);
  EXPECT_EQ(score.tensors()[0].name, "bias");
  EXPECT_EQ(score.tensors()[1].name, "slope");
  EXPECT_TRUE(score.uses(ExpressionVariable::kS) && score.uses(ExpressionVariable::kI));
  EXPECT_FALSE(score.uses(ExpressionVariable::kHk));
  EXPECT_FALSE(parse("slope[h]", kScore).uses(ExpressionVariable::kS));
}

TEST(Expression, ErrorsSayWhereWhatAndWhatIsAllowed) {
  struct Case {
    const char* text;
    ExpressionUse use;
    int column;
    const char* words;
  };
  const Case cases[] = {
      {"", kScore, 1, "no expression"},
      {"s +", kScore, 4, "the text ends where a number, a name or '('"},
      {"s + * 2", kScore, 5, "'*' where a number"},
      {"(s + 1", kScore, 7, "the text ends where ')'"},
      {"s + 1)", kScore, 6, "')' where an operator or the end"},
      {"s s", kScore, 3, "'s' where an operator"},
      {"s + x", kScore, 5,
       "'x' is no variable and no tensor that was given; there are s, b, h, hk, i, j, seqlen_q, "
       "seqlen_kv, slope, doc, keep, bias"},
      {"s + sin(s)", kScore, 5,
       "'sin' is no function; there are abs, exp, exp2, log, log2, tanh, sqrt, min, max, where"},
      {"tanh(s, 2)", kScore, 1, "'tanh' takes 1 argument, and was given 2"},
      {"1 + where(i < j, s)", kScore, 5, "'where' takes 3 arguments, and was given 2"},
      {"tanh s", kScore, 6, "'s' where '(' after tanh"},
      {"slope[h", kScore, 8, "the text ends where ',' or ']'"},
      {"slope", kScore, 1, "'slope' is a tensor and needs its index"},
      {"slope(h)", kScore, 1, "'slope' is a tensor"},
      {"slope[h, i]", kScore, 1, "'slope' takes 1 index, and was given 2"},
      {"slope[s]", kScore, 7, "an index of 'slope' is a float, and has to be an int"},
      {"slope[0.5]", kScore, 7, "has to be an int"},
      {"s + slope[s]", kScore, 5, "an index of 'slope' is a float"},
      {"i[0]", kScore, 2, "'i' is a variable, and takes no index"},
      {"i < j", kScore, 1, "a score is a number"},
      {"i + j", kMask, 1, "a mask is a condition (such as j <= i), and this is an int"},
      {"s < 1", kMask, 1, "a mask cannot ask for the score s"},
      {"j <= i && exp(i) < 2", kMask, 11, "'exp' is rounded differently by each device"},
      {"i < j < 5", kMask, 7, "write a < b && b < c"},
      {"i && j", kMask, 3, "'&&' takes conditions (such as i < j), and was given an int"},
      {"!i", kMask, 1, "'!' takes conditions"},
      {"(i < j) + 1 < 2", kMask, 9, "'+' takes numbers (where(c, 1, 0) is the number of a condition)"},
      {"where(i, 1, 2)", kScore, 1, "'where' takes a condition first"},
      {"s // 2", kScore, 3, "'//' takes ints ('/' divides floats), and was given a float"},
      {"s % 2", kScore, 3, "'%' takes ints"},
      {"s / 0", kScore, 3, "'/' divides by 0"},
      {"i // 0", kScore, 3, "'//' divides by 0"},
      {"i % 0", kScore, 3, "'%' divides by 0"},
      {"i = j", kMask, 3, "'=' is no operator here; '==' compares"},
      {"j <= i && doc[b, i] = doc[b, j]", kMask, 21, "'=' is no operator here; '==' compares"},
      {"i && j = i", kMask, 8, "'=' is no operator here; '==' compares"},
      {"s + where(i = j, 1, 0)", kScore, 13, "'=' is no operator here; '==' compares"},
      {"i < j & j < 2", kMask, 7, "'&' is no operator here; '&&' joins conditions"},
      {"(i && j | i)", kMask, 9, "'|' is no operator here; '||' joins conditions"},
      {"i < j and j < 2", kMask, 7, "'and' is no operator here; '&&' joins conditions"},
      {"j < i && i ^ j", kMask, 12,
       "'^' is no operator here; x * x is a square, in a score exp2(log2(x) * y) a power of x > 0, and a && !b || !a "
       "&& b the exclusive or"},
      {"s ^ 2", kScore, 3, "'^' is no operator here; x * x is a square"},
      {"i * 3 ^ 2", kScore, 7, "'^' is no operator here; x * x is a square"},
      {"s ** 2", kScore, 3,
       "'**' is no operator here; x * x is a square, and in a score exp2(log2(x) * y) a power of x > 0"},
      {"i < j ? s : 1", kScore, 7, "'?' is no operator here; where(c, a, b) chooses"},
      {"s if i < j else 1", kScore, 3, "'if' is no operator here; where(c, a, b) chooses"},
      {"s + #", kScore, 5, "'#' has no meaning"},
      {"s + \xff", kScore, 5, "has no meaning"},
      {"2x + s", kScore, 2, "'x' follows a number"},
      {"s * 4294967296", kScore, 5,
       "4294967296 does not fit an int, which ends at 2147483647; 4294967296.0 is a float"},
      {"s * 1e39", kScore, 5, "1e39 is no fp32 number"},
      {"s * 1e-60", kScore, 5, "1e-60 is no fp32 number"},
      {"s * 1e999", kScore, 5, "is no fp32 number"},
  };
  for (const Case& c : cases) {
    const std::string message = refusal(c.text, c.use);
    const std::string begin = fmt::format("column {} of the {}: ", c.column, c.use == kScore ? "score" : "mask");
    EXPECT_EQ(message.substr(0, begin.size()), begin) << c.text << "\n" << message;
    EXPECT_NE(message.find(c.words), std::string::npos) << c.text << "\n" << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  for (const char* name : {"", "s", "inf", "tanh", "a b", "0a", "slope "})
    EXPECT_NE(refusal("s", kScore, {{name, ExpressionType::kFloat, 1}}).find("a tensor"), std::string::npos) << name;
  EXPECT_NE(refusal("s", kScore, {{"a", ExpressionType::kFloat, 5}}).find("1 to 4"), std::string::npos);
  EXPECT_NE(refusal("s", kScore, {{"a", ExpressionType::kInt, 1}, {"a", ExpressionType::kInt, 2}}).find("taken"),
            std::string::npos);
}

std::string repeated(std::string_view text, int count) {
  std::string all;
  for (int n = 0; n < count; ++n) all += text;
  return all;
}

TEST(Expression, HostileTextIsRefused) {
  const auto nested = [](int depth) { return repeated("(", depth) + "s" + repeated(")", depth); };
  EXPECT_EQ(parse(nested(64), kScore).text(), "s");
  for (const std::string& text :
       {nested(65), nested(500), repeated("-", 65) + "s", repeated("tanh(", 500) + "s", repeated("bias[", 300) + "s"})
    EXPECT_NE(refusal(text, kScore).find("more than 64 levels"), std::string::npos);
  EXPECT_NE(refusal(repeated("(", 100000), kScore).find("65536 are allowed"), std::string::npos);
  EXPECT_NE(refusal("s" + repeated("+s", 512), kScore).find("more than 1024 words"), std::string::npos);
  EXPECT_NE(refusal(repeated("a", 33), kScore).find("longer than 32"), std::string::npos);
  EXPECT_LT(refusal(repeated("a", 60000), kScore).size(), 300u);
  // The longest that is taken: printed, it is taken again.
  const Expression longest = parse("s" + repeated("+s", 511), kScore);
  EXPECT_EQ(parse(longest.text(), kScore).text(), longest.text());
  EXPECT_EQ(ExpressionEvaluator(longest).score({.s = 2}), 1024);
}

TEST(Expression, DerivativesAreDifferences) {
  int compared = 0;
  for (int n = 0; n < 400; ++n) {
    RandomExpressions random(static_cast<std::uint64_t>(n) + 20000, false, true);
    const Expression score = parse(random.next(1 + n % 4).text, kScore);
    const Expression derivative = expression_derivative(score);
    const auto elements = [](const Expression& of) {
      return [&of](int tensor, std::span<const std::int32_t> at) {
        return example_element(of.tensors()[static_cast<std::size_t>(tensor)].name, at);
      };
    };
    ExpressionEvaluator f(score, elements(score)), g(derivative, elements(derivative));
    for (int k = 0; k < 4; ++k) {
      const auto draw = [&](std::int64_t bound) { return static_cast<std::int32_t>(random.draws().below(bound)); };
      ExpressionPoint p{.s = random.draws().normal(),
                        .b = draw(2),
                        .h = draw(8),
                        .hk = draw(2),
                        .i = draw(50),
                        .j = draw(50),
                        .seqlen_q = 50,
                        .seqlen_kv = 50};
      const auto at = [&](double s) {
        ExpressionPoint moved = p;
        moved.s = s;
        return f.score(moved);
      };
      const double step = 1e-5 * (1 + std::abs(p.s));
      // Both sides and two steps agree where there is no corner and no digits are lost.
      const double left = (at(p.s) - at(p.s - step)) / step, right = (at(p.s + step) - at(p.s)) / step;
      const double middle = (at(p.s + step) - at(p.s - step)) / (2 * step);
      const double near = (at(p.s + step / 2) - at(p.s - step / 2)) / step;
      const double scale = 1e-4 * (1 + std::abs(middle));
      if (!(std::abs(left - right) < 20 * scale && std::abs(near - middle) < scale / 4 && std::abs(at(p.s)) < 1e4))
        continue;
      const double ours = g.score(p);
      ASSERT_NEAR(ours, middle, scale) << score.text() << "\ns = " << p.s;
      ++compared;
    }
  }
  EXPECT_GT(compared, 600);
}

// A score that a mask made -inf, as data with infinities does: exp of it is 0, exactly.
TEST(ExpressionErrorTest, OfAnInfiniteScoreIsANumber) {
  for (const char* text : {"log(1.0 + exp(min(s, 20.0))) - exp2(-abs(s))", "exp(s)", "exp2(s) + tanh(s)",
                           "1 / (1 + exp(s))", "sqrt(exp(s))", "s * 2 + exp(-abs(s))"}) {
    const Expression expression = Expression::parse(text, ExpressionUse::kScore, {});
    ExpressionEvaluator evaluator(expression, [](int, std::span<const std::int32_t>) { return 0.0; });
    for (const double s : {-HUGE_VAL, HUGE_VAL, 0.0, -1e30, 1e30}) {
      std::vector<double> scores = {s}, slopes(1), errors(1);
      evaluator.scores({.seqlen_q = 1, .seqlen_kv = 1}, scores, slopes, errors);
      EXPECT_FALSE(std::isnan(errors[0])) << text << " of " << s;
      EXPECT_FALSE(std::isnan(slopes[0])) << text << " of " << s;
    }
  }
}

TEST(Expression, DerivativesAreSimple) {
  const std::pair<const char*, const char*> cases[] = {
      {"s", "1.0"},
      {"i + 2", "0.0"},
      {"s + slope[h] * (j - i)", "1.0"},
      {"s * 2", "2.0"},
      {"-s / 4", "-1.0 / 4.0"},
      {"where(j <= i, s, -inf)", "where(j <= i, 1.0, 0.0)"},
      {"where(j <= i, s, s + 1)", "1.0"},
      {"tanh(i / 3)", "0.0"},
      {"tanh(s)", "1.0 - tanh(s) * tanh(s)"},
      {"log(s)", "1.0 / s"},
      {"min(s, 5)", "where(s < 5.0, 1.0, 0.0)"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(expression_derivative(parse(text, kScore)).text(), expected);
  // Nothing that it no longer needs is kept.
  EXPECT_TRUE(expression_derivative(parse("s + slope[h]", kScore)).tensors().empty());
  // Shared, not written out: of 60 nested functions each node is made once.
  const std::string deep = repeated("tanh(", 60) + "s" + repeated(")", 60);
  EXPECT_LT(expression_derivative(parse(deep, kScore)).nodes().size(), 400u);
}

}  // namespace
}  // namespace flashcore
