// Score and mask functions of the user's own as parts of a problem: texts, ids, suites, test data, and the reference.
#include "core/problem_expressions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/data.h"
#include "core/error.h"
#include "core/operands.h"
#include "core/problem_row.h"
#include "core/reference.h"
#include "core/suite.h"

namespace flashcore {
namespace {

PlacedProblem with(std::string_view id, std::string_view score, std::string_view mask = "",
                   std::string_view tensors = "") {
  PlacedProblem p = PlacedProblem::parse(id);
  set_expressions(p, score, mask, parse_tensors(tensors));
  p.validate();
  return p;
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput) << error.what();
    return error.what();
  }
  return "nothing";
}

TEST(ProblemExpressions, TextsAreCanonicalAndTensorsInTheirOrder) {
  const PlacedProblem p = with("b2_h4_s8_d8_fp16_causal", "s+ (bias[h,i])", "doc[ i ]==doc[j]&&keep[b,j]",
                               "keep: bool[2],doc :int[1], bias: float [2]");
  EXPECT_EQ(p.score_text, "s + bias[h, i]");
  EXPECT_EQ(p.mask_text, "doc[i] == doc[j] && keep[b, j]");
  EXPECT_EQ(print_tensors(p.tensors), "bias: float[2], doc: int[1], keep: bool[2]");
  EXPECT_EQ(tensor_numbers(p, p.mask_expression()), (std::vector<int>{1, 2}));
}

TEST(ProblemExpressions, BadDeclarationsAreRefused) {
  for (const char* bad : {"slope", "slope: double[1]", "slope: float", "slope: float[0]", "slope: float[5]",
                          "slope: float[1] x", "slope: float[1],", ": float[1]x"})
    EXPECT_NE(refusal([&] { parse_tensors(bad); }).find("slope: float[1]"), std::string::npos) << bad;
  EXPECT_NE(refusal([] { with("b1_h1_s8_d8_fp16", "s", "", "x: float[1]"); }).find("neither"), std::string::npos);
  EXPECT_NE(refusal([] { with("b1_h1_s8_d8_fp16", "s + x[j - i]", "", "x: float[1]"); }).find("min and max"),
            std::string::npos);
  // 2^64 elements, which as a product of 64 bits are none.
  EXPECT_NE(refusal([] { with("b1_h1_s8_d8_fp16", "", "x[65535, 65535, 65535, 65535]", "x: bool[4]"); }).find("2^40"),
            std::string::npos);
  // The lengths of a ragged batch are known on the device alone, and may be 0.
  EXPECT_NE(refusal([] { with("b2_h1_s8_d8_fp16_raggedfull", "", "j // seqlen_kv == 0"); }).find("may be 0"),
            std::string::npos);
}

TEST(ProblemExpressions, AnIdIsReadWhereItsTextIsKnown) {
  const PlacedProblem p = with("b1_h4_s8_d8_fp16_causal_bshd_scale0.5", "s * 3.25", "x[j] > 0", "x: float[1]");
  EXPECT_EQ(p.id(), "b1_h4_s8_d8_fp16_causal_bshd_scale0.5_score" + p.score_expression().token() + "_mask" +
                        p.mask_expression().token());
  EXPECT_EQ(PlacedProblem::parse(p.id()), p);
  EXPECT_EQ(PlacedProblem::parse(p.portable()), p);
  EXPECT_EQ(PlacedProblem::parse("b1_h4_s8_d8_fp16").portable(), "b1_h4_s8_d8_fp16");
  const std::string unknown = refusal([] { Problem::parse("b1_h4_s8_d8_fp16_score0123456789ab"); });
  EXPECT_NE(unknown.find("in a suite, or as JSON"), std::string::npos) << unknown;
  // An id with hashes may stand beside their texts, if those are theirs.
  const std::string id = with("b1_h4_s8_d8_fp16", "s * 7.75").id();
  EXPECT_EQ(Problem::parse(fmt::format(R"({{"id": "{}", "score": "s*7.75"}})", id)).id(), id);
  EXPECT_NE(refusal([&] { Problem::parse(fmt::format(R"({{"id": "{}", "score": "s*7.5"}})", id)); }).find("another"),
            std::string::npos);
  EXPECT_NE(refusal([&] { Problem::parse(R"({"id": "b1_h4_s8_d8_fp16", "scores": "s"})"); }).find("'scores'"),
            std::string::npos);
  EXPECT_NE(refusal([&] { Problem::parse(R"({"score": "s"})"); }).find("no id"), std::string::npos);
  EXPECT_NE(refusal([&] { Problem::parse(R"({"id": "b1_h4_s8_d8_fp16", "score": 3})"); }).find("a text"),
            std::string::npos);
}

