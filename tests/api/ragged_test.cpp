// Ragged batches through the C and C++ API on the CPU: each sequence beside a plan of it alone; what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "flashcore/flashcore.hpp"

namespace {

using flashcore::Attention;
using flashcore::Context;
using flashcore::Plan;

constexpr std::int64_t kHeads = 3, kDim = 8, kTotal = 20;

std::vector<float> random_floats(std::size_t count) {
  std::mt19937 random(7);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random() % 2001) / 1000 - 1;
  return values;
}

struct Call {
  std::vector<float> q = random_floats(kTotal * kHeads * kDim), k = q, v = q;
  std::vector<float> o = std::vector<float>(q.size(), 7), lse = std::vector<float>(kTotal * kHeads, 7);
  std::vector<std::int32_t> cu_q = {0, 5, 5, 18}, cu_kv = {0, 6, 9, 20}, used = {6, 1, 4};
  fc_operands operands() {
    fc_operands all = FC_OPERANDS_INIT;
    all.q = q.data(), all.k = k.data(), all.v = v.data(), all.o = o.data(), all.lse = lse.data();
    all.cu_seqlens_q = cu_q.data(), all.cu_seqlens_kv = cu_kv.data();
    return all;
  }
};

// [total, heads, dim].
Attention packed() {
  Attention p;
  p.dtype = FC_FP32;
  p.batch = 3, p.heads_q = p.heads_kv = kHeads, p.head_dim = kDim;
  p.seqlen_q = 13, p.seqlen_kv = 12;
  p.causal = FC_CAUSAL_BOTTOM_RIGHT;
  p.q_strides = p.k_strides = p.v_strides = p.o_strides = fc_strides{0, kDim, kHeads * kDim};
  p.lengths = FC_LENGTHS_FULL;
  p.total_q = p.total_kv = kTotal;
  return p;
}

void expect_each(Call& call, bool some_keys) {
  const Context cpu("cpu");
  for (std::size_t s = 0; s < 3; ++s) {
    Attention one = packed();
    one.lengths = FC_LENGTHS_FIXED, one.total_q = one.total_kv = 0;
    one.batch = 1;
    one.seqlen_q = call.cu_q[s + 1] - call.cu_q[s];
    one.seqlen_kv = some_keys ? call.used[s] : call.cu_kv[s + 1] - call.cu_kv[s];
    const auto first = static_cast<std::size_t>(call.cu_q[s]), first_kv = static_cast<std::size_t>(call.cu_kv[s]);
    std::vector<float> o(call.o.size()), lse(static_cast<std::size_t>(kHeads * one.seqlen_q) + 1);
    Plan(cpu, one).launch(&call.q[first * kHeads * kDim], &call.k[first_kv * kHeads * kDim],
                          &call.v[first_kv * kHeads * kDim], o.data(), lse.data());
    for (std::size_t row = 0; row < static_cast<std::size_t>(one.seqlen_q); ++row)
      for (std::size_t h = 0; h < kHeads; ++h) {
        EXPECT_EQ(call.lse[h * kTotal + first + row], lse[h * static_cast<std::size_t>(one.seqlen_q) + row]);
        for (std::size_t d = 0; d < kDim; ++d)
          EXPECT_EQ(call.o[((first + row) * kHeads + h) * kDim + d], o[(row * kHeads + h) * kDim + d]);
      }
  }
  for (std::size_t i = 18 * kHeads * kDim; i < call.o.size(); ++i) EXPECT_EQ(call.o[i], 7) << "nobody's rows";
}

TEST(RaggedTest, EachSequenceIsAsByItself) {
  const Context cpu("cpu");
  const Plan plan(cpu, packed());
  EXPECT_NE(plan.describe().find("b3_h3_sq13_sk12_d8_fp32_causal_raggedfull"), std::string::npos) << plan.describe();
  Call call;
  plan.launch(call.operands());
  expect_each(call, false);
  // The same plan on other lengths, and on some of the keys.
  call.cu_q = {0, 13, 14, 18}, call.cu_kv = {2, 3, 9, 14}, call.used = {1, 0, 5};
  fc_operands operands = call.operands();
  operands.seqused_kv = call.used.data();
  plan.launch(operands);
  expect_each(call, true);
}

TEST(RaggedTest, BoundariesThatNoBatchHasMakeNaN) {
  const Context cpu("cpu");
  const Plan plan(cpu, packed());
  Call call;
  call.cu_kv = {0, 6, 9, 21};
  plan.launch(call.operands());
  EXPECT_TRUE(std::isfinite(call.o[0]));
  for (std::size_t row = 5; row < 18; ++row) EXPECT_TRUE(std::isnan(call.o[row * kHeads * kDim])) << row;
  EXPECT_TRUE(std::isnan(call.lse[5]));
}

