// Score and mask functions of the caller's own through the C and C++ API on the CPU: beside what has a name, with
// strides and in any order; what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "flashcore/flashcore.hpp"

namespace {

using flashcore::Attention;
using flashcore::Context;
using flashcore::Plan;

constexpr std::int64_t kHeads = 2, kRows = 7, kKeys = 9, kDim = 8;

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random() % 2001) / 1000 - 1;
  return values;
}

struct Call {
  std::vector<float> q = random_floats(kHeads * kRows * kDim, 1), k = random_floats(kHeads * kKeys * kDim, 2),
                     v = random_floats(kHeads * kKeys * kDim, 3), o = std::vector<float>(q.size()),
                     lse = std::vector<float>(kHeads * kRows);
  fc_operands operands() {
    fc_operands all = FC_OPERANDS_INIT;
    all.q = q.data(), all.k = k.data(), all.v = v.data(), all.o = o.data(), all.lse = lse.data();
    return all;
  }
};

Attention plain() {
  Attention p;
  p.dtype = FC_FP32;
  p.heads_q = p.heads_kv = kHeads, p.seqlen_q = kRows, p.seqlen_kv = kKeys, p.head_dim = kDim;
  return p;
}

void expect_equal(const Call& a, const Call& b, const char* what) {
  for (std::size_t i = 0; i < a.o.size(); ++i) EXPECT_NEAR(a.o[i], b.o[i], 2e-6) << what << " o " << i;
  for (std::size_t i = 0; i < a.lse.size(); ++i)
    EXPECT_TRUE(a.lse[i] == b.lse[i] || std::abs(a.lse[i] - b.lse[i]) < 4e-6) << what << " lse " << i;
}

TEST(FunctionsTest, AreWhatHasAName) {
  const Context cpu("cpu");
  Attention named = plain(), own = plain();
  named.softcap = 2, named.causal = FC_CAUSAL_BOTTOM_RIGHT, named.alibi = FC_ALIBI_HEAD;
  own.score = "2 * tanh(s / 2) - slope[h] * abs(i + seqlen_kv - seqlen_q - j)";
  own.mask = "j <= i + seqlen_kv - seqlen_q";
  own.tensors = {{"slope", FC_ELEMENT_FLOAT, {kHeads}}};
  const float slopes[] = {0.5f, 0.125f};
  Call a, b;
  fc_operands of_a = a.operands(), of_b = b.operands();
  of_a.alibi = slopes;
  const void* tensors[] = {slopes};
  of_b.tensors = tensors;
  Plan(cpu, named).launch(of_a);
  Plan(cpu, own).launch(of_b);
  expect_equal(a, b, "softcap, ALiBi, causal");
}

TEST(FunctionsTest, TextThatIsASoftcapIsTheSameProblem) {
  Attention named = plain();
  named.softcap = 2, named.mask = "j <= i";
  const auto with = [](const char* score) {
    Attention p = plain();
    p.score = score, p.mask = "j <= i";
    return p;
  };
  for (const char* device : {"cpu", "emulator:sm_90"}) {
    const Context context(device);
    const std::string wanted = context.explain(named);
    EXPECT_NE(wanted.find("_softcap2_"), std::string::npos) << wanted;
    for (const char* text : {"2 * tanh(s / 2)", "tanh(s / 2.0) * 2.0"}) EXPECT_EQ(context.explain(with(text)), wanted);
    for (const char* text : {"2 * tanh(s / 3)", "2 * tanh(s / 2) + 1", "s"})
      EXPECT_NE(context.explain(with(text)).find("_score"), std::string::npos) << text;
    Attention after = with("2 * tanh(s / 2)");
    after.alibi = FC_ALIBI_HEAD;
    EXPECT_NE(context.explain(after).find("_score"), std::string::npos);
  }
  const Context cpu("cpu");
  Call a, b;
  Plan(cpu, named).launch(a.operands());
  Plan(cpu, with("2 * tanh(s / 2)")).launch(b.operands());
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.lse, b.lse);
}

