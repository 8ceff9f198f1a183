// What the C API computes and says, on the CPU.
#include <cstring>
#include <thread>

#include "c_api.h"

namespace api_test {
namespace {

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

}  // namespace
}  // namespace api_test