TEST(ProblemExpressions, RowsCarryTheTexts) {
  const PlacedProblem p = with("b1_h4_s8_d8_fp16", "s * 4.75", "", "");
  nlohmann::json row;
  put_problem(row, p);
  EXPECT_EQ(row, (nlohmann::json{{"problem", p.id()}, {"expressions", {{"score", "s * 4.75"}}}}));
  EXPECT_EQ(problem_of(row), p);
  nlohmann::json plain;
  put_problem(plain, PlacedProblem::parse("b1_h4_s8_d8_fp16"));
  EXPECT_EQ(plain, (nlohmann::json{{"problem", "b1_h4_s8_d8_fp16"}}));
  EXPECT_NE(refusal([] { problem_of(nlohmann::json::object()); }).find("names no problem"), std::string::npos);
}

TEST(ProblemExpressions, SuitesHaveThem) {
  const Suite suite = load_suite("expressions");
  const PlacedProblem p = find_problem(suite, "small_documents").problem;
  EXPECT_EQ(p.score_text, "30.0 * tanh(s / 30.0) + slope[h] * (j - i)");
  EXPECT_EQ(print_tensors(p.tensors), "slope: float[1], document_q: int[2], document_kv: int[2]");
  const auto wrong = [](const char* keys) {
    return refusal([&] {
      parse_suite(
          fmt::format("name: x\nproblems:\n  - {{name: y, num_heads: 1, seq_len: 8, head_dim: 8, dtype: fp16, {}}}\n",
                      keys),
          "x.yaml");
    });
  };
  EXPECT_NE(wrong("score: \"sin(s)\"").find("column 1 of the score"), std::string::npos);
  EXPECT_NE(wrong("mask: \"s > 0\"").find("x.yaml:3"), std::string::npos);
  EXPECT_NE(wrong("tensors: \"x: float[1]\"").find("neither"), std::string::npos);
}

// The canonical text has other columns than what was written.
TEST(ProblemExpressions, WhatMayGoWrongIsQuoted) {
  const auto refused = [](const char* score, const char* mask, const char* tensors = "") {
    return refusal([&] { with("b1_h2_s8_d8_fp16", score, mask, tensors).validate(); });
  };
  EXPECT_EQ(refused("s  *  (3)+1.0/(i-j)", "").find("'1.0 / (i - j)' in the score: '/' may divide by 0: its divisor"),
            0U);
  EXPECT_EQ(refused("", "((j <= i))&&i//(j-3)<2").find("'i // (j - 3)' in the mask: '//' may divide by 0"), 0U);
  EXPECT_EQ(refused("s  + a[h,(i-j)]", "", "a: float[2]").find("'a[h, i - j]' in the score: index 2 of 'a' may be -7"),
            0U);
}

TEST(ProblemExpressions, VisiblePairsAreCounted) {
  EXPECT_EQ(with("b1_h2_s100_d8_fp16", "", "j <= i").unmasked_pairs(), 5050);
  EXPECT_EQ(with("b1_h2_s100_d8_fp16_causal", "", "i // 10 == j // 10").unmasked_pairs(), 550);
  // The mean over heads.
  EXPECT_EQ(with("b1_h2_s100_d8_fp16", "", "h == 0 || j <= i").unmasked_pairs(), (10000 + 5050) / 2);
  EXPECT_EQ(with("b1_h1_s8192_d8_fp16", "", "a[i, j]", "a: bool[2]").unmasked_pairs(), std::int64_t{8192} * 8193 / 2);
  const double docs = static_cast<double>(
      with("b3_h1_s16384_d8_fp16_causal", "", "q[b, i] == k[b, j]", "q: int[2], k: int[2]").unmasked_pairs());
  EXPECT_NEAR(docs, 16 * 500500 + 384 * 385 / 2, 0.02 * docs);
}

