// The C API as its users meet it: through libflashcore.so, on the CPU and on the emulated GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <flashcore/flashcore.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace {

using flashcore::Attention;
using flashcore::Context;
using flashcore::Memory;
using flashcore::Plan;

std::vector<float> values(std::size_t count, unsigned seed) {
  std::vector<float> made(count);
  for (float& value : made) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1.0f;
  }
  return made;
}

struct Tensors {
  explicit Tensors(const Attention& p)
      : q(values(static_cast<std::size_t>(p.batch * p.heads_q * p.seqlen_q * p.head_dim), 1)),
        k(values(static_cast<std::size_t>(p.batch * p.heads_kv * p.seqlen_kv * p.head_dim), 2)),
        v(values(static_cast<std::size_t>(p.batch * p.heads_kv * p.seqlen_kv * p.columns_v()), 3)),
        o(static_cast<std::size_t>(p.batch * p.heads_q * p.seqlen_q * p.columns_v()), NAN),
        lse(static_cast<std::size_t>(p.batch * p.heads_q * p.seqlen_q), NAN) {}
  std::vector<float> q, k, v, o, lse;
};

std::int64_t visible(const Attention& p, std::int64_t row) {
  if (p.causal == FC_CAUSAL_NONE) return p.seqlen_kv;
  const std::int64_t offset = p.causal == FC_CAUSAL_BOTTOM_RIGHT ? p.seqlen_kv - p.seqlen_q : 0;
  return std::clamp<std::int64_t>(row + offset + 1, 0, p.seqlen_kv);
}

// The textbook formula in double, contiguous tensors; {largest error of o, of lse}.
std::pair<double, double> errors(const Attention& p, const Tensors& t) {
  double worst = 0, worst_lse = 0;
  const double scale = p.scale.value_or(1 / std::sqrt(static_cast<double>(p.head_dim)));
  const auto at = [](const std::vector<float>& x, std::int64_t i) {
    return static_cast<double>(x[static_cast<std::size_t>(i)]);
  };
  for (std::int64_t bh = 0; bh < p.batch * p.heads_q; ++bh) {
    const std::int64_t kv = bh / p.heads_q * p.heads_kv + bh % p.heads_q / (p.heads_q / p.heads_kv);
    for (std::int64_t row = 0; row < p.seqlen_q; ++row) {
      std::vector<double> weight(static_cast<std::size_t>(visible(p, row)));
      for (std::size_t key = 0; key < weight.size(); ++key) {
        double dot = 0;
        for (std::int64_t d = 0; d < p.head_dim; ++d)
          dot += at(t.q, (bh * p.seqlen_q + row) * p.head_dim + d) *
                 at(t.k, (kv * p.seqlen_kv + static_cast<std::int64_t>(key)) * p.head_dim + d);
        weight[key] = std::exp(scale * dot);
      }
      const double sum = std::accumulate(weight.begin(), weight.end(), 0.0);
      for (std::int64_t d = 0; d < p.columns_v(); ++d) {
        double value = 0;
        for (std::size_t key = 0; key < weight.size(); ++key)
          value += weight[key] / sum * at(t.v, (kv * p.seqlen_kv + static_cast<std::int64_t>(key)) * p.columns_v() + d);
        const double difference = std::fabs(value - at(t.o, (bh * p.seqlen_q + row) * p.columns_v() + d));
        worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
      }
      const double lse = at(t.lse, bh * p.seqlen_q + row);
      if (sum == 0) worst_lse = lse == -INFINITY ? worst_lse : INFINITY;
      else worst_lse = std::isnan(lse) ? INFINITY : std::max(worst_lse, std::fabs(std::log(sum) - lse));
    }
  }
  return {worst, worst_lse};
}

Attention small() {
  return {.dtype = FC_FP32, .batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 9, .seqlen_kv = 17, .head_dim = 24};
}

void expect_right(const Plan& plan) {
  Tensors t(plan.problem());
  plan.run<float>(t.q, t.k, t.v, t.o, t.lse);
  const auto [error, lse_error] = errors(plan.problem(), t);
  EXPECT_LT(error, 1e-5);
  EXPECT_LT(lse_error, 1e-5);
}