// docs/expressions.md quotes it.
TEST(FunctionsTest, UnionsOfIntervalsAreAMask) {
  const Context cpu("cpu");
  Attention p = plain(), by_pairs = plain();
  p.mask = "j < first_end[i] || j >= start[h, i] && j < end[h, i]";
  p.tensors = {{"first_end", FC_ELEMENT_INT, {kRows}},
               {"start", FC_ELEMENT_INT, {kHeads, kRows}},
               {"end", FC_ELEMENT_INT, {kHeads, kRows}}};
  by_pairs.mask = "visible[h, i, j]";
  by_pairs.tensors = {{"visible", FC_ELEMENT_BOOL, {kHeads, kRows, kKeys}}};
  const std::vector<std::int32_t> first_end = {0, 1, 0, 3, 9, -1, 2};
  std::vector<std::int32_t> start, end;
  std::vector<unsigned char> visible;
  for (std::int32_t row = 0; row < kHeads * kRows; ++row) {
    start.push_back(row % 5 + 2), end.push_back(row % 3 == 1 ? 0 : row % 7 + 4);  // some are empty
    for (std::int32_t j = 0; j < kKeys; ++j)
      visible.push_back(j < first_end[static_cast<std::size_t>(row % kRows)] || (j >= start.back() && j < end.back()));
  }
  Call a, b;
  fc_operands of_a = a.operands(), of_b = b.operands();
  const void* rows[] = {first_end.data(), start.data(), end.data()};
  const void* pairs[] = {visible.data()};
  of_a.tensors = rows, of_b.tensors = pairs;
  Plan(cpu, p).launch(of_a);
  Plan(cpu, by_pairs).launch(of_b);
  expect_equal(a, b, "intervals");
}

TEST(FunctionsTest, TensorsComeInAnyOrderAndWithStrides) {
  const Context cpu("cpu");
  const std::vector<float> bias = random_floats(kHeads * kRows * kKeys, 4);
  std::vector<unsigned char> allowed(kRows * kKeys);
  for (std::size_t n = 0; n < allowed.size(); ++n) allowed[n] = n % 3 != 1 ? 7 : 0;
  const std::vector<std::int32_t> kinds = {0, 1, 0, 1, 0, 1, 0, 1, 0};
  Attention p = plain();
  p.score = "s + bias[h, i, j]";
  p.mask = "allowed[i, j] && kind[j] == 0";
  p.tensors = {{"kind", FC_ELEMENT_INT, {kKeys}},
               {"allowed", FC_ELEMENT_BOOL, {kRows, kKeys}},
               {"bias", FC_ELEMENT_FLOAT, {kHeads, kRows, kKeys}}};
  const auto run = [&](const Attention& problem, const void* kind, const void* shown, const void* added) {
    Call call;
    fc_operands operands = call.operands();
    const void* tensors[] = {kind, shown, added};
    operands.tensors = tensors;
    Plan(cpu, problem).launch(operands);
    return call;
  };
  const Call packed = run(p, kinds.data(), allowed.data(), bias.data());
  // The same bias with its axes the other way round, and the kinds repeated from two of them.
  std::vector<float> turned(bias.size());
  for (std::int64_t h = 0; h < kHeads; ++h)
    for (std::int64_t i = 0; i < kRows; ++i)
      for (std::int64_t j = 0; j < kKeys; ++j)
        turned[static_cast<std::size_t>((j * kRows + i) * kHeads + h)] =
            bias[static_cast<std::size_t>((h * kRows + i) * kKeys + j)];
  Attention strided = p;
  strided.tensors[2].strides = {1, kHeads, kHeads * kRows};
  expect_equal(packed, run(strided, kinds.data(), allowed.data(), turned.data()), "turned");
  Attention repeated = p;
  repeated.mask = "allowed[i, j] && kind[j, j % 2] == 0";
  repeated.tensors[0] = {"kind", FC_ELEMENT_INT, {kKeys, 2}, {0, 1}};
  expect_equal(packed, run(repeated, kinds.data(), allowed.data(), bias.data()), "repeated");
  // By hand, for one row.
  Call by_hand;
  double sum = 0;
  for (std::int64_t j = 0; j < kKeys; ++j) {
    if ((3 * kKeys + j) % 3 == 1 || j % 2 == 1) continue;
    double s = 0;
    for (std::int64_t d = 0; d < kDim; ++d)
      s += static_cast<double>(by_hand.q[static_cast<std::size_t>(3 * kDim + d)]) *
           by_hand.k[static_cast<std::size_t>(j * kDim + d)];
    sum += std::exp(s / std::sqrt(8.0) + bias[static_cast<std::size_t>(3 * kKeys + j)]);
  }
  EXPECT_NEAR(packed.lse[3], std::log(sum), 1e-5);
}

