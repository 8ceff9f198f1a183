#include "core/expression_range.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/expression_code.h"
#include "core/expression_value.h"
#include "random_expression.h"

namespace flashcore {
namespace {

constexpr auto kScore = ExpressionUse::kScore;
constexpr auto kMask = ExpressionUse::kMask;

double element_of(const Expression& of, int tensor, std::span<const std::int32_t> at) {
  return example_element(of.tensors()[static_cast<std::size_t>(tensor)].name, at);
}

struct Tile {
  std::int64_t i0, i1, j0, j1;
};

// What it is, pair by pair, for all b and h of the box.
BlockUse brute_force(const Expression& mask, const ExpressionBox& box) {
  using enum ExpressionVariable;
  ExpressionEvaluator evaluator(
      mask, [&](int tensor, std::span<const std::int32_t> at) { return element_of(mask, tensor, at); });
  std::int64_t pairs = 0, visible = 0;
  const auto of = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  for (std::int64_t b = box[kB].first; b <= box[kB].last; ++b)
    for (std::int64_t h = box[kH].first; h <= box[kH].last; ++h)
      for (std::int64_t i = box[kI].first; i <= box[kI].last; ++i)
        for (std::int64_t j = box[kJ].first; j <= box[kJ].last; ++j, ++pairs)
          visible += evaluator.mask({.b = of(b),
                                     .h = of(h),
                                     .i = of(i),
                                     .j = of(j),
                                     .seqlen_q = of(box[kSeqlenQ].first),
                                     .seqlen_kv = of(box[kSeqlenKv].first)});
  return visible == 0 ? BlockUse::kSkip : visible == pairs ? BlockUse::kFull : BlockUse::kCut;
}

ExpressionBox box_of(const Tile& tile, std::int64_t b = 0, std::int64_t h = 0) {
  using enum ExpressionVariable;
  ExpressionBox box = ExpressionBox::of({1, 1, 1, 60, 60});
  box[kB] = {0, b};
  box[kH] = {0, h};
  box[kI] = {tile.i0, tile.i1};
  box[kJ] = {tile.j0, tile.j1};
  return box;
}

TEST(ExpressionRange, NeverSkipsOrTakesATileThatIsCut) {
  int decided = 0, decidable = 0;
  for (int n = 0; n < 3000; ++n) {
    RandomExpressions random(static_cast<std::uint64_t>(n) + 40000, true, n % 4 == 0);
    const std::string text = random.next(1 + n % 3).text;
    const Expression mask = Expression::parse(text, kMask, example_tensors());
    for (int k = 0; k < 6; ++k) {
      Draws& draws = random.draws();
      const std::int64_t i = draws.below(std::int64_t{50}), j = draws.below(std::int64_t{50});
      const Tile tile{i, i + draws.below(std::int64_t{9}), j, j + draws.below(std::int64_t{9})};
      const ExpressionBox box = box_of(tile, draws.below(std::int64_t{2}), draws.below(std::int64_t{3}));
      const BlockUse is = brute_force(mask, box), said = classify_tile(mask, box);
      ASSERT_TRUE(said == is || said == BlockUse::kCut)
          << text << "\nrows " << tile.i0 << ".." << tile.i1 << ", keys " << tile.j0 << ".." << tile.j1 << ", seed "
          << n << ": " << static_cast<int>(said) << " and is " << static_cast<int>(is);
      decidable += is != BlockUse::kCut ? 1 : 0;
      decided += said != BlockUse::kCut ? 1 : 0;
    }
  }
  // It would be right, and useless, to say always that a tile is cut.
  EXPECT_GT(decided, decidable * 7 / 10) << decided << " of " << decidable;
}

TEST(ExpressionRange, DecidesExactlyWhatMasksAreMadeOf) {
  const char* masks[] = {"j <= i",
                         "j <= i && i - j < 10",
                         "j < 10 || j <= i",
                         "abs(i - j) <= 5",
                         "i - i + j < 10 + i - i",
                         "i + j - 2 * i <= 0",
                         "i // 16 == j // 16",
                         "j <= i + seqlen_kv - seqlen_q",
                         "i < 2 * j && j < 2 * i",
                         "-(i - j) <= 0",
                         "where(i < 20, j, i + j) >= 30 && i >= 0",
                         "j % 1 == 0"};
  for (const char* text : masks) {
    const Expression mask = Expression::parse(text, kMask);
    int met[3] = {};
    for (std::int64_t i = 0; i < 56; i += 4) {
      for (std::int64_t j = 0; j < 56; j += 4) {
        const ExpressionBox box = box_of({i, i + 3, j, j + 3});
        const BlockUse is = brute_force(mask, box);
        ASSERT_EQ(classify_tile(mask, box), is) << text << " at " << i << ", " << j;
        ++met[static_cast<int>(is)];
      }
    }
    EXPECT_GT(met[1], 0) << text;
  }
}

TEST(ExpressionRange, OverflowIsNoBound) {
  // i * i * i wraps for i = 1300: nothing can be said of its sign by the sizes of its factors.
  const Expression mask = Expression::parse("i * i * i >= 0", kMask);
  EXPECT_EQ(classify_tile(mask, box_of({1200, 1400, 0, 0})), BlockUse::kCut);
  EXPECT_EQ(classify_tile(mask, box_of({1200, 1250, 0, 0})), BlockUse::kFull);
  const Expression least = Expression::parse("(-2147483647 - 1) // (i - 2) < 0", kMask);
  EXPECT_NE(classify_tile(least, box_of({1, 1, 0, 0})), BlockUse::kSkip);
  const Expression floats = Expression::parse("1e38 * i * 0.0 == 0.0", kMask);  // inf * 0 from i = 4 on
  EXPECT_EQ(classify_tile(floats, box_of({0, 9, 0, 0})), BlockUse::kCut);
  EXPECT_EQ(classify_tile(floats, box_of({0, 3, 0, 0})), BlockUse::kFull);
}

TEST(ExpressionRange, DataIsCut) {
  for (const char* text : {"doc[b, i] == doc[b, j]", "keep[j]", "slope[h] < 1"}) {
    const Expression mask = Expression::parse(text, kMask, example_tensors());
    EXPECT_EQ(classify_tile(mask, box_of({0, 3, 0, 3})), BlockUse::kCut) << text;
  }
  // What is known without the data is still decided.
  const Expression causal = Expression::parse("j <= i && doc[b, i] == doc[b, j]", kMask, example_tensors());
  EXPECT_EQ(classify_tile(causal, box_of({0, 3, 4, 7})), BlockUse::kSkip);
  EXPECT_EQ(classify_tile(causal, box_of({4, 7, 0, 3})), BlockUse::kCut);
  EXPECT_EQ(classify_tile(Expression::parse("doc[b, i] == doc[b, i]", kMask, example_tensors()), box_of({4, 7, 0, 3})),
            BlockUse::kFull);
}

TEST(ExpressionRange, ShapesAreWhatIndicesReach) {
  const ExpressionBox box = ExpressionBox::of({2, 8, 4, 100, 200});
  const auto shapes = [&](const char* text) {
    std::vector<std::vector<std::int64_t>> all;
    const Expression score = Expression::parse(text, kScore, example_tensors());
    for (const ExpressionShape& shape : check_expression(score, box))
      all.emplace_back(shape.sizes.begin(), shape.sizes.begin() + shape.count);
    return all;
  };
  using Shapes = std::vector<std::vector<std::int64_t>>;
  EXPECT_EQ(shapes("s + slope[h]"), (Shapes{{8}}));
  EXPECT_EQ(shapes("bias[b, 0, i, j] + bias[0, h // 2, 0, 0] * slope[hk]"), (Shapes{{2, 4, 100, 200}, {4}}));
  EXPECT_EQ(shapes("slope[j - i + seqlen_q - 1]"), (Shapes{{299}}));
  EXPECT_EQ(shapes("slope[min(max(doc[b, i], 0), 15)]"), (Shapes{{2, 100}, {16}}));
  EXPECT_EQ(shapes("slope[i % 16]"), (Shapes{{16}}));
  EXPECT_EQ(shapes("s + where(j <= i, slope[abs(i - j)], 0)"), (Shapes{{200}}));
}

TEST(ExpressionRange, RefusesWhatCouldGoWrong) {
  const auto refusal = [](const char* text, const ExpressionSizes& sizes) {
    const Expression score = Expression::parse(text, kScore, example_tensors());
    try {
      check_expression(score, ExpressionBox::of(sizes));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  const ExpressionSizes small{2, 8, 4, 100, 200}, large{2, 8, 4, 65536, 65536};
  EXPECT_EQ(refusal("s + slope[i - j]", small),
            "column 5 of the score: index 1 of 'slope' may be -199 to 99; min and max keep it in the shape");
  EXPECT_NE(refusal("slope[doc[b, i]]", small).find("column 1 of the score: index 1 of 'slope'"), std::string::npos);
  EXPECT_EQ(refusal("s + i // hk", small),
            "column 7 of the score: '//' may divide by 0: its divisor may be 0 to 3; max(x, 1) excludes it");
  EXPECT_EQ(refusal("s + i // max(hk, 1)", small), "nothing");
  EXPECT_EQ(refusal("s + i % (j - 5)", small),
            "column 7 of the score: '%' may divide by 0: its divisor may be -5 to 194; max(x, 1) excludes it");
  EXPECT_EQ(refusal("s + i * seqlen_kv", small), "nothing");
  EXPECT_EQ(
      refusal("s + i * seqlen_kv", large),
      "column 7 of the score: this int may be 4294901760, and ints end at 2147483647; as a float, 1.0 * x, it may "
      "be larger");
  EXPECT_EQ(refusal("s + 1.0 * i * seqlen_kv", large), "nothing");
  EXPECT_EQ(refusal("s + doc[b, i] * 7", large), "nothing");  // the user's data
  // An empty problem has no row and no key to go wrong with.
  EXPECT_EQ(refusal("s + slope[i] + slope[j]", {1, 1, 1, 0, 0}), "nothing");
}

TEST(ExpressionCode, IsOneAssignmentAnOperation) {
  const ExpressionBox box = ExpressionBox::of({2, 8, 4, 100, 200});
  EXPECT_EQ(expression_device_code(Expression::parse("30 * tanh(s / 30)", kScore), "score", box),
            "FC_DEVICE float score([[maybe_unused]] const expression::Variables& at, "
            "[[maybe_unused]] const expression::Tensor* tensors) {\n"
            "  [[maybe_unused]] const float t0 = 30.0f;\n"
            "  [[maybe_unused]] const float t1 = at.s;\n"
            "  [[maybe_unused]] const float t2 = t1 * 0.0333333351f;\n"
            "  [[maybe_unused]] const float t3 = expression::tanh(t2);\n"
            "  [[maybe_unused]] const float t4 = t0 * t3;\n"
            "  return t4;\n"
            "}\n");
  // Plain divisions where nothing is negative.
  const auto code = [&](const char* text) {
    return expression_device_code(Expression::parse(text, kMask), "mask", box);
  };
  EXPECT_NE(code("i // 16 == j % 3").find("t0 / t1"), std::string::npos);
  EXPECT_NE(code("(i - j) // 16 == 1").find("expression::floor_divide"), std::string::npos);
}

}  // namespace
}  // namespace flashcore
