// Paged caches through the C and C++ API on the CPU: each sequence beside a plan of its gathered keys; what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "flashcore/flashcore.hpp"

namespace {

using flashcore::Attention;
using flashcore::Context;
using flashcore::Plan;

constexpr std::int64_t kHeads = 4, kHeadsKv = 2, kDim = 8, kPage = 4, kPages = 9, kTableColumns = 3, kTableStride = 5;
constexpr std::int64_t kRows = 7;  // of all sequences

struct PagedCall {
  // [pages, K or V, page_size, heads, dim]: one tensor of both.
  std::vector<float> q, cache, o, lse;
  std::vector<std::int32_t> cu_q = {0, 1, 1, 7}, used = {9, 4, 12};
  std::vector<std::int32_t> table = std::vector<std::int32_t>(3 * kTableStride, -7);
  PagedCall() {
    std::mt19937 random(11);
    const auto draw = [&](std::int64_t count) {
      std::vector<float> values(static_cast<std::size_t>(count));
      for (float& value : values) value = static_cast<float>(random() % 2001) / 1000 - 1;
      return values;
    };
    q = draw(kRows * kHeads * kDim);
    cache = draw(kPages * 2 * kPage * kHeadsKv * kDim);
    o.assign(q.size(), 7), lse.assign(static_cast<std::size_t>(kRows * kHeads), 7);
    const std::int32_t pages[] = {8, 2, 5, 0, -7, -7, 8, 2, 1};
    for (std::size_t i = 0; i < 9; ++i) table[i / 3 * static_cast<std::size_t>(kTableStride) + i % 3] = pages[i];
  }
  const float* key(std::int64_t s, std::int64_t j, std::int64_t head, bool is_value) const {
    const std::int64_t page = table[static_cast<std::size_t>(s * kTableStride + j / kPage)];
    return &cache[static_cast<std::size_t>((((page * 2 + is_value) * kPage + j % kPage) * kHeadsKv + head) * kDim)];
  }
  fc_operands operands() {
    fc_operands all = FC_OPERANDS_INIT;
    all.q = q.data(), all.k = cache.data(), all.v = cache.data() + kPage * kHeadsKv * kDim;
    all.o = o.data(), all.lse = lse.data(), all.cu_seqlens_q = cu_q.data(), all.seqused_kv = used.data();
    all.block_table = table.data();
    return all;
  }
};

Attention paged() {
  Attention p;
  p.dtype = FC_FP32;
  p.batch = 3, p.heads_q = kHeads, p.heads_kv = kHeadsKv, p.head_dim = kDim;
  p.seqlen_q = 6, p.seqlen_kv = 12;
  p.causal = FC_CAUSAL_BOTTOM_RIGHT;
  p.q_strides = p.o_strides = fc_strides{0, kDim, kHeads * kDim};
  p.k_strides = p.v_strides = fc_strides{2 * kPage * kHeadsKv * kDim, kDim, kHeadsKv * kDim};
  p.lengths = FC_LENGTHS_FULL;
  p.total_q = kRows;
  p.page_size = kPage, p.pages = kPages, p.max_pages = kTableColumns, p.table_stride = kTableStride;
  return p;
}

void expect_sequences(const PagedCall& call) {
  const Context cpu("cpu");
  for (std::int64_t s = 0; s < 3; ++s) {
    const auto at = static_cast<std::size_t>(s);
    Attention one;
    one.dtype = FC_FP32, one.heads_q = kHeads, one.heads_kv = kHeadsKv, one.head_dim = kDim;
    one.causal = FC_CAUSAL_BOTTOM_RIGHT;
    one.q_strides = one.o_strides = fc_strides{0, kDim, kHeads * kDim};
    one.seqlen_q = call.cu_q[at + 1] - call.cu_q[at], one.seqlen_kv = call.used[at];
    std::vector<float> k, v, o(call.o.size()), lse(call.lse.size());
    for (std::int64_t h = 0; h < kHeadsKv; ++h)
      for (std::int64_t j = 0; j < one.seqlen_kv; ++j)
        for (std::int64_t d = 0; d < kDim; ++d)
          k.push_back(call.key(s, j, h, false)[d]), v.push_back(call.key(s, j, h, true)[d]);
    const auto first = static_cast<std::size_t>(call.cu_q[at]);
    Plan(cpu, one).launch(call.q.data() + first * kHeads * kDim, k.data(), v.data(), o.data(), lse.data());
    for (std::size_t row = 0; row < static_cast<std::size_t>(one.seqlen_q); ++row)
      for (std::size_t h = 0; h < kHeads; ++h) {
        EXPECT_EQ(call.lse[h * kRows + first + row], lse[h * static_cast<std::size_t>(one.seqlen_q) + row]);
        for (std::size_t d = 0; d < kDim; ++d)
          EXPECT_EQ(call.o[((first + row) * kHeads + h) * kDim + d], o[(row * kHeads + h) * kDim + d]);
      }
  }
}

TEST(PagedTest, EachSequenceIsAsItsGatheredKeys) {
  const Context cpu("cpu");
  const Plan plan(cpu, paged());
  EXPECT_NE(plan.describe().find("b3_h4_hk2_sq6_sk12_d8_fp32_causal_raggedfull_page4"), std::string::npos)
      << plan.describe();
  PagedCall call;
  plan.launch(call.operands());
  expect_sequences(call);
  // The same plan after a step: longer, and on other pages.
  call.used = {10, 8, 12}, call.cu_q = {0, 2, 5, 7}, call.table[kTableStride + 1] = 3, call.table[2] = 6;
  plan.launch(call.operands());
  expect_sequences(call);
}

TEST(PagedTest, TablesThatNoCacheHasMakeNaN) {
  const Context cpu("cpu");
  const Plan plan(cpu, paged());
  PagedCall call;
  call.table[2 * kTableStride + 2] = kPages;  // keys 8 to 11 of the last sequence, which its first two rows do not see
  plan.launch(call.operands());
  EXPECT_TRUE(std::isfinite(call.o[0]));
  for (std::size_t row = 1; row < 7; ++row) EXPECT_EQ(std::isnan(call.o[row * kHeads * kDim]), row >= 3) << row;
  PagedCall longer;
  longer.used[2] = 13;
  plan.launch(longer.operands());
  for (std::size_t row = 0; row < 7; ++row) EXPECT_EQ(std::isnan(longer.lse[row]), row >= 1) << row;
  EXPECT_EQ(
      plan.status(call.operands()),
      R"({"bad":[{"sequence":2,"why":"block_table[2][2] is 9, and the cache has 9 pages; rows that see a key of it )"
      R"(are NaN"}],"sequences":3})");
  EXPECT_EQ(
      plan.status(longer.operands()),
      R"({"bad":[{"sequence":2,"why":"seqused_kv[2] is 13; 0 to the plan's bound seqlen_kv = 12, and to the room )"
      R"(in a row of the table, 12, are allowed"}],"sequences":3})");
  EXPECT_EQ(plan.status(PagedCall().operands()), R"({"bad":[],"sequences":3})");
}