// The same operands, once by a name and once by a text.
TEST(ProblemExpressions, TheReferenceAgreesWithWhatHasAName) {
  const struct {
    const char *id, *named, *score, *mask, *tensors;
  } all[] = {
      {"b2_h4_hk2_sq30_sk50_d16_fp16", "_softcap3", "3 * tanh(s / 3)", "", ""},
      {"b2_h4_hk2_sq30_sk50_d16_bf16", "_alibi", "s - slope[h] * abs(i + seqlen_kv - seqlen_q - j)", "",
       "slope: float[1]"},
      {"b2_h4_hk2_sq30_sk50_d16_fp16", "_causal", "", "j <= i + seqlen_kv - seqlen_q", ""},
      {"b2_h4_hk2_sq50_sk30_d16_fp16", "_causal", "", "j <= i + seqlen_kv - seqlen_q", ""},
      {"b2_h4_hk2_sq30_sk50_d16_fp16", "_wl7_wr3", "",
       "abs(j - i - seqlen_kv + seqlen_q) <= 3 || j < i + 20 && j >= i + 13", ""},
  };
  for (const auto& [id, token, score, mask, tensors] : all) {
    const PlacedProblem named = PlacedProblem::parse(std::string(id) + token);
    const PlacedProblem asked = with(id, score, mask, tensors);
    for (const Pattern pattern : {Pattern::kNormal, Pattern::kNonFinite}) {
      AttentionInputs in = make_inputs(named, pattern, 3), by_text = in;
      by_text.alibi.clear();
      by_text.tensors = make_tensors(asked, 3);
      if (named.alibi != Alibi::kNone)
        std::memcpy(by_text.tensors[0].data.data(), in.alibi.data(), by_text.tensors[0].data.size());
      const Reference a = reference_forward(named, in, {}), b = reference_forward(asked, by_text, {});
      const auto same = [](double x, double y) {
        return x == y || (std::isnan(x) && std::isnan(y)) || std::abs(x - y) < 1e-12;
      };
      for (std::size_t i = 0; i < a.o.size(); ++i) ASSERT_TRUE(same(a.o[i], b.o[i])) << id << token << " " << i;
      for (std::size_t i = 0; i < a.lse.size(); ++i) ASSERT_TRUE(same(a.lse[i], b.lse[i])) << id << token << " " << i;
      EXPECT_TRUE(within(compare(asked, b, b.ideal_o, b.ideal_lse), error_bound(asked, b))) << id << token;
    }
  }
}

TEST(ProblemExpressions, HiddenKeysSayNothingAndRowsWithoutKeysAre0) {
  const PlacedProblem p = with("b1_h2_s6_d8_fp16", "", "i != 2 && j != 4");
  AttentionInputs in = make_inputs(p, Pattern::kNormal, 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t d = 0; d < 8; ++d) in.k.set(0, 0, 4, d, nan), in.v.set(0, 1, 4, d, nan);
  const Reference reference = reference_forward(p, in, {});
  for (const double o : reference.o) EXPECT_TRUE(std::isfinite(o));
  EXPECT_EQ(reference.lse[2], -std::numeric_limits<double>::infinity());
  EXPECT_EQ(reference.o[2 * 8], 0);
}

// Whether an idealised kernel that computes `done` passes as one of `asked`.
bool passes(const PlacedProblem& asked, const AttentionInputs& of_asked, const PlacedProblem& done,
            const AttentionInputs& of_done) {
  const Reference reference = reference_forward(asked, of_asked, {});
  const Reference ideal = ideal_forward(done, of_done);
  return within(compare(asked, reference, ideal.ideal_o, ideal.ideal_lse), error_bound(asked, reference));
}

TEST(ProblemExpressions, BoundsTellWrongKernelsFromRightOnes) {
  const struct {
    const char *id, *score, *mask, *wrong_score, *wrong_mask, *tensors;
  } all[] = {
      {"b1_h2_s200_d64_fp16_causal", "s * 0.5 + 0.01 * (j - i)", "", "s * 0.5001 + 0.01 * (j - i)", "", ""},
      {"b1_h2_s200_d64_bf16_causal", "s + bias[i, j]", "", "s + bias[j, i]", "", "bias: float[2]"},
      {"b1_h2_s200_d64_fp16", "max(s, -1)", "", "max(s, -1.001)", "", ""},
      {"b1_h2_s200_d64_fp16", "", "j < 40 || j <= i", "", "j < 41 || j <= i", ""},
      {"b1_h2_s200_d64_bf16", "", "i // 37 == j // 37", "", "i // 37 == (j + 1) // 37", ""},
      {"b1_h2_s200_d64_bf16_causal", "", "a[i, j]", "", "a[i, max(j - 1, 0)] || j < 0", "a: bool[2]"},
  };
  for (const auto& [id, score, mask, wrong_score, wrong_mask, tensors] : all) {
    const PlacedProblem p = with(id, score, mask, tensors), wrong = with(id, wrong_score, wrong_mask, tensors);
    const AttentionInputs in = make_inputs(p, Pattern::kNormal, 1);
    EXPECT_TRUE(passes(p, in, p, in)) << score << mask;
    EXPECT_FALSE(passes(p, in, wrong, in)) << score << mask;
  }
}

