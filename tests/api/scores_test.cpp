// Softcap, ALiBi and sinks through the C API and its C++ header: results beside a plain computation, what is refused,
// structs of older callers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "flashcore/flashcore.hpp"

namespace {

using flashcore::Attention;
using flashcore::Context;
using flashcore::Plan;

constexpr std::int64_t kBatch = 2, kHeads = 3, kRows = 5, kKeys = 4, kDim = 8;

Attention problem_of(std::optional<double> softcap, fc_alibi alibi, fc_sink sink) {
  Attention p;
  p.dtype = FC_FP32;
  p.batch = kBatch;
  p.heads_q = p.heads_kv = kHeads;
  p.seqlen_q = kRows;
  p.seqlen_kv = kKeys;
  p.head_dim = kDim;
  p.causal = FC_CAUSAL_BOTTOM_RIGHT;  // row 0 sees no key
  p.softcap = softcap;
  p.alibi = alibi;
  p.sink = sink;
  return p;
}

struct Call {
  std::vector<float> q, k, v, o, lse, slopes, sinks;
  fc_operands operands = FC_OPERANDS_INIT;

  explicit Call(const Attention& p) : lse(kBatch * kHeads * kRows, -1.0f) {
    const auto fill = [](std::vector<float>& x, std::int64_t rows, int step) {
      x.resize(static_cast<std::size_t>(kBatch * kHeads * rows * kDim));
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.5f * static_cast<float>(static_cast<int>(i) * step % 7 - 3);
    };
    fill(q, kRows, 3), fill(k, kKeys, 5), fill(v, kKeys, 4);
    o.assign(q.size(), -1.0f);
    for (int i = 0; i < kBatch * kHeads; ++i) slopes.push_back(0.125f * static_cast<float>(i + 1));
    for (int h = 0; h < kHeads; ++h) sinks.push_back(static_cast<float>(h) - 0.5f);
    operands.q = q.data(), operands.k = k.data(), operands.v = v.data();
    operands.o = o.data(), operands.lse = lse.data();
    if (p.alibi != FC_ALIBI_NONE) operands.alibi = slopes.data();
    if (p.sink != FC_SINK_NONE) operands.sink = sinks.data();
  }