// The message of a call that must fail, and that it says what words are expected.
template <class Call>
void expect_refused(fc_status status, const std::string& words, Call&& call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected: " << words;
  } catch (const flashcore::Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(CApi, VersionsAgree) {
  EXPECT_EQ(fc_abi_version(), static_cast<unsigned>(FC_ABI_VERSION));
  EXPECT_EQ(flashcore::version(), FLASHCORE_VERSION);
}

TEST(CApi, ComputesWhatTheFormulaSays) {
  const Context cpu("cpu");
  for (const fc_causal causal : {FC_CAUSAL_NONE, FC_CAUSAL_BOTTOM_RIGHT, FC_CAUSAL_TOP_LEFT}) {
    Attention problem = small();
    problem.causal = causal;
    expect_right(Plan(cpu, problem));
    problem.scale = 0.3;
    problem.head_dim_v = 40;
    expect_right(Plan(cpu, problem));
    std::swap(problem.seqlen_q, problem.seqlen_kv);  // bottom-right then has rows that see no key
    expect_right(Plan(cpu, problem));
  }
}

TEST(CApi, ReadsStridedTensors) {
  const Context cpu("cpu");
  Attention problem = small();
  Tensors plain(problem);
  Plan(cpu, problem).run<float>(plain.q, plain.k, plain.v, plain.o, plain.lse);
  // q as [batch, row, head, column] inside rows that are 3 elements longer; k and v of every batch entry are the first.
  const std::int64_t width = problem.head_dim + 3;
  std::vector<float> q(static_cast<std::size_t>(problem.batch * problem.seqlen_q * problem.heads_q * width), NAN),
      o = q;
  const auto place = [&](std::int64_t b, std::int64_t h, std::int64_t row) {
    return static_cast<std::size_t>(((b * problem.seqlen_q + row) * problem.heads_q + h) * width);
  };
  const auto from = [&](std::int64_t b, std::int64_t h, std::int64_t row) {
    return static_cast<std::size_t>(((b * problem.heads_q + h) * problem.seqlen_q + row) * problem.head_dim);
  };
  for (std::int64_t b = 0; b < problem.batch; ++b)
    for (std::int64_t h = 0; h < problem.heads_q; ++h)
      for (std::int64_t row = 0; row < problem.seqlen_q; ++row)
        std::memcpy(&q[place(b, h, row)], &plain.q[from(0, h, row)],
                    sizeof(float) * static_cast<std::size_t>(problem.head_dim));
  problem.q_strides = problem.o_strides = {problem.seqlen_q * problem.heads_q * width, width, problem.heads_q * width};
  problem.k_strides = problem.v_strides = {0, problem.seqlen_kv * problem.head_dim, problem.head_dim};
  Plan(cpu, problem).launch(q.data(), plain.k.data(), plain.v.data(), o.data());
  for (std::int64_t b = 0; b < problem.batch; ++b)
    for (std::int64_t h = 0; h < problem.heads_q; ++h)
      for (std::int64_t row = 0; row < problem.seqlen_q; ++row) {
        EXPECT_EQ(std::memcmp(&o[place(b, h, row)], &plain.o[from(0, h, row)],
                              sizeof(float) * static_cast<std::size_t>(problem.head_dim)),
                  0);
        EXPECT_TRUE(std::isnan(o[place(b, h, row) + static_cast<std::size_t>(problem.head_dim)]))
            << "wrote between rows";
      }
}

// The same numbers everywhere: what a broadcast of one row to every batch entry, head and row means.
TEST(CApi, StridesOfZeroThatAreGivenRepeatOneRow) {
  const Context cpu("cpu");
  Attention problem = small();
  for (const bool all_three : {false, true}) {
    Tensors plain(problem), wide(problem);
    const auto columns = static_cast<std::size_t>(problem.head_dim);
    const auto repeat = [&](std::vector<float>& x) {
      for (std::size_t i = columns; i < x.size(); ++i) x[i] = x[i - columns];
    };
    repeat(wide.k);
    if (all_three) repeat(wide.q), repeat(wide.v);
    Attention given = problem;
    given.k_strides = fc_strides{0, 0, 0};
    if (all_three) given.q_strides = given.v_strides = fc_strides{0, 0, 0};
    std::vector<float> q = plain.q, k(plain.k.begin(), plain.k.begin() + problem.head_dim), v = plain.v;
    if (all_three) q.resize(columns), v.resize(columns);
    Plan(cpu, given).launch(q.data(), k.data(), v.data(), wide.o.data(), wide.lse.data());
    const auto [error, lse_error] = errors(problem, wide);
    EXPECT_LT(error, 1e-5);
    EXPECT_LT(lse_error, 1e-5);
  }
  problem.o_strides = fc_strides{0, 0, 0};
  expect_refused(FC_ERROR_BAD_INPUT, "outputs would overlap", [&] { Plan(cpu, problem); });
}

TEST(CApi, NegativeStridesRunBackwards) {
  const Context cpu("cpu");
  const Attention problem = small();
  Attention given = problem;
  const std::int64_t d = problem.head_dim;
  // k and v turned round in every axis; o from its last row to its first.
  given.k_strides = given.v_strides = fc_strides{-2 * 17 * d, -17 * d, -d};
  given.o_strides = fc_strides{4 * 9 * d, 9 * d, -d};
  Tensors plain(problem);
  Tensors turned = plain;
  for (std::vector<float>* x : {&turned.k, &turned.v}) {
    std::reverse(x->begin(), x->end());
    for (auto row = x->begin(); row != x->end(); row += d) std::reverse(row, row + d);
  }
  const auto last = static_cast<std::size_t>((2 * 2 * 17 - 1) * d), last_row = static_cast<std::size_t>(8 * d);
  Plan(cpu, given).launch(plain.q.data(), &turned.k[last], &turned.v[last], &turned.o[last_row], plain.lse.data());
  for (std::size_t bh = 0; bh < 8; ++bh)
    for (std::size_t row = 0; row < 9; ++row)
      std::memcpy(&plain.o[(bh * 9 + row) * 24], &turned.o[(bh * 9 + 8 - row) * 24], 24 * sizeof(float));
  EXPECT_LT(errors(problem, plain).first, 1e-5);
}

// A caller that was built with the header of ABI version 1 gets what it said then.
TEST(CApi, ServesTheStructOfVersionOne) {
  const Context cpu("cpu");
  constexpr std::size_t kOld = offsetof(fc_attention, given);
  std::vector<unsigned char> memory(kOld + 8, 0xab);
  fc_attention now = small().c();
  now.struct_size = kOld;
  std::memcpy(memory.data(), &now, kOld);
  auto* const old = reinterpret_cast<fc_attention*>(memory.data());
  fc_plan plan = nullptr;
  ASSERT_EQ(fc_plan_create(cpu.get(), old, &plan), FC_OK) << fc_last_error();
  Tensors t(small());
  EXPECT_EQ(fc_plan_launch(plan, t.q.data(), t.k.data(), t.v.data(), t.o.data(), t.lse.data(), nullptr), FC_OK);
  EXPECT_LT(errors(small(), t).first, 1e-5);
  fc_plan_destroy(plan);
  // Nothing is written behind it.
  ASSERT_EQ(fc_problem_parse("b1_h2_s8_d16_fp32", old), FC_OK);
  EXPECT_EQ(old->struct_size, kOld);
  EXPECT_EQ(old->heads_q, 2);
  EXPECT_EQ(std::vector<unsigned char>(memory.begin() + kOld, memory.end()), std::vector<unsigned char>(8, 0xab));
  old->struct_size = 0xabababab;
  EXPECT_EQ(fc_problem_parse("b1_h2_s8_d16_fp32", old), FC_ERROR_BAD_INPUT);
}

TEST(CApi, LengthZeroIsComputed) {
  const Context cpu("cpu");
  Attention problem = small();
  problem.seqlen_kv = 0;
  Tensors t(problem);
  Plan(cpu, problem).run<float>(t.q, t.k, t.v, t.o, t.lse);
  EXPECT_EQ(t.o, std::vector<float>(t.o.size(), 0.0f));
  EXPECT_EQ(t.lse, std::vector<float>(t.lse.size(), -INFINITY));
  problem.seqlen_q = 0;
  Plan(cpu, problem).launch(nullptr, nullptr, nullptr, nullptr);
}

TEST(CApi, SaysWhatItChose) {
  const Context cpu("cpu");
  Attention problem = small();
  EXPECT_NE(cpu.describe().find("\"kind\":\"cpu\""), std::string::npos) << cpu.describe();
  EXPECT_NE(cpu.explain(problem).find("\"family\":\"cpu_fwd\""), std::string::npos) << cpu.explain(problem);
  EXPECT_NE(cpu.explain(problem).find("needs an NVIDIA GPU"), std::string::npos) << cpu.explain(problem);
  problem.candidate = "cpu_fwd:block_m=24";
  const std::string text = Plan(cpu, problem).describe();
  EXPECT_NE(text.find("\"block_m\":24"), std::string::npos) << text;
  EXPECT_NE(text.find("asked for"), std::string::npos) << text;
  expect_right(Plan(cpu, problem));
}

TEST(CApi, ProblemsComeFromIds) {
  fc_attention problem = FC_ATTENTION_INIT;
  ASSERT_EQ(fc_problem_parse("b2_h8_hk2_sq3_sk5_d64_dv32_bf16_causaltl_bshd_scale0.5", &problem), FC_OK);
  EXPECT_EQ(problem.struct_size, sizeof problem);
  EXPECT_EQ(problem.heads_kv, 2);
  EXPECT_EQ(problem.head_dim_v, 32);
  EXPECT_EQ(problem.causal, FC_CAUSAL_TOP_LEFT);
  EXPECT_EQ(problem.scale, 0.5);
  EXPECT_EQ(problem.q.row, 8 * 64);
  EXPECT_EQ(fc_problem_parse("b2_nonsense", &problem), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("the form is"), std::string::npos);
}

TEST(CApi, TextFitsItsBuffer) {
  const Context cpu("cpu");
  std::size_t needed = 0;
  ASSERT_EQ(fc_context_describe(cpu.get(), nullptr, 0, &needed), FC_OK);
  std::vector<char> tiny(4, 'x');
  ASSERT_EQ(fc_context_describe(cpu.get(), tiny.data(), 3, nullptr), FC_OK);
  EXPECT_EQ(tiny[2], '\0');
  EXPECT_EQ(tiny[3], 'x');
  EXPECT_EQ(fc_context_describe(cpu.get(), nullptr, 3, &needed), FC_ERROR_BAD_INPUT);
}

TEST(CApi, RefusesClosedAndForeignHandles) {
  fc_context context = nullptr;
  ASSERT_EQ(fc_context_create("cpu", &context), FC_OK);
  fc_plan plan = nullptr;
  const fc_attention problem = small().c();
  ASSERT_EQ(fc_plan_create(context, &problem, &plan), FC_OK);
  ASSERT_EQ(fc_context_destroy(context), FC_OK);
  EXPECT_EQ(fc_context_destroy(context), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("no open context"), std::string::npos) << fc_last_error();
  fc_plan second = nullptr;
  EXPECT_EQ(fc_plan_create(context, &problem, &second), FC_ERROR_BAD_INPUT);
  // A plan outlives its context.
  Tensors t(small());
  EXPECT_EQ(fc_plan_launch(plan, t.q.data(), t.k.data(), t.v.data(), t.o.data(), t.lse.data(), nullptr), FC_OK);
  EXPECT_LT(errors(small(), t).first, 1e-5);
  ASSERT_EQ(fc_plan_destroy(plan), FC_OK);
  EXPECT_EQ(fc_plan_launch(plan, t.q.data(), t.k.data(), t.v.data(), t.o.data(), t.lse.data(), nullptr),
            FC_ERROR_BAD_INPUT);
  EXPECT_EQ(fc_plan_launch(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr), FC_ERROR_BAD_INPUT);
  EXPECT_EQ(fc_plan_destroy(reinterpret_cast<fc_plan>(&t)), FC_ERROR_BAD_INPUT);
  EXPECT_EQ(fc_context_destroy(reinterpret_cast<fc_context>(plan)), FC_ERROR_BAD_INPUT);
}

TEST(CApi, RefusesBadProblems) {
  const Context cpu("cpu");
  const auto refused = [&](const char* words, auto&& change) {
    Attention problem = small();
    change(problem);
    expect_refused(FC_ERROR_BAD_INPUT, words, [&] { Plan(cpu, problem); });
  };
  refused("heads_kv is 3, which does not divide heads_q = 4", [](Attention& p) { p.heads_kv = 3; });
  refused("batch is 0", [](Attention& p) { p.batch = 0; });
  refused("seqlen_q is -1", [](Attention& p) { p.seqlen_q = -1; });
  refused("scale is nan", [](Attention& p) { p.scale = NAN; });
  refused("scale is -1", [](Attention& p) { p.scale = -1; });
  refused("alignment is 3", [](Attention& p) { p.alignment = 3; });
  refused("alignment is 2", [](Attention& p) { p.alignment = 2; });
  refused("scale is 0", [](Attention& p) { p.scale = 0.0; });
  refused("scale is -0", [](Attention& p) { p.scale = -0.0; });
  refused("span", [](Attention& p) { p.q_strides = {INT64_MAX, 1, 1}; });
  refused("span", [](Attention& p) { p.q_strides = {INT64_MIN, 1, 1}; });
  refused("overlap", [](Attention& p) { p.o_strides = {0, 24, 24}; });
  refused("unknown family", [](Attention& p) { p.candidate = "nonsense"; });
  refused("cannot run", [](Attention& p) { p.candidate = "sm90_fwd"; });
  refused("no family runs", [](Attention& p) { p.head_dim = 700; });

  // What C++'s enumerations cannot hold, C's integers can.
  fc_plan plan = nullptr;
  fc_attention raw = small().c();
  raw.dtype = 9;
  EXPECT_EQ(fc_plan_create(cpu.get(), &raw, &plan), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("dtype is 9"), std::string::npos) << fc_last_error();
  raw = small().c();
  raw.causal = 7;
  EXPECT_EQ(fc_plan_create(cpu.get(), &raw, &plan), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("causal is 7"), std::string::npos) << fc_last_error();
  raw = small().c();
  raw.given = 0x40;
  EXPECT_EQ(fc_plan_create(cpu.get(), &raw, &plan), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("given is 0x40"), std::string::npos) << fc_last_error();
  raw = small().c();
  raw.struct_size = 3;
  EXPECT_EQ(fc_plan_create(cpu.get(), &raw, &plan), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("FC_ATTENTION_INIT"), std::string::npos) << fc_last_error();
  EXPECT_EQ(fc_plan_create(cpu.get(), nullptr, &plan), FC_ERROR_BAD_INPUT);
  EXPECT_EQ(fc_plan_create(cpu.get(), &raw, nullptr), FC_ERROR_BAD_INPUT);
}

TEST(CApi, RefusesBadLaunches) {
  const Context cpu("cpu");
  const Plan plan(cpu, small());
  Tensors t(small());
  expect_refused(FC_ERROR_BAD_INPUT, "k is null", [&] { plan.launch(t.q.data(), nullptr, t.v.data(), t.o.data()); });
  expect_refused(FC_ERROR_BAD_INPUT, "o is null", [&] { plan.launch(t.q.data(), t.k.data(), t.v.data(), nullptr); });
  expect_refused(FC_ERROR_BAD_INPUT, "no multiple of 4 bytes",
                 [&] { plan.launch(reinterpret_cast<char*>(t.q.data()) + 1, t.k.data(), t.v.data(), t.o.data()); });
  expect_refused(FC_ERROR_BAD_INPUT, "the CPU has none",
                 [&] { plan.launch(t.q.data(), t.k.data(), t.v.data(), t.o.data(), nullptr, &t); });
  expect_refused(FC_ERROR_BAD_INPUT, "overlaps q",
                 [&] { plan.launch(t.q.data(), t.k.data(), t.v.data(), t.q.data()); });
  expect_refused(FC_ERROR_BAD_INPUT, "overlaps v",
                 [&] { plan.launch(t.q.data(), t.k.data(), t.v.data(), &t.v[t.v.size() - 1]); });
  expect_refused(FC_ERROR_BAD_INPUT, "lse at",
                 [&] { plan.launch(t.q.data(), t.k.data(), t.v.data(), t.o.data(), t.k.data()); });
  expect_refused(FC_ERROR_BAD_INPUT, "overlaps o",
                 [&] { plan.launch(t.q.data(), t.k.data(), t.v.data(), t.o.data(), &t.o[3]); });
  expect_refused(FC_ERROR_BAD_INPUT, "q has 3 elements",
                 [&] { plan.run<float>(std::span(t.q).first(3), t.k, t.v, t.o); });
}

template <class T>
void expect_run_refused(const Context& cpu, fc_dtype dtype, const std::string& words) {
  Attention problem = small();
  problem.dtype = dtype;
  const Plan plan(cpu, problem);
  const Tensors t(problem);
  const std::vector<T> q(t.q.size()), k(t.k.size()), v(t.v.size());
  std::vector<T> o(t.o.size());
  expect_refused(FC_ERROR_BAD_INPUT, words, [&] { plan.run<T>(q, k, v, o); });
}

struct Half {
  std::uint16_t bits;
};

TEST(CApi, RunTakesSpansOfThePlansType) {
  const Context cpu("cpu");
  expect_run_refused<int>(cpu, FC_FP32, "run<float>");
  expect_run_refused<unsigned>(cpu, FC_FP32, "run<float>");
  expect_run_refused<double>(cpu, FC_FP32, "run<float>");
  expect_run_refused<std::uint16_t>(cpu, FC_FP32, "run<float>");
  expect_run_refused<float>(cpu, FC_FP16, "two bytes");
  expect_run_refused<short>(cpu, FC_BF16, "only std::uint16_t");
  expect_run_refused<unsigned char>(cpu, FC_FP16, "two bytes");
  Attention problem = small();
  problem.dtype = FC_FP16;
  const Tensors t(problem);
  const Plan plan(cpu, problem);
  std::vector<std::uint16_t> bits(t.o.size(), 0xffff);
  plan.run<std::uint16_t>(std::vector<std::uint16_t>(t.q.size()), std::vector<std::uint16_t>(t.k.size()),
                          std::vector<std::uint16_t>(t.v.size()), bits);
  EXPECT_EQ(bits, std::vector<std::uint16_t>(bits.size(), 0));
  std::vector<Half> halves(t.o.size(), Half{1});
  plan.run<Half>(std::vector<Half>(t.q.size()), std::vector<Half>(t.k.size()), std::vector<Half>(t.v.size()), halves);
  EXPECT_EQ(halves[0].bits, 0);
}

TEST(CApi, RunSeesHowFarStridesReach) {
  const Context cpu("cpu");
  Attention problem = small();
  problem.q_strides = fc_strides{4 * 9 * 30, 9 * 30, 30};
  problem.k_strides = fc_strides{0, 0, 24};
  const Plan plan(cpu, problem);
  Tensors t(problem);
  const std::vector<float> q(static_cast<std::size_t>(2 * 4 * 9 * 30 - 6), 0.5f), k(17 * 24, 0.5f);
  plan.run<float>(q, k, t.v, t.o);
  expect_refused(FC_ERROR_BAD_INPUT, "q has 1728 elements, and the plan's problem needs at least 2154",
                 [&] { plan.run<float>(t.q, k, t.v, t.o); });
  problem.q_strides->row = -30;
  const Plan backwards(cpu, problem);
  expect_refused(FC_ERROR_BAD_INPUT, "q has a negative stride", [&] { backwards.run<float>(q, k, t.v, t.o); });
}

// [row, (q, k, v, o), head, column] of one buffer: honest views, without a common element.
TEST(CApi, ViewsThatInterleaveAreNoOverlap) {
  const Context cpu("cpu");
  Attention problem = small();
  problem.batch = 1;
  problem.heads_kv = problem.heads_q = 2;
  problem.seqlen_kv = problem.seqlen_q = 9;
  const Tensors first(problem);
  Tensors t = first;
  const std::int64_t d = problem.head_dim, row = 4 * 2 * d;
  std::vector<float> packed(static_cast<std::size_t>(9 * row));
  const auto move = [&](std::vector<float>& x, std::int64_t which, bool in) {
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int64_t r = 0; r < 9; ++r)
        for (std::int64_t c = 0; c < d; ++c) {
          float& inside = packed[static_cast<std::size_t>(r * row + which * 2 * d + h * d + c)];
          float& outside = x[static_cast<std::size_t>((h * 9 + r) * d + c)];
          in ? inside = outside : outside = inside;
        }
  };
  move(t.q, 0, true), move(t.k, 1, true), move(t.v, 2, true);
  problem.q_strides = problem.k_strides = problem.v_strides = problem.o_strides = fc_strides{9 * row, d, row};
  float* const at = packed.data();
  Plan(cpu, problem).launch(at, at + 2 * d, at + 4 * d, at + 6 * d, t.lse.data());
  move(t.o, 3, false);
  EXPECT_LT(errors(problem, t).first, 1e-5);
  move(t.v, 2, false);
  EXPECT_EQ(t.v, first.v);
  expect_refused(FC_ERROR_BAD_INPUT, "overlaps v",
                 [&] { Plan(cpu, problem).launch(at, at + 2 * d, at + 4 * d, at + 6 * d - 1); });
}