TEST(RaggedTest, TheStatusNamesWhoGetsNaN) {
  const Context cpu("cpu");
  const Plan plan(cpu, packed());
  const auto status_of = [&](auto change) {
    Call call;
    fc_operands operands = call.operands();
    change(call, operands);
    const std::string said = plan.status(operands);
    plan.launch(operands);  // who is named has NaN in each row within the tensors, and nobody else
    for (std::size_t s = 0; s < 3; ++s) {
      const bool named = said.find("\"sequence\":" + std::to_string(s)) != std::string::npos;
      const auto clamped = [](std::int32_t at) { return static_cast<std::size_t>(std::clamp(at, 0, 20)); };
      for (std::size_t row = clamped(call.cu_q[s]); row < clamped(call.cu_q[s + 1]); ++row)
        EXPECT_EQ(std::isnan(call.o[row * kHeads * kDim]), named) << said << " sequence " << s << " row " << row;
    }
    return said;
  };
  EXPECT_EQ(status_of([](Call&, fc_operands&) {}), R"({"bad":[],"sequences":3})");
  EXPECT_EQ(status_of([](Call& call, fc_operands&) { call.cu_kv[3] = 21; }),
            R"({"bad":[{"sequence":2,"why":"cu_seqlens_kv[2] is 9 and [3] is 21; boundaries are 0 to total_kv = 20"}],)"
            R"("sequences":3})");
  EXPECT_EQ(status_of([](Call& call, fc_operands&) {
              call.cu_q = {-1, 5, 4, 18};
            }),
            R"({"bad":[{"sequence":0,"why":"cu_seqlens_q[0] is -1 and [1] is 5; boundaries are 0 to total_q = 20"},)"
            R"({"sequence":1,"why":"cu_seqlens_q[1] is 5 and [2] is 4; a sequence may not end before it begins"},)"
            R"({"sequence":2,"why":"it has 14 rows; the plan's bound seqlen_q is 13"}],"sequences":3})");
  EXPECT_EQ(
      status_of([](Call& call, fc_operands& operands) {
        call.used = {6, 4, 11};
        operands.seqused_kv = call.used.data();
      }),
      R"({"bad":[{"sequence":1,"why":"seqused_kv[1] is 4, and the sequence has 3 keys; 0 to 3 of them may count"}],)"
      R"("sequences":3})");
  EXPECT_EQ(status_of([](Call& call, fc_operands&) {
              call.cu_kv = {0, 0, 0, 13};
            }),
            R"({"bad":[{"sequence":2,"why":"it has 13 keys; the plan's bound seqlen_kv is 12"}],"sequences":3})");
  fc_operands none = FC_OPERANDS_INIT;
  EXPECT_THROW(plan.status(none), flashcore::Error);  // cu_seqlens_q is null
  Attention fixed = packed();
  fixed.batch = 1, fixed.lengths = FC_LENGTHS_FIXED, fixed.total_q = fixed.total_kv = 0;
  EXPECT_EQ(Plan(cpu, fixed).status(none), R"({"bad":[],"sequences":0})");
}

// Random lengths, most of them impossible: the status and the kernel agree on who is bad.
TEST(RaggedTest, TheStatusAgreesWithTheKernel) {
  const Context cpu("cpu");
  const Plan plan(cpu, packed());
  std::mt19937 random(3);
  int bad = 0, good = 0;
  for (int n = 0; n < 300; ++n) {
    Call call;
    for (std::int32_t& at : call.cu_q) at = static_cast<std::int32_t>(random() % 26) - 2;
    for (std::int32_t& at : call.cu_kv) at = static_cast<std::int32_t>(random() % 26) - 2;
    for (std::int32_t& count : call.used) count = static_cast<std::int32_t>(random() % 8) - 1;
    if (n % 2 == 0) std::sort(call.cu_q.begin(), call.cu_q.end()), std::sort(call.cu_kv.begin(), call.cu_kv.end());
    fc_operands operands = call.operands();
    if (n % 3 == 0) operands.seqused_kv = call.used.data();
    const std::string said = plan.status(operands);
    for (std::size_t s = 0; s < 3; ++s) {
      const bool named = said.find("\"sequence\":" + std::to_string(s)) != std::string::npos;
      const std::int32_t first = std::clamp(call.cu_q[s], 0, 20), last = std::clamp(call.cu_q[s + 1], 0, 20);
      if (last <= first) continue;
      // Of this sequence alone, for two may share rows.
      Call alone = call;
      fc_operands own = alone.operands();
      Attention one = packed();
      one.batch = 1;
      own.cu_seqlens_q = &alone.cu_q[s], own.cu_seqlens_kv = &alone.cu_kv[s];
      own.seqused_kv = operands.seqused_kv ? &alone.used[s] : nullptr;
      Plan(cpu, one).launch(own);
      EXPECT_EQ(std::isnan(alone.o[static_cast<std::size_t>(first) * kHeads * kDim]), named) << said << " " << s;
      named ? ++bad : ++good;
    }
  }
  EXPECT_GT(bad, 50);
  EXPECT_GT(good, 20);
}

TEST(RaggedTest, WhatDoesNotFitIsRefused) {
  const Context cpu("cpu");
  const auto refused = [&](const Attention& problem, const std::string& sentence, auto change) {
    try {
      const Plan plan(cpu, problem);
      Call call;
      fc_operands operands = call.operands();
      change(operands, call);
      plan.launch(operands);
      FAIL() << sentence;
    } catch (const flashcore::Error& error) {
      EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
    }
  };
  const auto nothing = [](fc_operands&, Call&) {};
  refused(packed(), "cu_seqlens_q is null; give the address of its 4 int32 on cpu to fc_plan_launch_operands",
          [](fc_operands& o, Call&) { o.cu_seqlens_q = nullptr; });
  refused(packed(), "cu_seqlens_kv is null", [](fc_operands& o, Call&) { o.cu_seqlens_kv = nullptr; });
  refused(packed(), "which is no multiple of 4 bytes", [](fc_operands& o, Call&) {
    o.cu_seqlens_q = reinterpret_cast<const std::int32_t*>(reinterpret_cast<const char*>(o.cu_seqlens_q) + 1);
  });
  refused(packed(), "overlaps cu_seqlens_kv",
          [](fc_operands& o, Call& c) { o.cu_seqlens_kv = reinterpret_cast<const std::int32_t*>(c.o.data()); });
  refused(packed(), "fc_operands.struct_size is 8", [](fc_operands& o, Call&) { o.struct_size = 8; });
  // The struct of ABI version 5 ends before the boundaries.
  refused(packed(), "cu_seqlens_q is null",
          [](fc_operands& o, Call&) { o.struct_size = offsetof(fc_operands, cu_seqlens_q); });
  Attention bad = packed();
  bad.lengths = static_cast<fc_lengths>(4);
  refused(bad, "lengths is 4; use FC_LENGTHS_FIXED (0), or FC_LENGTHS_FULL (1)", nothing);
  bad = packed(), bad.total_q = -1;
  refused(bad, "total_q is -1; use a number of rows", nothing);
  bad = packed(), bad.lengths = FC_LENGTHS_FIXED;
  refused(bad, "total_q is 20 and the batch is not ragged", nothing);
  bad.total_q = bad.total_kv = 0, bad.batch = 1;
  refused(bad, "cu_seqlens_q is given, and b1_h3_sq13_sk12_d8_fp32_causal is no ragged batch", nothing);
  const Plan plan(cpu, packed());
  std::vector<float> any(1000);
  const std::span<float> all(any);
  EXPECT_THROW(plan.run<float>(all, all, all, all), flashcore::Error);
}

// A caller built with the header of ABI version 5.
TEST(RaggedTest, AnOlderStructIsNotRagged) {
  fc_attention a = FC_ATTENTION_INIT;
  a.struct_size = offsetof(fc_attention, lengths);
  ASSERT_EQ(fc_problem_parse("b1_h2_s8_d8_fp32_causal_softcap30", &a), FC_OK) << fc_last_error();
  EXPECT_EQ(fc_problem_parse("b1_h2_s8_d8_fp32_raggedfull", &a), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("build with a header of ABI version 6"), std::string::npos);
  a.lengths = 99, a.total_q = -5;  // beyond its end
  const Context cpu("cpu");
  fc_plan plan = nullptr;
  EXPECT_EQ(fc_plan_create(cpu.get(), &a, &plan), FC_OK) << fc_last_error();
  fc_plan_destroy(plan);
  fc_attention parsed = FC_ATTENTION_INIT;
  ASSERT_EQ(fc_problem_parse("b2_h2_sq8_sk4_d8_fp32_raggedhalving", &parsed), FC_OK) << fc_last_error();
  EXPECT_EQ(parsed.lengths, FC_LENGTHS_HALVING);
  EXPECT_EQ(parsed.total_q, 12);
  EXPECT_EQ(parsed.total_kv, 6);
}

}  // namespace
