// Windows through the C API and its C++ header; structs of callers that were built before there were any.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "flashcore/flashcore.hpp"

namespace {

using flashcore::Attention;
using flashcore::Context;
using flashcore::Plan;

Attention problem_of(std::optional<std::int64_t> left, std::optional<std::int64_t> right, fc_causal causal,
                     fc_alignment alignment) {
  Attention p;
  p.dtype = FC_FP32;
  p.heads_q = 2;
  p.heads_kv = 1;
  p.seqlen_q = 19;
  p.seqlen_kv = 27;
  p.head_dim = 8;
  p.window_left = left;
  p.window_right = right;
  p.causal = causal;
  p.window_alignment = alignment;
  return p;
}

// Attention by its formula where every score is 0: the mean of the values that a row sees. Value j is j + 1.
std::vector<float> means(const Attention& p) {
  std::vector<float> rows;
  const bool top_left =
      p.causal == FC_CAUSAL_TOP_LEFT || (p.causal == FC_CAUSAL_NONE && p.window_alignment == FC_ALIGN_TOP_LEFT);
  for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
    const std::int64_t own = i + (top_left ? 0 : p.seqlen_kv - p.seqlen_q);
    float sum = 0, count = 0;
    for (std::int64_t j = 0; j < p.seqlen_kv; ++j) {
      if (p.window_left && j < own - *p.window_left) continue;
      if (p.causal != FC_CAUSAL_NONE ? j > own : p.window_right && j > own + *p.window_right) continue;
      sum += static_cast<float>(j + 1);
      count += 1;
    }
    rows.push_back(count == 0 ? 0 : sum / count);
  }
  return rows;
}

std::vector<float> computed(const Context& context, const Attention& p) {
  const auto floats = [&](std::int64_t heads, std::int64_t rows) {
    return std::vector<float>(static_cast<std::size_t>(heads * rows * p.head_dim), 0.0f);
  };
  std::vector<float> q = floats(p.heads_q, p.seqlen_q), k = floats(p.heads_kv, p.seqlen_kv), v = k,
                     o = floats(p.heads_q, p.seqlen_q);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / static_cast<std::size_t>(p.head_dim) + 1);
  Plan(context, p).launch(q.data(), k.data(), v.data(), o.data(), nullptr);
  std::vector<float> first_column;
  for (std::int64_t i = 0; i < p.seqlen_q; ++i) first_column.push_back(o[static_cast<std::size_t>(i * p.head_dim)]);
  return first_column;
}

TEST(Windows, ComputeWhatTheySay) {
  const Context cpu("cpu");
  const std::optional<std::int64_t> sides[] = {{}, 0, 3, 11, 100};
  for (const fc_causal causal : {FC_CAUSAL_NONE, FC_CAUSAL_BOTTOM_RIGHT, FC_CAUSAL_TOP_LEFT}) {
    for (const auto& left : sides) {
      for (const auto& right : sides) {
        for (const fc_alignment alignment : {FC_ALIGN_BOTTOM_RIGHT, FC_ALIGN_TOP_LEFT}) {
          if (causal != FC_CAUSAL_NONE && (right.value_or(0) != 0 || alignment != FC_ALIGN_BOTTOM_RIGHT)) continue;
          if (!left && !right && causal == FC_CAUSAL_NONE && alignment == FC_ALIGN_TOP_LEFT) continue;
          const Attention p = problem_of(left, right, causal, alignment);
          const std::vector<float> got = computed(cpu, p), want = means(p);
          for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-4) << i;
        }
      }
    }
  }
}

TEST(Windows, AZeroIsNoBoundUnlessItIsSaidToBeMeant) {
  const Context cpu("cpu");
  fc_attention a = problem_of({}, {}, FC_CAUSAL_NONE, FC_ALIGN_BOTTOM_RIGHT).c();
  const auto id = [&] {
    char text[4096];
    EXPECT_EQ(fc_explain(cpu.get(), &a, text, sizeof text, nullptr), FC_OK) << fc_last_error();
    const std::string json = text;
    const std::size_t at = json.find("\"problem\":\"") + 11;
    return json.substr(at, json.find('"', at) - at);
  };
  const std::string plain = "b1_h2_hk1_sq19_sk27_d8_fp32";
  EXPECT_EQ(id(), plain);
  a.given |= FC_GIVEN_WINDOW;
  EXPECT_EQ(id(), plain + "_causal_wl0");
  a.window_left = -1;
  EXPECT_EQ(id(), plain + "_causal");
  a.window_right = 4;
  EXPECT_EQ(id(), plain + "_wr4");
  a.given = 0;
  a.window_left = 9;
  a.window_alignment = FC_ALIGN_TOP_LEFT;
  EXPECT_EQ(id(), plain + "_wl9_wr4_tl");
}

