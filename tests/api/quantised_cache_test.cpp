// Quantised caches through the C and C++ API on the CPU: int8 and int4 pages with factors beside the same numbers in
// fp32; what is refused.
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

constexpr std::int64_t kHeads = 4, kHeadsKv = 2, kDim = 16, kPage = 4, kPages = 5, kKeys = 11;

struct QuantisedCall {
  std::vector<float> q, o, lse, descale_k, descale_v;
  std::vector<std::int8_t> k, v;
  std::vector<std::int32_t> cu_q = {0, 2}, used = {kKeys}, table = {3, 0, 4};
  QuantisedCall() {
    std::mt19937 random(3);
    for (std::int64_t i = 0; i < 2 * kHeads * kDim; ++i) q.push_back(static_cast<float>(random() % 2001) / 1000 - 1);
    o.assign(q.size(), 7), lse.assign(2 * kHeads, 7);
    for (std::int64_t i = 0; i < kPages * kPage * kHeadsKv * kDim; ++i) {
      k.push_back(static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127));
      v.push_back(static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127));
    }
    descale_k = {0.01f, 0.02f}, descale_v = {0.5f, 0.125f};
  }
  fc_operands operands() {
    fc_operands all = FC_OPERANDS_INIT;
    all.q = q.data(), all.k = k.data(), all.v = v.data(), all.o = o.data(), all.lse = lse.data();
    all.descale_k = descale_k.data(), all.descale_v = descale_v.data();
    all.cu_seqlens_q = cu_q.data(), all.seqused_kv = used.data(), all.block_table = table.data();
    return all;
  }
};

Attention paged() {
  Attention p;
  p.dtype = FC_FP32, p.kv_dtype = FC_INT8, p.scaling = FC_SCALING_HEAD;
  p.heads_q = kHeads, p.heads_kv = kHeadsKv, p.head_dim = kDim;
  p.seqlen_q = 2, p.seqlen_kv = 3 * kPage;
  p.causal = FC_CAUSAL_BOTTOM_RIGHT;
  p.lengths = FC_LENGTHS_FULL, p.total_q = 2;
  p.page_size = kPage, p.pages = kPages, p.max_pages = 3;
  return p;
}