TEST(CApi, RefusesDevicesThatAreNotThere) {
  expect_refused(FC_ERROR_BAD_INPUT, "is not a device", [] { Context("toaster"); });
  expect_refused(FC_ERROR_ENVIRONMENT, "cuda:99", [] { Context("cuda:99"); });
}

TEST(CApi, MessagesBelongToTheirThread) {
  EXPECT_EQ(fc_context_destroy(nullptr), FC_ERROR_BAD_INPUT);
  const std::string mine = fc_last_error();
  std::string other;
  std::thread([&] { other = fc_last_error(); }).join();
  EXPECT_EQ(other, "");
  EXPECT_EQ(mine, fc_last_error());
}

TEST(CApi, MemoryIsFreedOnce) {
  const Context cpu("cpu");
  void* address = nullptr;
  ASSERT_EQ(fc_memory_allocate(cpu.get(), 100, &address), FC_OK);
  ASSERT_EQ(fc_memory_free(cpu.get(), address), FC_OK);
  EXPECT_EQ(fc_memory_free(cpu.get(), address), FC_ERROR_BAD_INPUT);
  EXPECT_EQ(fc_memory_upload(cpu.get(), nullptr, &address, 4), FC_ERROR_BAD_INPUT);
  EXPECT_EQ(fc_memory_allocate(cpu.get(), ~std::size_t{0} - 10, &address), FC_ERROR_ENVIRONMENT);
}

