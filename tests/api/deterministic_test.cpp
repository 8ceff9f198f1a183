// deterministic_batch through the C and C++ API: a sequence alone and beside others has the same bits; what is refused.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "flashcore/flashcore.hpp"

namespace {

using flashcore::Attention;
using flashcore::Context;
using flashcore::Plan;

constexpr std::int64_t kHeads = 1, kDim = 16, kRows = 3, kKeys = 6000, kOthers = 8;

std::vector<float> random_floats(std::int64_t count) {
  std::mt19937 random(3);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(random() % 2001) / 1000 - 1;
  return values;
}

// The first sequence of `batch`, whose others have the same keys and rows again: [total, heads, dim].
Attention packed(std::int64_t batch, bool deterministic = true) {
  Attention p;
  p.dtype = FC_FP32;
  p.batch = batch, p.heads_q = p.heads_kv = kHeads, p.head_dim = kDim;
  p.seqlen_q = kRows, p.seqlen_kv = kKeys;
  p.q_strides = p.k_strides = p.v_strides = p.o_strides = fc_strides{0, kDim, kHeads * kDim};
  p.lengths = FC_LENGTHS_FULL;
  p.total_q = batch * kRows, p.total_kv = batch * kKeys;
  p.deterministic_batch = deterministic;
  return p;
}

std::vector<float> first_of(const Context& context, std::int64_t batch) {
  const Plan plan(context, packed(batch));
  std::vector<std::int32_t> cu_q, cu_kv;
  for (std::int64_t s = 0; s <= batch; ++s)
    cu_q.push_back(static_cast<std::int32_t>(s * kRows)), cu_kv.push_back(static_cast<std::int32_t>(s * kKeys));
  const std::vector<float> values = random_floats(kOthers * kKeys * kHeads * kDim);
  std::vector<float> o(static_cast<std::size_t>(batch * kRows * kHeads * kDim));
  fc_operands all = FC_OPERANDS_INIT;
  all.q = values.data(), all.k = values.data() + 4, all.v = values.data() + 8, all.o = o.data();
  all.cu_seqlens_q = cu_q.data(), all.cu_seqlens_kv = cu_kv.data();
  plan.launch(all);
  o.resize(kRows * kHeads * kDim);
  return o;
}

TEST(DeterministicBatch, ASequenceHasTheSameBitsBesideOthers) {
  const Context cpu("cpu");
  const std::vector<float> alone = first_of(cpu, 1), beside = first_of(cpu, kOthers - 1);
  EXPECT_EQ(std::memcmp(alone.data(), beside.data(), alone.size() * sizeof(float)), 0);
  // With several cores the keys of one sequence are dealt out to them, unless there are as many sequences.
  const auto candidate = [&](std::int64_t batch, bool deterministic) {
    const std::string said = cpu.explain(packed(batch, deterministic)), key = "\"candidate\":\"";
    const std::size_t start = said.find(key) + key.size();
    return said.substr(start, said.find('"', start) - start);
  };
  EXPECT_EQ(candidate(1, true), candidate(64, true));
  if (fc_cpu_threads() > 1) {
    EXPECT_NE(candidate(1, false), candidate(64, false)) << "else this test shows nothing";
  }
}

TEST(DeterministicBatch, IsNamedAsTheReason) {
  const Context cpu("cpu");
  EXPECT_NE(cpu.explain(packed(3)).find("equal bits in every batch"), std::string::npos);
  EXPECT_NE(Plan(cpu, packed(3)).describe().find("equal bits in every batch"), std::string::npos);
  Attention any = packed(3);
  any.deterministic_batch = false;
  EXPECT_EQ(cpu.explain(any).find("equal bits in every batch"), std::string::npos);
}

void refused(const fc_attention& problem, const std::string& words) {
  const Context cpu("cpu");
  fc_plan plan = nullptr;
  EXPECT_EQ(fc_plan_create(cpu.get(), &problem, &plan), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find(words), std::string::npos) << fc_last_error();
}

TEST(DeterministicBatch, WhatDoesNotGoWithItIsRefused) {
  fc_attention problem = packed(2).c();
  problem.candidate = "cpu_fwd";
  refused(problem, "deterministic_batch is 1 and candidate is 'cpu_fwd'; leave one out");
  problem = packed(2).c(), problem.score = "s * 2";
  refused(problem, "score or mask function; leave one out");
  problem = packed(2).c(), problem.deterministic_batch = 2;
  refused(problem, "deterministic_batch is 2; use 0 or 1");
}

}  // namespace