TEST(Windows, AStructWithoutTheFieldsHasNoWindow) {
  const Context cpu("cpu");
  fc_attention a = problem_of({}, {}, FC_CAUSAL_NONE, FC_ALIGN_BOTTOM_RIGHT).c();
  a.struct_size = static_cast<std::uint32_t>(offsetof(fc_attention, window_left));
  char text[4096];
  EXPECT_EQ(fc_explain(cpu.get(), &a, text, sizeof text, nullptr), FC_OK) << fc_last_error();
  a.given |= FC_GIVEN_WINDOW;
  EXPECT_EQ(fc_explain(cpu.get(), &a, text, sizeof text, nullptr), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("no fields for a window"), std::string::npos) << fc_last_error();
}

TEST(Windows, WhatContradictsItselfIsRefused) {
  const Context cpu("cpu");
  const auto refused = [&](const char* words, const Attention& p) {
    const fc_attention a = p.c();
    fc_plan plan = nullptr;
    EXPECT_EQ(fc_plan_create(cpu.get(), &a, &plan), FC_ERROR_BAD_INPUT);
    EXPECT_NE(std::string(fc_last_error()).find(words), std::string::npos) << fc_last_error();
  };
  refused("causal is given and window_right is 4", problem_of({}, 4, FC_CAUSAL_BOTTOM_RIGHT, FC_ALIGN_BOTTOM_RIGHT));
  refused("window_left is -2", problem_of(-2, {}, FC_CAUSAL_NONE, FC_ALIGN_BOTTOM_RIGHT));
  refused("window_right is -7", problem_of({}, -7, FC_CAUSAL_NONE, FC_ALIGN_BOTTOM_RIGHT));
  refused("window_left is 4294967296", problem_of(std::int64_t{1} << 32, {}, FC_CAUSAL_NONE, FC_ALIGN_BOTTOM_RIGHT));
  refused("window_alignment is 5", problem_of(3, {}, FC_CAUSAL_NONE, static_cast<fc_alignment>(5)));
  refused("causal is bottom_right and window_alignment is top_left",
          problem_of(3, {}, FC_CAUSAL_BOTTOM_RIGHT, FC_ALIGN_TOP_LEFT));
  refused("bounds nothing", problem_of({}, {}, FC_CAUSAL_NONE, FC_ALIGN_TOP_LEFT));
}

TEST(Windows, ComeFromIds) {
  for (const char* id : {"b1_h2_hk1_sq19_sk27_d8_fp32_causal_wl7", "b1_h2_hk1_sq19_sk27_d8_fp32_wl0_wr3",
                         "b1_h2_hk1_sq19_sk27_d8_fp32_wl7_tl", "b1_h2_hk1_sq19_sk27_d8_fp32_causaltl_wl0"}) {
    fc_attention a = FC_ATTENTION_INIT;
    ASSERT_EQ(fc_problem_parse(id, &a), FC_OK) << fc_last_error();
    char text[4096];
    ASSERT_EQ(fc_explain(Context("cpu").get(), &a, text, sizeof text, nullptr), FC_OK) << fc_last_error();
    EXPECT_NE(std::string(text).find("\"" + std::string(id) + "\""), std::string::npos) << text;
  }
}

// The padding behind the last field of version 2 holds anything.
TEST(Windows, AStructOfVersionTwoHasNone) {
  const Context cpu("cpu");
  constexpr std::size_t kOld = offsetof(fc_attention, window_left);
  std::vector<unsigned char> memory(kOld + 24, 0xab);
  fc_attention now = problem_of({}, {}, FC_CAUSAL_NONE, FC_ALIGN_BOTTOM_RIGHT).c();
  now.struct_size = kOld;
  std::memcpy(memory.data(), &now, offsetof(fc_attention, given) + sizeof now.given);
  auto* const old = reinterpret_cast<fc_attention*>(memory.data());
  fc_plan plan = nullptr;
  ASSERT_EQ(fc_plan_create(cpu.get(), old, &plan), FC_OK) << fc_last_error();
  fc_plan_destroy(plan);
  ASSERT_EQ(fc_problem_parse("b1_h2_s8_d16_fp32", old), FC_OK);
  EXPECT_EQ(std::vector<unsigned char>(memory.begin() + kOld, memory.end()), std::vector<unsigned char>(24, 0xab));
  EXPECT_EQ(fc_problem_parse("b1_h2_s8_d16_fp32_wl3", old), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("no fields for"), std::string::npos) << fc_last_error();
}

}  // namespace