TEST(PagedTest, WhatDoesNotFitIsRefused) {
  const Context cpu("cpu");
  const auto refused = [&](const Attention& problem, const std::string& sentence, auto change) {
    try {
      const Plan plan(cpu, problem);
      PagedCall call;
      fc_operands operands = call.operands();
      change(operands, call);
      plan.launch(operands);
      FAIL() << sentence;
    } catch (const flashcore::Error& error) {
      EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
    }
  };
  const auto nothing = [](fc_operands&, PagedCall&) {};
  refused(paged(), "block_table is null; give the address of its 13 int32 on cpu",
          [](fc_operands& o, PagedCall&) { o.block_table = nullptr; });
  refused(paged(), "seqused_kv is null", [](fc_operands& o, PagedCall&) { o.seqused_kv = nullptr; });
  refused(paged(), "cu_seqlens_kv is given, and",
          [](fc_operands& o, PagedCall& c) { o.cu_seqlens_kv = c.cu_q.data(); });
  refused(paged(), "overlaps block_table",
          [](fc_operands& o, PagedCall& c) { o.block_table = reinterpret_cast<const std::int32_t*>(c.o.data()); });
  // The struct of ABI version 7 ends before the table.
  refused(paged(), "block_table is null",
          [](fc_operands& o, PagedCall&) { o.struct_size = offsetof(fc_operands, block_table); });
  Attention bad = paged();
  bad.lengths = FC_LENGTHS_FIXED, bad.total_q = 0;
  refused(bad, "page_size is 4 and lengths is fixed", nothing);
  bad = paged(), bad.total_kv = 36;
  refused(bad, "total_kv is 36 and the cache has pages", nothing);
  bad = paged(), bad.table_stride = 2;
  refused(bad, "table_stride is 2 and max_pages 3", nothing);
  bad = paged(), bad.pages = -1;
  refused(bad, "pages is -1; use a number from 0", nothing);
  bad = paged(), bad.page_size = 65537;
  refused(bad, "page_size is 65537, which is not allowed; use a value from 0 to 65536", nothing);
  bad = paged(), bad.page_size = 0, bad.total_kv = 36;
  refused(bad, "pages is 9 and page_size is 0", nothing);
  bad.pages = bad.max_pages = bad.table_stride = 0;
  refused(bad, "block_table is given, and", [](fc_operands& o, PagedCall& c) { o.cu_seqlens_kv = c.cu_q.data(); });
}

// A caller built with the header of ABI version 7.
TEST(PagedTest, AnOlderStructHasNoPages) {
  fc_attention a = FC_ATTENTION_INIT;
  a.struct_size = offsetof(fc_attention, page_size);
  ASSERT_EQ(fc_problem_parse("b1_h2_s8_d8_fp32_causal_raggedfull", &a), FC_OK) << fc_last_error();
  EXPECT_EQ(fc_problem_parse("b1_h2_s8_d8_fp32_raggedfull_page4", &a), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("build with a header of ABI version 8"), std::string::npos);
  a.page_size = 99, a.pages = -5;  // beyond its end
  const Context cpu("cpu");
  fc_plan plan = nullptr;
  EXPECT_EQ(fc_plan_create(cpu.get(), &a, &plan), FC_OK) << fc_last_error();
  EXPECT_EQ(fc_plan_destroy(plan), FC_OK);
}

}  // namespace