TEST(ProblemExpressions, TestDataIsWhatItSays) {
  const PlacedProblem p = with("b2_h3_s100_d8_fp16", "s + x[h, i]", "q[b, i] == q[b, j] || keep[j]",
                               "x: float[2], q: int[2], keep: bool[1]");
  const std::vector<ElementTensor> tensors = make_tensors(p, 5), other = make_tensors(p, 6);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].count(), 300);
  EXPECT_NE(tensors[0].data, other[0].data);
  EXPECT_NE(tensors[2].data, other[2].data);
  EXPECT_EQ(tensors[1].data, other[1].data);
  // Documents of other lengths in the second entry, whose ids neither rise nor fit 16 bits.
  const auto id = [&](std::int32_t b, std::int32_t i) {
    const std::int32_t at[] = {b, i};
    return tensors[1].at(at);
  };
  EXPECT_EQ(id(0, 0), id(0, 36));
  EXPECT_NE(id(0, 36), id(0, 37));
  EXPECT_EQ(id(1, 0), id(1, 99));
  EXPECT_LT(id(0, 37), -(1 << 16));
  EXPECT_GT(id(0, 99), 1 << 16);
  // A quarter of the bytes are false, and of the others half are 1.
  const ElementTensor bytes = make_tensors(with("b1_h1_s100_d8_fp16", "", "a[i, j]", "a: bool[2]"), 5)[0];
  EXPECT_NEAR(std::count(bytes.data.begin(), bytes.data.end(), std::byte{0}), 2500, 300);
  EXPECT_NEAR(std::count(bytes.data.begin(), bytes.data.end(), std::byte{1}), 3750, 400);
  double sum = 0, squares = 0;
  for (std::int32_t h = 0; h < 3; ++h)
    for (std::int32_t i = 0; i < 100; ++i) {
      const std::int32_t place[] = {h, i};
      sum += tensors[0].at(place), squares += tensors[0].at(place) * tensors[0].at(place);
    }
  // One in 16 is 16 times as large.
  EXPECT_NEAR(sum / 300, 0, 1);
  EXPECT_NEAR(squares / 300, 1 + 255.0 / 16, 8);
  const ProblemLayouts layouts = make_layouts(p);
  EXPECT_EQ(layouts.tensor_strides[0], (std::array<std::int64_t, 4>{100, 1, 0, 0}));
  EXPECT_EQ(layouts.tensor_strides[2], (std::array<std::int64_t, 4>{1, 0, 0, 0}));
}

TEST(ProblemExpressions, AddedTensorsHideBlocksOfKeysWhereDataIsNotFinite) {
  const auto hidden = [](const char* score, const char* tensors, Pattern pattern) {
    const PlacedProblem p = with("b1_h2_sq70_sk300_d8_fp16", score, "", tensors);
    const ElementTensor bias = make_inputs(p, pattern, 1).tensors[0];
    int found = 0;
    for (std::int64_t i = 0; i < bias.count(); ++i) {
      float value = 0;
      std::memcpy(&value, bias.data.data() + static_cast<std::size_t>(i) * sizeof value, sizeof value);
      found += std::isinf(value) && value < 0;
    }
    return found;
  };
  constexpr const char* kBias = "bias: float[2]";
  // Of 70 rows and 300 keys: the first block of 32 rows, the second of 6 and the third, of 44 keys, of the 32 between.
  EXPECT_EQ(hidden("s + bias[i, j]", kBias, Pattern::kNonFinite), 32 * 128 + 32 * 44 + 6 * 128);
  EXPECT_EQ(hidden("bias[i, j] + 2 * s", kBias, Pattern::kNonFinite), 32 * 128 + 32 * 44 + 6 * 128);
  EXPECT_EQ(hidden("s + bias[i, j]", kBias, Pattern::kNormal), 0);
  EXPECT_EQ(hidden("s * bias[i, j]", kBias, Pattern::kNonFinite), 0);
  EXPECT_EQ(hidden("s * bias[i, j] + bias[i, j]", kBias, Pattern::kNonFinite), 0);
  EXPECT_EQ(hidden("s + bias[h, i]", kBias, Pattern::kNonFinite), 0) << "of no keys, and few";
}

}  // namespace
}  // namespace flashcore