// What the sanitizer builds are for: everything at once from eight threads, some of them on one plan.
TEST(CApi, EightThreadsPlanAndLaunch) {
  const Context cpu("cpu");
  const Plan shared(cpu, small());
  std::vector<std::thread> threads;
  std::vector<int> failures(8, 0);
  for (std::size_t index = 0; index < failures.size(); ++index) {
    threads.emplace_back([&, index] {
      for (int round = 0; round < 6; ++round) {
        Attention problem = small();
        problem.seqlen_q = 1 + static_cast<std::int64_t>(index) * 3 + round;
        Tensors own(problem), common(small());
        const Plan plan(cpu, problem);
        plan.run<float>(own.q, own.k, own.v, own.o, own.lse);
        shared.run<float>(common.q, common.k, common.v, common.o, common.lse);
        failures[index] += errors(problem, own).first > 1e-5 || errors(small(), common).first > 1e-5;
        failures[index] += fc_plan_destroy(reinterpret_cast<fc_plan>(index + 1)) != FC_ERROR_BAD_INPUT;
        failures[index] += plan.describe().empty() || cpu.explain(problem).empty();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, std::vector<int>(8, 0));
}

// --- the emulated GPU: the path of a GPU, tensor maps and workspace included -----------------------------------------

// bf16 is a float's upper half: these values are exact in it.
std::vector<std::uint16_t> as_bf16(const std::vector<float>& x) {
  std::vector<std::uint16_t> bits(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, &x[i], sizeof word);
    bits[i] = static_cast<std::uint16_t>(word >> 16);
  }
  return bits;
}
std::vector<float> from_bf16(const std::vector<std::uint16_t>& bits) {
  std::vector<float> x(bits.size());
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const std::uint32_t word = static_cast<std::uint32_t>(bits[i]) << 16;
    std::memcpy(&x[i], &word, sizeof word);
  }
  return x;
}

class Emulated : public ::testing::Test {
 protected:
  // One launch on tensors that start `shift` elements into their memory.
  void expect_right_on_gpu(const Plan& plan, std::size_t shift = 0) {
    const Attention& p = plan.problem();
    Tensors t(p);
    const auto put = [&](std::vector<float>& x) {
      const std::vector<std::uint16_t> bits = as_bf16(x);
      x = from_bf16(bits);
      std::vector<std::uint16_t> shifted(shift, 0);
      shifted.insert(shifted.end(), bits.begin(), bits.end());
      return Memory<std::uint16_t>(gpu_, std::span<const std::uint16_t>(shifted));
    };
    const Memory<std::uint16_t> q = put(t.q), k = put(t.k), v = put(t.v);
    const Memory<std::uint16_t> o(gpu_, t.o.size() + shift);
    const Memory<float> lse(gpu_, t.lse.size());
    plan.launch(q.data() + shift, k.data() + shift, v.data() + shift, o.data() + shift, lse.data());
    gpu_.synchronize();
    std::vector<std::uint16_t> bits(t.o.size() + shift);
    o.download(bits);
    lse.download(t.lse);
    const std::vector<float> all = from_bf16(bits);
    t.o.assign(all.begin() + static_cast<std::ptrdiff_t>(shift), all.end());
    const auto [error, lse_error] = errors(p, t);
    EXPECT_LT(error, 1e-2) << plan.describe();
    EXPECT_LT(lse_error, 1e-3) << plan.describe();
  }
  static Attention half() {
    return {.dtype = FC_BF16,
            .heads_q = 2,
            .heads_kv = 1,
            .seqlen_q = 40,
            .seqlen_kv = 72,
            .head_dim = 64,
            .causal = FC_CAUSAL_BOTTOM_RIGHT};
  }
  const Context gpu_{"emulator"};
};

// Launched twice on different memory: the second must not read the first's addresses.
TEST_F(Emulated, EveryFamilyIsReaddressed) {
  for (const char* family : {"sm90_fwd", "sm90_short_fwd", "sm80_fwd", "sm80_short_fwd", "ref_fwd"}) {
    Attention problem = half();
    problem.candidate = family;
    const Plan plan(gpu_, problem);
    EXPECT_NE(plan.describe().find(family), std::string::npos);
    expect_right_on_gpu(plan);
    expect_right_on_gpu(plan, 8);
  }
}

TEST_F(Emulated, OddAddressesAndStridesTakeAKernelThatReadsThem) {
  Attention problem = half();
  problem.seqlen_q = problem.seqlen_kv = 16;
  problem.alignment = 2;
  const Plan plan(gpu_, problem);
  EXPECT_NE(plan.describe().find("\"family\":\"ref_fwd\""), std::string::npos) << plan.describe();
  EXPECT_NE(plan.describe().find("copies 16 bytes at a time"), std::string::npos) << plan.describe();
  expect_right_on_gpu(plan, 3);
  problem.candidate = "sm80_fwd";
  expect_refused(FC_ERROR_BAD_INPUT, "16 bytes at a time", [&] { Plan(gpu_, problem); });
  problem.alignment = 16;
  const Plan aligned(gpu_, problem);
  expect_refused(FC_ERROR_BAD_INPUT, "no multiple of 16 bytes", [&] { expect_right_on_gpu(aligned, 3); });
}

TEST_F(Emulated, RepeatedElementsAreNotGivenToTensorMaps) {
  Attention problem = half();
  problem.heads_q = problem.heads_kv = 2;
  problem.seqlen_q = problem.seqlen_kv = 1024;  // long enough for a kernel with tensor maps to come first
  problem.k_strides = problem.v_strides = {0, 0, 64};
  const std::string text = Plan(gpu_, problem).describe();
  EXPECT_NE(text.find("\"family\":\"sm80_"), std::string::npos) << text;
  EXPECT_NE(text.find("do not repeat"), std::string::npos) << text;
  // And that is what explain says, which compiles nothing.
  const std::string explained = gpu_.explain(problem);
  EXPECT_NE(explained.find("\"family\":\"sm80_"), std::string::npos) << explained;
}

TEST_F(Emulated, ABroadcastOfOneRowIsReadByAKernelThatCan) {
  Attention problem = half();
  problem.seqlen_q = problem.seqlen_kv = 40;
  const std::vector<std::uint16_t> row = as_bf16(values(64, 5));
  const Memory<std::uint16_t> one(gpu_, std::span<const std::uint16_t>(row)), o(gpu_, 2 * 40 * 64);
  problem.q_strides = problem.k_strides = problem.v_strides = fc_strides{0, 0, 0};
  const Plan plan(gpu_, problem);
  plan.launch(one.data(), one.data(), one.data(), o.data());
  gpu_.synchronize();
  std::vector<std::uint16_t> out(o.size());
  o.download(out);
  // Every weighted mean of one row is that row.
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], row[i % 64]) << i << " " << plan.describe();
}

TEST_F(Emulated, HostSpansAreRefused) {
  const Plan plan(gpu_, half());
  const Tensors t(half());
  std::vector<std::uint16_t> o = as_bf16(t.o);
  expect_refused(FC_ERROR_BAD_INPUT, "run() takes host memory",
                 [&] { plan.run<std::uint16_t>(as_bf16(t.q), as_bf16(t.k), as_bf16(t.v), o); });
}

TEST_F(Emulated, NegativeStridesAreRefused) {
  Attention problem = half();
  problem.k_strides = fc_strides{0, 0, -64};
  expect_refused(FC_ERROR_BAD_INPUT, "a stride is negative", [&] { Plan(gpu_, problem); });
  expect_refused(FC_ERROR_BAD_INPUT, "a stride is negative", [&] { gpu_.explain(problem); });
}

TEST_F(Emulated, SlowKernelsSaySo) {
  Attention problem = half();
  problem.dtype = FC_FP32;
  problem.seqlen_q = problem.seqlen_kv = 8;
  EXPECT_NE(Plan(gpu_, problem).describe().find("slow reference kernel"), std::string::npos);
}

}  // namespace
