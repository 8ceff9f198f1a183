#include "core/problem_fields.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"

namespace flashcore {
namespace {

TEST(ProblemFieldsTest, EveryFieldSaysEverything) {
  std::set<std::string_view> names, keys;
  for (const ProblemField& field : problem_fields()) {
    EXPECT_TRUE(names.insert(field.name).second && keys.insert(field.suite_key).second) << field.name;
    EXPECT_TRUE(field.get && field.set) << field.name;
    EXPECT_EQ(field.required, field.otherwise == nullptr) << field.name;
    EXPECT_EQ(field.required, field.default_text.empty()) << field.name;
    EXPECT_EQ(field.kind == ProblemField::Kind::kWord, !field.words.empty()) << field.name;
    EXPECT_FALSE((field.form.empty() && field.name != "tensors") || field.doc.empty() || field.python.empty())
        << field.name;
    EXPECT_EQ(find_problem_field(field.name), &field);
    EXPECT_EQ(find_problem_field(field.suite_key), &field);
  }
  EXPECT_EQ(find_problem_field("heads")->name, "heads_q");
  EXPECT_EQ(find_problem_field("layout"), nullptr);
}

TEST(ProblemFieldsTest, EveryFieldIsDrawnPrintedReadAndShrunk) {
  Draws draws(1);
  std::set<std::string_view> drawn, shrunk;
  for (int i = 0; i < 3000; ++i) {
    const Problem p = random_problem(draws);
    p.validate();
    EXPECT_EQ(Problem::parse(p.id()), p) << p.id();
    Problem again;
    for (const ProblemField& field : problem_fields()) {
      field.set(again, field.get(p));
      if (field.get(p) != (field.otherwise ? field.otherwise(p) : field.get(Problem()))) drawn.insert(field.name);
      if (!field.simpler) continue;
      for (const Problem& simpler : field.simpler(p))
        if (simpler != p && complexity(simpler) < complexity(p)) shrunk.insert(field.name);
    }
    EXPECT_EQ(again, p) << p.id();
    for (const Problem& simpler : simpler_problems(p)) EXPECT_EQ(Problem::parse(simpler.id()), simpler) << p.id();
  }
  for (const ProblemField& field : problem_fields()) {
    EXPECT_TRUE(drawn.contains(field.name)) << field.name;
    EXPECT_TRUE(shrunk.contains(field.name) || !field.simpler) << field.name;
  }
}

TEST(ProblemFieldsTest, ShrinkingEndsAtTheLeast) {
  Draws draws(2);
  for (int i = 0; i < 50; ++i) {
    Problem p = random_problem(draws);
    for (bool progress = true; progress;) {
      progress = false;
      for (const Problem& simpler : simpler_problems(p)) {
        if (complexity(simpler) >= complexity(p)) continue;
        p = simpler, progress = true;
        break;
      }
    }
    EXPECT_TRUE(p.mask.none() && p.heads_q == 1 && p.head_dim == 1 && p.batch == 1 && !p.scale && !p.has_score() &&
                !p.ragged() && !p.has_expression())
        << p.id();
    EXPECT_LE(p.seqlen_q + p.seqlen_kv, 2) << p.id();
  }
}

TEST(ProblemFieldsTest, DistanceIsOfWhatTheKernelWouldBe) {
  const auto distance = [](const char* a, const char* b) {
    return problem_distance(Problem::parse(a), Problem::parse(b));
  };
  EXPECT_EQ(distance("b1_h8_s512_d64_fp16_causal_wl99", "b1_h8_s512_d64_bf16_causal_wl99_scale0.5"), 0);
  EXPECT_EQ(distance("b1_h8_s512_d64_fp16_causal_wl127", "b1_h8_s512_d64_fp16_causal_wl63"), 1);
  EXPECT_TRUE(std::isinf(distance("b1_h8_s512_d64_fp16_causal_wl127", "b1_h8_s512_d64_fp16_causal")));
  EXPECT_TRUE(std::isinf(distance("b1_h8_s512_d64_fp16_wr127", "b1_h8_s512_d64_fp16")));
  // A window that is wider than the sequence is none.
  EXPECT_EQ(distance("b1_h8_s512_d64_fp16_causal_wl4095", "b1_h8_s512_d64_fp16_causal"), 0);
  EXPECT_EQ(distance("b2_h4_s512_d64_fp16", "b1_h8_s512_d64_fp16"), 0);
  EXPECT_EQ(distance("b1_h8_s512_d64_e4m3_perhead", "b1_h8_s512_d64_e5m2"), 0);
  EXPECT_GT(distance("b1_h8_s512_d64_e4m3_oe4m3", "b1_h8_s512_d64_e4m3"), 0);
  EXPECT_TRUE(std::isinf(distance("b1_h8_s512_d64_e4m3", "b1_h8_s512_d64_bf16")));
  EXPECT_TRUE(std::isinf(distance("b1_h8_s512_d64_e4m3", "b1_h8_s512_d64_e4m3_vdn")));
}

TEST(ProblemFieldsTest, JsonHasEveryField) {
  const Problem p =
      Problem::parse("b2_h8_hk2_sq3_sk70_d64_dv32_bf16_causaltl_wl7_scale0.5_softcap30_alibibatch_sink_raggedfull");
  const nlohmann::json expected = {
      {"batch", 2},           {"heads_q", 8},       {"heads_kv", 2},     {"seqlen_q", 3},
      {"seqlen_kv", 70},      {"head_dim", 64},     {"head_dim_v", 32},  {"dtype", "bf16"},
      {"causal", "top_left"}, {"window_left", 7},   {"window_right", 0}, {"window_alignment", "top_left"},
      {"scale", 0.5},         {"o_dtype", "bf16"},  {"scaling", "none"}, {"softcap", 30},
      {"alibi", "batch"},     {"sink", "head"},     {"amax", "none"},    {"lengths", "full"},
      {"page_size", 0},       {"tensors", nullptr}, {"score", nullptr},  {"mask", nullptr},
      {"kv_dtype", "bf16"},   {"v_layout", "nd"}};
  EXPECT_EQ(problem_json(p), expected);
  EXPECT_EQ(problem_json(Problem())["window_left"], nullptr);
  EXPECT_EQ(problem_json(Problem())["softcap"], nullptr);
  const nlohmann::json fp8 = problem_json(Problem::parse("b1_h8_s512_d64_e4m3_perhead"));
  EXPECT_EQ(fp8["dtype"], "e4m3");
  EXPECT_EQ(fp8["o_dtype"], "bf16");
  EXPECT_EQ(fp8["scaling"], "head");
  EXPECT_EQ(fp8["kv_dtype"], "e4m3");
  EXPECT_EQ(problem_json(Problem::parse("b1_h8_s512_d64_bf16_kvint8"))["kv_dtype"], "int8");
}

}  // namespace
}  // namespace flashcore