TEST(QuantisedCacheTest, IsWhatItsNumbersAreWithTheirFactors) {
  const Context cpu("cpu");
  QuantisedCall call;
  const fc_operands operands = call.operands();
  Plan(cpu, paged()).launch(operands);
  // [heads_kv, keys, dim], out of the pages [pages, heads_kv, page_size, dim].
  std::vector<float> k, v, o(call.o.size()), lse(call.lse.size());
  for (std::int64_t h = 0; h < kHeadsKv; ++h)
    for (std::int64_t j = 0; j < kKeys; ++j)
      for (std::int64_t c = 0; c < kDim; ++c) {
        const std::int64_t page = call.table[static_cast<std::size_t>(j / kPage)];
        const auto at = static_cast<std::size_t>(((page * kHeadsKv + h) * kPage + j % kPage) * kDim + c);
        k.push_back(call.descale_k[static_cast<std::size_t>(h)] * static_cast<float>(call.k[at]));
        v.push_back(call.descale_v[static_cast<std::size_t>(h)] * static_cast<float>(call.v[at]));
      }
  Attention plain;
  plain.dtype = FC_FP32, plain.heads_q = kHeads, plain.heads_kv = kHeadsKv, plain.head_dim = kDim;
  plain.seqlen_q = 2, plain.seqlen_kv = kKeys, plain.causal = FC_CAUSAL_BOTTOM_RIGHT;
  Plan(cpu, plain).run<float>(call.q, k, v, o, lse);
  for (std::size_t i = 0; i < o.size(); ++i) EXPECT_NEAR(call.o[i], o[i], 2e-5f * 64) << i;
  for (std::size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(call.lse[i], lse[i], 1e-5f) << i;
}

// Two codes a byte, the even column in the lower half; beside int8 pages of the same numbers.
TEST(QuantisedCacheTest, Int4IsTwoCodesAByte) {
  const Context cpu("cpu");
  QuantisedCall call, bytes;
  bytes.k.clear(), bytes.v.clear();
  const auto number = [](std::int8_t pair, int half) {
    return static_cast<std::int8_t>(static_cast<std::int8_t>(pair << (half == 0 ? 4 : 0)) >> 4);
  };
  for (std::size_t i = 0; i < call.k.size() / 2; ++i)
    for (int half = 0; half < 2; ++half)
      bytes.k.push_back(number(call.k[i], half)), bytes.v.push_back(number(call.v[i], half));
  Attention p = paged();
  Plan(cpu, p).launch(bytes.operands());
  p.kv_dtype = FC_INT4;
  Plan(cpu, p).launch(call.operands());
  EXPECT_EQ(call.o, bytes.o);
  EXPECT_EQ(call.lse, bytes.lse);
  fc_attention read = FC_ATTENTION_INIT;
  ASSERT_EQ(fc_problem_parse("b1_h2_s8_d16_fp32_kvint4_pertoken", &read), FC_OK) << fc_last_error();
  EXPECT_EQ(read.kv_dtype, FC_INT4);
}

// Pages with a factor for each key, of which no sequence's are NaN, beside the same numbers in fp32.
TEST(QuantisedCacheTest, EachKeyMayHaveItsOwnFactor) {
  const Context cpu("cpu");
  QuantisedCall call;
  call.descale_k.assign(kPages * kHeadsKv * kPage, NAN), call.descale_v = call.descale_k;
  const auto at = [&](std::int64_t h, std::int64_t j) {
    return static_cast<std::size_t>((call.table[static_cast<std::size_t>(j / kPage)] * kHeadsKv + h) * kPage +
                                    j % kPage);
  };
  std::vector<float> k, v, o(call.o.size()), lse(call.lse.size());
  for (std::int64_t h = 0; h < kHeadsKv; ++h)
    for (std::int64_t j = 0; j < kKeys; ++j) {
      call.descale_k[at(h, j)] = 0.001f * static_cast<float>(1 + j + 20 * h);
      call.descale_v[at(h, j)] = 0.25f / static_cast<float>(1 + j);
      for (std::int64_t c = 0; c < kDim; ++c) {
        const std::size_t code = at(h, j) * kDim + static_cast<std::size_t>(c);
        k.push_back(call.descale_k[at(h, j)] * static_cast<float>(call.k[code]));
        v.push_back(call.descale_v[at(h, j)] * static_cast<float>(call.v[code]));
      }
    }
  Attention by_token = paged();
  by_token.scaling = FC_SCALING_TOKEN;
  const Plan plan(cpu, by_token);
  const fc_operands operands = call.operands();
  plan.launch(operands);
  Attention plain;
  plain.dtype = FC_FP32, plain.heads_q = kHeads, plain.heads_kv = kHeadsKv, plain.head_dim = kDim;
  plain.seqlen_q = 2, plain.seqlen_kv = kKeys, plain.causal = FC_CAUSAL_BOTTOM_RIGHT;
  Plan(cpu, plain).run<float>(call.q, k, v, o, lse);
  for (std::size_t i = 0; i < o.size(); ++i) EXPECT_NEAR(call.o[i], o[i], 2e-5f * 32) << i;
  for (std::size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(call.lse[i], lse[i], 1e-5f) << i;
  fc_operands none = operands;
  none.descale_v = nullptr;
  try {
    plan.launch(none);
    FAIL();
  } catch (const flashcore::Error& e) {
    EXPECT_NE(std::string(e.what()).find("descale_v is null; give the address of its 40 factors"), std::string::npos)
        << e.what();
  }
  fc_attention read = FC_ATTENTION_INIT;
  ASSERT_EQ(fc_problem_parse("b1_h2_s8_d16_fp32_kvint8_pertoken", &read), FC_OK) << fc_last_error();
  EXPECT_EQ(read.scaling, FC_SCALING_TOKEN);
}

void refused(const Attention& problem, const std::string& part, void (*change)(fc_operands&, QuantisedCall&)) {
  QuantisedCall call;
  fc_operands operands = call.operands();
  change(operands, call);
  try {
    Plan(Context("cpu"), problem).launch(operands);
    FAIL() << "accepted; wanted: " << part;
  } catch (const flashcore::Error& e) {
    EXPECT_EQ(e.status(), FC_ERROR_BAD_INPUT);
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what() << "\nwanted: " << part;
  }
}

TEST(QuantisedCacheTest, WhatDoesNotFitIsRefused) {
  const auto nothing = [](fc_operands&, QuantisedCall&) {};
  refused(paged(), "descale_k is null", [](fc_operands& o, QuantisedCall&) { o.descale_k = nullptr; });
  refused(paged(), "descale_q is given, and",
          [](fc_operands& o, QuantisedCall& c) { o.descale_q = c.descale_k.data(); });
  refused(paged(), "factors are positive and finite", [](fc_operands&, QuantisedCall& c) { c.descale_v[1] = -1; });
  refused(paged(), "factors are positive and finite", [](fc_operands&, QuantisedCall& c) { c.descale_k[0] = NAN; });
  Attention bad = paged();
  bad.scaling = FC_SCALING_NONE;
  refused(bad, "descale_k is given, and", nothing);
  bad = paged(), bad.scaling = static_cast<fc_scaling>(5);
  refused(bad, "scaling is 5; use FC_SCALING_USUAL (0)", nothing);
  bad = paged(), bad.scaling = FC_SCALING_TOKEN, bad.page_size = 0;
  refused(bad, "scaling is token and the keys of the batch are packed", nothing);
  bad = paged(), bad.kv_dtype = FC_BF16;
  refused(bad, "kv_dtype is 2; use FC_E4M3 (3), FC_E5M2 (4), FC_INT8 (5) or FC_INT4 (6)", nothing);
  bad = paged(), bad.kv_dtype = FC_INT4, bad.head_dim = 15, bad.head_dim_v = 16;
  refused(bad, "two columns share a byte", nothing);
  bad = paged(), bad.kv_dtype = FC_INT4, bad.k_strides = fc_strides{16 * 8 + 1, 16 * 4, 16};
  refused(bad, "k has stride 129 along batch; give an even one: two elements of int4 share a byte", nothing);
  bad = paged(), bad.dtype = FC_INT8;
  refused(bad, "dtype is 5; use FC_FP32 (0)", nothing);
  bad = paged(), bad.dtype = FC_E4M3;
  refused(bad, "q of 8 bits is multiplied with k and v of its own type", nothing);
}

// A caller that was built before there were such caches, by the struct that it has.
TEST(QuantisedCacheTest, AnOlderStructHasNone) {
  fc_attention a = FC_ATTENTION_INIT;
  a.struct_size = offsetof(fc_attention, score);
  EXPECT_EQ(fc_problem_parse("b1_h2_s8_d16_fp32_kvint8", &a), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("build with a header of ABI version 9"), std::string::npos);
  a.given = FC_GIVEN_KV_DTYPE;
  const Context cpu("cpu");
  fc_plan plan = nullptr;
  EXPECT_EQ(fc_plan_create(cpu.get(), &a, &plan), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("has no kv_dtype"), std::string::npos);
  a = FC_ATTENTION_INIT;
  ASSERT_EQ(fc_problem_parse("b1_h2_s8_d16_fp32_kvint8_perhead", &a), FC_OK) << fc_last_error();
  EXPECT_EQ(a.kv_dtype, FC_INT8);
  EXPECT_EQ(a.scaling, FC_SCALING_HEAD);
}

TEST(QuantisedCacheTest, SpansOfOneTypeAreNoQuantisedCache) {
  Attention p;
  p.dtype = FC_FP32, p.kv_dtype = FC_E4M3, p.head_dim = 16;
  const Plan plan(Context("cpu"), p);
  std::vector<float> x(16), o(16);
  EXPECT_THROW(plan.run<float>(x, x, x, o), flashcore::Error);
}

}  // namespace