  float at(const std::vector<float>& x, std::int64_t head, std::int64_t rows, std::int64_t row, std::int64_t d) const {
    return x[static_cast<std::size_t>((head * rows + row) * kDim + d)];
  }
};

// The largest difference from the definition, of o and lse.
double error_of(const Attention& p, const Call& call) {
  double worst = 0;
  for (std::int64_t bh = 0; bh < kBatch * kHeads; ++bh) {
    const std::int64_t h = bh % kHeads;
    for (std::int64_t i = 0; i < kRows; ++i) {
      double sum = 0, o[kDim] = {};
      for (std::int64_t j = 0; j < kKeys && j <= i + kKeys - kRows; ++j) {
        double s = 0;
        for (std::int64_t d = 0; d < kDim; ++d)
          s += static_cast<double>(call.at(call.q, bh, kRows, i, d)) * call.at(call.k, bh, kKeys, j, d);
        s /= std::sqrt(static_cast<double>(kDim));
        if (p.softcap) s = *p.softcap * std::tanh(s / *p.softcap);
        if (p.alibi != FC_ALIBI_NONE)
          s -= static_cast<double>(call.slopes[static_cast<std::size_t>(p.alibi == FC_ALIBI_BATCH ? bh : h)]) *
               static_cast<double>(std::abs(i + kKeys - kRows - j));
        sum += std::exp(s);
        for (std::int64_t d = 0; d < kDim; ++d) o[d] += std::exp(s) * call.at(call.v, bh, kKeys, j, d);
      }
      if (p.sink != FC_SINK_NONE) sum += std::exp(static_cast<double>(call.sinks[static_cast<std::size_t>(h)]));
      const double lse = call.lse[static_cast<std::size_t>(bh * kRows + i)];
      if (sum == 0) worst = std::max(worst, std::isinf(lse) ? 0.0 : 1.0);
      else worst = std::max(worst, std::abs(lse - std::log(sum)));
      for (std::int64_t d = 0; d < kDim; ++d)
        worst = std::max(worst, std::abs(call.at(call.o, bh, kRows, i, d) - (sum == 0 ? 0 : o[d] / sum)));
    }
  }
  return worst;
}

TEST(ScoresTest, TheCpuComputesWhatTheHeaderSays) {
  const Context cpu("cpu");
  for (const std::optional<double> softcap : {std::optional<double>(), std::optional<double>(0.75)})
    for (const fc_alibi alibi : {FC_ALIBI_NONE, FC_ALIBI_HEAD, FC_ALIBI_BATCH})
      for (const fc_sink sink : {FC_SINK_NONE, FC_SINK_HEAD}) {
        const Attention p = problem_of(softcap, alibi, sink);
        Call call(p);
        Plan(cpu, p).launch(call.operands);
        EXPECT_LT(error_of(p, call), 1e-5) << softcap.value_or(0) << " " << alibi << " " << sink;
      }
}

TEST(ScoresTest, OneSlopeOrSinkMoreOrLessIsSeen) {
  const Context cpu("cpu");
  const Attention p = problem_of(2.0, FC_ALIBI_BATCH, FC_SINK_HEAD);
  for (const auto& spoil : {+[](Call& c) { c.slopes[4] += 0.01f; }, +[](Call& c) { c.sinks[1] += 0.01f; }}) {
    Call call(p);
    Plan(cpu, p).launch(call.operands);
    spoil(call);
    EXPECT_GT(error_of(p, call), 1e-4);
  }
}

void refused(const std::string& sentence, const Attention& p, const auto& change) {
  const Context cpu("cpu");
  const Plan plan(cpu, p);
  Call call(p);
  change(call);
  try {
    plan.launch(call.operands);
    ADD_FAILURE() << "taken, where it should say: " << sentence;
  } catch (const flashcore::Error& error) {
    EXPECT_EQ(error.status(), FC_ERROR_BAD_INPUT);
    EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
  }
}

TEST(ScoresTest, OperandsThatDoNotFitAreRefused) {
  const Attention all = problem_of(2.0, FC_ALIBI_HEAD, FC_SINK_HEAD),
                  plain = problem_of({}, FC_ALIBI_NONE, FC_SINK_NONE);
  refused("sink is null; give the address of its 3 logits", all, [](Call& c) { c.operands.sink = nullptr; });
  refused("alibi is null; give the address of its 3 slopes", all, [](Call& c) { c.operands.alibi = nullptr; });
  refused("sink is given, and", plain, [](Call& c) { c.operands.sink = c.sinks.data(); });
  refused("alibi is given, and", plain, [](Call& c) { c.operands.alibi = c.slopes.data(); });
  refused("sink[2] is nan; sinks are finite", all, [](Call& c) { c.sinks[2] = std::nanf(""); });
  refused("sink[0] is inf; sinks are finite", all, [](Call& c) { c.sinks[0] = INFINITY; });
  refused("alibi[1] is -inf; slopes are finite", all, [](Call& c) { c.slopes[1] = -INFINITY; });
  refused("alibi[1] is 2e+38; slopes of this problem are from -", all, [](Call& c) { c.slopes[1] = 2e38f; });
  refused("alibi[0] is -2e+38; slopes of this problem are from -", all, [](Call& c) { c.slopes[0] = -2e38f; });
  refused("lse at", all, [](Call& c) { c.operands.sink = c.lse.data() + 1; });
  refused("fc_operands.struct_size is 8", all, [](Call& c) { c.operands.struct_size = 8; });
  // -infinity is no sink.
  const Context cpu("cpu");
  Call call(all);
  call.sinks[0] = -std::numeric_limits<float>::infinity();
  Plan(cpu, all).launch(call.operands);
  EXPECT_LT(error_of(all, call), 1e-5);
  // A launch without named operands has none of them.
  EXPECT_EQ(fc_plan_launch(Plan(cpu, all).get(), call.q.data(), call.k.data(), call.v.data(), call.o.data(), nullptr,
                           nullptr),
            FC_ERROR_BAD_INPUT);
}

TEST(ScoresTest, ProblemsOutOfRangeAreRefused) {
  const Context cpu("cpu");
  const auto refused_plan = [&](const Attention& p, const char* sentence) {
    try {
      const Plan plan(cpu, p);
      ADD_FAILURE() << "taken, where it should say: " << sentence;
    } catch (const flashcore::Error& error) {
      EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
    }
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double cap : {0.0, -1.0, kInfinity, std::nan(""), 1e7})
    refused_plan(problem_of(cap, FC_ALIBI_NONE, FC_SINK_NONE),
                 "which is not allowed; use a number from 1e-06 to 1000000");
  refused_plan(problem_of({}, static_cast<fc_alibi>(3), FC_SINK_NONE), "alibi is 3; use FC_ALIBI_NONE (0)");
  refused_plan(problem_of({}, FC_ALIBI_NONE, static_cast<fc_sink>(2)), "sink is 2; use FC_SINK_NONE (0)");
}

// A caller built with the header of ABI version 4.
TEST(ScoresTest, AnOlderStructHasNoneOfIt) {
  fc_attention a = FC_ATTENTION_INIT;
  a.struct_size = offsetof(fc_attention, softcap);
  ASSERT_EQ(fc_problem_parse("b1_h2_s8_d8_fp32_causal", &a), FC_OK) << fc_last_error();
  EXPECT_EQ(fc_problem_parse("b1_h2_s8_d8_fp32_causal_softcap30", &a), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("build with a header of ABI version 5"), std::string::npos);
  EXPECT_EQ(fc_problem_parse("b1_h2_s8_d8_fp32_sink", &a), FC_ERROR_BAD_INPUT);
  a.softcap = 7, a.alibi = 99, a.sink = 99;  // beyond its end
  const Context cpu("cpu");
  fc_plan plan = nullptr;
  ASSERT_EQ(fc_plan_create(cpu.get(), &a, &plan), FC_OK) << fc_last_error();
  fc_plan_destroy(plan);
  a.given |= FC_GIVEN_SOFTCAP;
  EXPECT_EQ(fc_plan_create(cpu.get(), &a, &plan), FC_ERROR_BAD_INPUT);
}

}  // namespace
