#include "core/expression_builtin.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "core/expression_range.h"
#include "core/expression_value.h"

namespace flashcore {
namespace {

// Tensors of no problem in particular.
double element(const Expression& of, int tensor, std::span<const std::int32_t> at) {
  const std::string& name = of.tensors()[static_cast<std::size_t>(tensor)].name;
  if (name == kAlibiSlopes) return std::ldexp(1.0, -1 - at[0]);
  if (name == kPrefixKeys) return 3 + 4 * at[0];
  return (at[1] + at[0]) / 5;  // documents of five
}

bool sees(const Expression& mask, const ExpressionPoint& point) {
  return ExpressionEvaluator(mask, [&](int t, std::span<const std::int32_t> at) { return element(mask, t, at); })
      .mask(point);
}

double score(const Expression& of, const ExpressionPoint& point) {
  return ExpressionEvaluator(of, [&](int t, std::span<const std::int32_t> at) { return element(of, t, at); })
      .score(point);
}

TEST(ExpressionBuiltin, ScoresAreTheirFormulas) {
  const ExpressionPoint p{.s = 7.25, .b = 1, .h = 2, .hk = 1, .i = 3, .j = 9, .seqlen_q = 10, .seqlen_kv = 14};
  EXPECT_EQ(softcap_score(30).text(), "30.0 * tanh(s / 30.0)");
  EXPECT_DOUBLE_EQ(score(softcap_score(30), p), 30 * std::tanh(7.25 / 30));
  EXPECT_DOUBLE_EQ(score(softcap_score(0.5), p), 0.5 * std::tanh(14.5));
  EXPECT_DOUBLE_EQ(score(alibi_score(), p), 7.25 - 0.125 * 2);
  EXPECT_DOUBLE_EQ(score(alibi_score(Alignment::kTopLeft), p), 7.25 - 0.125 * 6);
  for (const double bad : {0.0, -1.0, 1e39, 1e-60, std::nan(""), HUGE_VAL}) EXPECT_THROW(softcap_score(bad), Error);
}

TEST(ExpressionBuiltin, BandsSeeAndClassifyAsBandsDo) {
  for (const Alignment alignment : {Alignment::kBottomRight, Alignment::kTopLeft}) {
    for (const auto& [left, right] : std::vector<std::pair<std::optional<std::int64_t>, std::optional<std::int64_t>>>{
             {std::nullopt, 0}, {7, 0}, {5, 3}, {0, 2}, {4, std::nullopt}}) {
      Problem problem;
      problem.seqlen_q = 24;
      problem.seqlen_kv = 40;
      problem.mask = {alignment, left, right};
      const Band<std::int64_t> band = problem.band();
      const Expression mask = band_mask(problem.mask);
      ExpressionBox box = ExpressionBox::of({1, 1, 1, 24, 40});
      for (std::int32_t i = 0; i < 24; ++i)
        for (std::int32_t j = 0; j < 40; ++j)
          ASSERT_EQ(sees(mask, {.i = i, .j = j, .seqlen_q = 24, .seqlen_kv = 40}), band.keys_of_row(i).contains(j))
              << mask.text();
      for (std::int64_t i = 0; i < 24; i += 4) {
        for (std::int64_t j = 0; j < 40; j += 4) {
          box[ExpressionVariable::kI] = {i, i + 3};
          box[ExpressionVariable::kJ] = {j, j + 3};
          ASSERT_EQ(classify_tile(mask, box), band.use_of(i, i + 3, j, j + 4)) << mask.text() << ' ' << i << ' ' << j;
        }
      }
    }
  }
  EXPECT_EQ(causal_mask(Alignment::kTopLeft).text(), "j <= i");
}

TEST(ExpressionBuiltin, PrefixesAndDocuments) {
  for (std::int32_t i = 0; i < 20; ++i) {
    for (std::int32_t j = 0; j < 20; ++j) {
      const ExpressionPoint p{.b = 1, .i = i, .j = j, .seqlen_q = 20, .seqlen_kv = 20};
      EXPECT_EQ(sees(prefix_mask(4), p), j < 4 || j <= i);
      EXPECT_EQ(sees(prefix_mask_of_batch(), p), j < 7 || j <= i);
      EXPECT_EQ(sees(document_mask(), p), (i + 1) / 5 == (j + 1) / 5);
      EXPECT_EQ(sees(both_masks(causal_mask(), document_mask()), p), j <= i && (i + 1) / 5 == (j + 1) / 5);
    }
  }
}

TEST(ExpressionBuiltin, TextThatIsASoftcap) {
  const auto cap = [](std::string_view text) {
    const ExpressionTensor x{"x", ExpressionType::kFloat, 1};
    return softcap_of(Expression::parse(text, ExpressionUse::kScore, {&x, 1}));
  };
  for (const double value : {0.5, 30.0, 1e-3, 50.0}) EXPECT_EQ(softcap_of(softcap_score(value)), value);
  for (const char* text : {"30 * tanh(s / 30)", "30.0*tanh(s/30)", "tanh(s / 30) * 30", "((30) * (tanh((s) / 3e1)))"})
    EXPECT_EQ(cap(text), 30) << text;
  for (const char* text :
       {"s", "30", "30 * tanh(s / 31)", "30 * tanh(s)", "tanh(s / 30)", "30 * tanh(s / 30) + 1", "-30 * tanh(s / -30)",
        "30 * tanh(30 / s)", "30 * tanh(2 * s / 30)", "30 * tanh(j / 30)", "30 * exp(s / 30)", "30 / tanh(s / 30)",
        "tanh(s / 30) * tanh(s / 30)", "x[0] * tanh(s / x[0])", "30 * tanh(s * 30)", "30 * tanh(s * (1 / 30))",
        "30 + tanh(s / 30)", "30 * tanh(s / 30 / 30)"})
    EXPECT_EQ(cap(text), std::nullopt) << text;
}

TEST(ExpressionBuiltin, OnlyASoftcapAloneIsNamed) {
  const auto named = [](double cap, std::optional<double> softcap = {}, Alibi alibi = Alibi::kNone) {
    Problem problem;
    problem.softcap = softcap, problem.alibi = alibi;
    problem.score_text = softcap_score(cap).text();
    problem.mask_text = "j <= i";
    name_softcap(problem);
    EXPECT_EQ(problem.mask_text, "j <= i");
    return problem;
  };
  EXPECT_EQ(named(30).softcap, 30);
  EXPECT_FALSE(named(30).has_score_expression());
  for (const Problem& kept : {named(30, 20.0), named(30, {}, Alibi::kHead), named(30, {}, Alibi::kBatch), named(1e7),
                              named(1e-7)})  // no softcap is so large, or so small
    EXPECT_TRUE(kept.has_score_expression());
  EXPECT_EQ(named(30, 20.0).softcap, 20);
  EXPECT_EQ(named(1e7).softcap, std::nullopt);
  Problem none;
  name_softcap(none);
  EXPECT_EQ(none, Problem());
}

TEST(ExpressionBuiltin, SeveralBecomeOne) {
  const ExpressionPoint p{.s = 7.25, .h = 2, .i = 3, .j = 9, .seqlen_q = 10, .seqlen_kv = 14};
  const Expression both = score_after(softcap_score(30), alibi_score());
  EXPECT_EQ(both.text(), "30.0 * tanh(s / 30.0) - alibi_slopes[h] * abs(i + seqlen_kv - seqlen_q - j)");
  EXPECT_DOUBLE_EQ(score(both, p), 30 * std::tanh(7.25 / 30) - 0.25);
  EXPECT_DOUBLE_EQ(score(score_after(alibi_score(), softcap_score(30)), p), 30 * std::tanh(7.0 / 30));
  // As if it had been written so.
  EXPECT_EQ(Expression::parse(both.text(), ExpressionUse::kScore, both.tensors()).token(), both.token());
  const ExpressionTensor other{std::string(kAlibiSlopes), ExpressionType::kInt, 1};
  const Expression ints = Expression::parse("s + alibi_slopes[b]", ExpressionUse::kScore, {&other, 1});
  EXPECT_THROW(score_after(alibi_score(), ints), Error);
  Expression grown = Expression::parse("s * s", ExpressionUse::kScore);
  EXPECT_THROW(
      {
        for (int n = 0; n < 20; ++n) grown = score_after(grown, grown);
      },
      Error);
}

}  // namespace
}  // namespace flashcore