TEST(FunctionsTest, WhatDoesNotFitIsRefused) {
  const Context cpu("cpu");
  const std::vector<float> bias = random_floats(kHeads * kRows * kKeys + 8, 4);
  const auto refused = [&](const std::string& sentence, const std::function<void(Attention&)>& change,
                           const std::function<void(fc_operands&, const void**)>& change_launch = {}) {
    Attention p = plain();
    p.score = "s + bias[h, i, j]";
    p.tensors = {{"bias", FC_ELEMENT_FLOAT, {kHeads, kRows, kKeys}}};
    change(p);
    try {
      const Plan plan(cpu, p);
      Call call;
      fc_operands operands = call.operands();
      const void* tensors[8] = {bias.data()};
      operands.tensors = tensors;
      if (change_launch) change_launch(operands, tensors);
      plan.launch(operands);
      FAIL() << sentence;
    } catch (const flashcore::Error& error) {
      EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
    }
  };
  const auto nothing = [](Attention&) {};
  refused("column 1 of the score: 'sin' is no function", [](Attention& p) { p.score = "sin(s)"; });
  refused("column 1 of the mask", [](Attention& p) { p.mask = "s > 0"; });
  refused("'bias' is given, and neither the score nor the mask names it", [](Attention& p) { p.score = "s"; });
  refused("'bias' has shape [2, 7, 8], and", [](Attention& p) { p.tensors[0].sizes[2] = 8; });
  refused("needs one of [2, 7, 9] at the least", [](Attention& p) { p.tensors[0].sizes[0] = 1; });
  refused("has stride -1 along index 3", [](Attention& p) { p.tensors[0].strides = {63, 9, -1}; });
  refused("at most 2^40 elements", [](Attention& p) { p.tensors[0].strides = {std::int64_t{1} << 41, 9, 1}; });
  refused("5 sizes and 0 strides", [](Attention& p) { p.tensors[0].sizes = {1, 1, 1, 1, 1}; });
  refused("has element 3; use FC_ELEMENT_FLOAT",
          [](Attention& p) { p.tensors[0].element = static_cast<fc_element>(3); });
  refused("takes 0 indices", [](Attention& p) { p.tensors[0].sizes.clear(); });
  refused("the tensor 'bias' is null", nothing, [](fc_operands& o, const void**) { o.tensors = nullptr; });
  refused("the tensor 'bias' is null", nothing, [](fc_operands&, const void** t) { t[0] = nullptr; });
  refused("no multiple of 4 bytes", nothing,
          [](fc_operands&, const void** t) { t[0] = static_cast<const char*>(t[0]) + 1; });
  refused("overlaps bias", nothing, [](fc_operands& o, const void** t) { t[0] = o.o; });
  refused("tensors is given, and b1_h2_sq7_sk9_d8_fp32 has none", [](Attention& p) { p.score = "", p.tensors = {}; });
  fc_attention a = FC_ATTENTION_INIT;
  fc_plan plan = nullptr;
  a.score = "s", a.tensor_count = 9;
  EXPECT_EQ(fc_plan_create(cpu.get(), &a, &plan), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("at most 8"), std::string::npos) << fc_last_error();
  a.tensor_count = 1;
  EXPECT_EQ(fc_plan_create(cpu.get(), &a, &plan), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("tensors is null"), std::string::npos) << fc_last_error();
}

// Callers built with the header of ABI version 6.
TEST(FunctionsTest, OlderStructsHaveNone) {
  const Context cpu("cpu");
  fc_attention a = FC_ATTENTION_INIT;
  a.struct_size = offsetof(fc_attention, score);
  ASSERT_EQ(fc_problem_parse("b2_h2_s8_d8_fp32_raggedfull", &a), FC_OK) << fc_last_error();
  const char* own = R"({"id": "b1_h2_s8_d8_fp32", "mask": "keep[j] && j <= i", "tensors": "keep: bool[1]"})";
  EXPECT_EQ(fc_problem_parse(own, &a), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("build with a header of ABI version 7"), std::string::npos);
  ASSERT_EQ(fc_problem_parse("b1_h2_s8_d8_fp32", &a), FC_OK) << fc_last_error();
  a.score = "no score at all", a.tensor_count = 99;  // beyond its end
  fc_plan plan = nullptr;
  ASSERT_EQ(fc_plan_create(cpu.get(), &a, &plan), FC_OK) << fc_last_error();
  std::vector<float> x(2 * 8 * 8, 1.0f), o(x.size());
  fc_operands operands = FC_OPERANDS_INIT;
  operands.struct_size = offsetof(fc_operands, tensors);
  operands.q = operands.k = operands.v = x.data(), operands.o = o.data();
  const void* beyond = &x;
  operands.tensors = &beyond;
  EXPECT_EQ(fc_plan_launch_operands(plan, &operands, nullptr), FC_OK) << fc_last_error();
  fc_plan_destroy(plan);
  fc_attention parsed = FC_ATTENTION_INIT;
  ASSERT_EQ(fc_problem_parse(own, &parsed), FC_OK) << fc_last_error();
  EXPECT_STREQ(parsed.mask, "keep[j] && j <= i");
  ASSERT_EQ(parsed.tensor_count, 1);
  EXPECT_STREQ(parsed.tensors[0].name, "keep");
  EXPECT_EQ(parsed.tensors[0].sizes[0], 8);
  EXPECT_EQ(parsed.score, nullptr);
}

}  // namespace
