// 8-bit q, k and v through the C API and its C++ header: factors, types of o, what is refused, structs of older
// callers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "flashcore/flashcore.hpp"

namespace {

using flashcore::Attention;
using flashcore::Context;
using flashcore::Plan;

// The numbers of a type by its definition: sign, exponent, mantissa. Finite ones only.
struct Format {
  int bytes, mantissa, bias;
  double smallest() const { return std::ldexp(0.5, 1 - bias - mantissa); }  // half the gap between subnormals
  double unit() const { return std::ldexp(0.5, -mantissa); }
  double value(std::uint32_t bits) const {
    const std::uint32_t sign = bits >> (8 * bytes - 1), magnitude = bits & ((1u << (8 * bytes - 1)) - 1);
    const auto exponent = static_cast<int>(magnitude >> mantissa);
    const auto fraction = static_cast<int>(magnitude & ((1u << mantissa) - 1));
    const double absolute = exponent == 0 ? std::ldexp(fraction, 1 - bias - mantissa)
                                          : std::ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
    return sign ? -absolute : absolute;
  }
  double at(const std::vector<unsigned char>& memory, std::int64_t index) const {
    std::uint32_t bits = 0;
    for (int byte = 0; byte < bytes; ++byte)
      bits |= static_cast<std::uint32_t>(memory[static_cast<std::size_t>(index * bytes + byte)]) << (8 * byte);
    return value(bits);
  }
};
Format format_of(fc_dtype dtype) {
  switch (dtype) {
    case FC_FP16: return {2, 10, 15};
    case FC_BF16: return {2, 7, 127};
    case FC_E4M3: return {1, 3, 7};
    default: return {1, 2, 15};
  }
}

Attention fp8_problem(fc_dtype dtype = FC_E4M3) {
  Attention p;
  p.dtype = dtype;
  p.batch = 2;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.seqlen_q = 3;
  p.seqlen_kv = 5;
  p.head_dim = 8;
  return p;
}

// Memory of one call. Stored values are small whole numbers, which both types have.
struct Fp8Call {
  explicit Fp8Call(const Attention& p)
      : problem(p),
        q(static_cast<std::size_t>(p.batch * p.heads_q * p.seqlen_q * p.head_dim)),
        k(static_cast<std::size_t>(p.batch * p.heads_kv * p.seqlen_kv * p.head_dim)),
        v(k.size()),
        o(q.size() * sizeof(float), 0xff) {
    const std::pair<std::vector<unsigned char>*, std::size_t> tensors[] = {{&q, 3}, {&k, 5}, {&v, 7}};
    for (const auto& [tensor, step] : tensors)
      for (std::size_t i = 0; i < tensor->size(); ++i) (*tensor)[i] = code_of(static_cast<double>(i * step % 9) - 4);
  }
  unsigned char code_of(double value) const {
    for (std::uint32_t code = 0; code < 256; ++code)
      if (format_of(problem.dtype).value(code) == value) return static_cast<unsigned char>(code);
    return 0x7f;
  }
  fc_status launch(const Context& context, const float* dq, const float* dk, const float* dv) {
    const Plan plan(context, problem);
    return fc_plan_launch_scaled(plan.get(), q.data(), k.data(), v.data(), o.data(), nullptr, dq, dk, dv, nullptr);
  }
  // By the formula, in double; factors by batch entry and kv head.
  double expected(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t column, const std::vector<float>& dq,
                  const std::vector<float>& dk, const std::vector<float>& dv) const {
    const Format format = format_of(problem.dtype);
    const std::int64_t head = h / 2, factor_at = dq.size() > 1 ? b * 2 + head : 0;
    const auto value = [&](const std::vector<unsigned char>& x, std::int64_t heads, std::int64_t rows, std::int64_t of,
                           std::int64_t r,
                           std::int64_t d) -> double { return format.at(x, ((b * heads + of) * rows + r) * 8 + d); };
    const auto factor = [&](const std::vector<float>& all) -> double {
      return all.empty() ? 1 : all[static_cast<std::size_t>(factor_at)];
    };
    double sum = 0, total = 0;
    for (std::int64_t j = 0; j < 5; ++j) {
      double score = 0;
      for (std::int64_t d = 0; d < 8; ++d) score += value(q, 4, 3, h, row, d) * value(k, 2, 5, head, j, d);
      const double p = std::exp(score * factor(dq) * factor(dk) / std::sqrt(8.0));
      sum += p, total += p * value(v, 2, 5, head, j, column);
    }
    return factor(dv) * total / sum;
  }
  void expect_right(fc_dtype output, const std::vector<float>& dq, const std::vector<float>& dk,
                    const std::vector<float>& dv) const {
    const Format format = format_of(output);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(q.size()); ++i) {
      const double right = expected(i / 8 / 3 / 4, i / 8 / 3 % 4, i / 8 % 3, i % 8, dq, dk, dv);
      ASSERT_NEAR(format.at(o, i), right, 1.01 * std::max(format.unit() * std::abs(right), format.smallest()) + 1e-5)
          << i;
    }
  }

  Attention problem;
  std::vector<unsigned char> q, k, v, o;
};

TEST(Fp8Api, ComputesWithFactorsOfEitherKindAndEveryOutput) {
  const Context cpu("cpu");
  for (const fc_dtype dtype : {FC_E4M3, FC_E5M2}) {
    Fp8Call usual(fp8_problem(dtype));
    const std::vector<float> dq = {0.25f}, dk = {0.5f}, dv = {3.0f};
    ASSERT_EQ(usual.launch(cpu, dq.data(), dk.data(), dv.data()), FC_OK) << fc_last_error();
    usual.expect_right(FC_BF16, dq, dk, dv);
    for (const fc_dtype output : {FC_FP16, FC_BF16, FC_E4M3, FC_E5M2}) {
      Attention p = fp8_problem(dtype);
      p.o_dtype = output;
      p.scaling = FC_SCALING_HEAD;
      Fp8Call call(p);
      const std::vector<float> hq = {0.25f, 0.5f, 0.125f, 1.0f}, hk = {0.5f, 0.25f, 1.0f, 0.125f},
                               hv = {1.0f, 2.0f, 3.0f, 4.0f};
      ASSERT_EQ(call.launch(cpu, hq.data(), hk.data(), hv.data()), FC_OK) << fc_last_error();
      call.expect_right(output, hq, hk, hv);
    }
    Attention plain = fp8_problem(dtype);
    plain.scaling = FC_SCALING_NONE;
    Fp8Call unscaled(plain);
    ASSERT_EQ(unscaled.launch(cpu, nullptr, nullptr, nullptr), FC_OK) << fc_last_error();
    unscaled.expect_right(FC_BF16, {}, {}, {});
  }
}

TEST(Fp8Api, RefusesFactorsByNameAndValue) {
  const Context cpu("cpu");
  Fp8Call call(fp8_problem());
  const float good = 1;
  const auto refused = [&](const char* text, const float* dq, const float* dk, const float* dv) {
    EXPECT_EQ(call.launch(cpu, dq, dk, dv), FC_ERROR_BAD_INPUT) << text;
    EXPECT_NE(std::string(fc_last_error()).find(text), std::string::npos) << fc_last_error();
  };
  refused("descale_q is null", nullptr, &good, &good);
  refused("descale_v is null", &good, &good, nullptr);
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const float bad : {0.0f, -0.0f, -1.0f, nan, inf, -inf}) {
    refused("descale_q[0] is ", &bad, &good, &good);
    refused("descale_k[0] is ", &good, &bad, &good);
    refused("descale_v[0] is ", &good, &good, &bad);
  }
  const float* const into_o = reinterpret_cast<const float*>(call.o.data());
  refused("overlaps descale_v", &good, &good, into_o);
  call.problem.scaling = FC_SCALING_NONE;
  refused("descale_k is given", nullptr, &good, nullptr);
  const Plan plan(cpu, fp8_problem());
  EXPECT_EQ(fc_plan_launch(plan.get(), call.q.data(), call.k.data(), call.v.data(), call.o.data(), nullptr, nullptr),
            FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("fc_plan_launch_scaled"), std::string::npos) << fc_last_error();
}

// Of each query head over the batch: the largest |score| and |o|, by the formula.
TEST(Fp8Api, WritesLargestMagnitudes) {
  const Context cpu("cpu");
  Attention p = fp8_problem();
  p.o_dtype = FC_E4M3;
  p.amax = FC_AMAX_HEAD;
  Fp8Call call(p);
  const Plan plan(cpu, p);
  EXPECT_NE(plan.describe().find("_amax"), std::string::npos);
  const float dq = 0.25f, dk = 0.5f, dv = 400.0f;  // beyond what e4m3 holds
  std::vector<float> amax(8, 1e30f);
  fc_operands operands = FC_OPERANDS_INIT;
  operands.q = call.q.data(), operands.k = call.k.data(), operands.v = call.v.data(), operands.o = call.o.data();
  operands.descale_q = &dq, operands.descale_k = &dk, operands.descale_v = &dv;
  operands.amax = amax.data();
  plan.launch(operands);
  const Format e4m3 = format_of(FC_E4M3);
  for (std::int64_t h = 0; h < 4; ++h) {
    double score = 0, o = 0;
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t row = 0; row < 3; ++row) {
        for (std::int64_t j = 0; j < 5; ++j) {
          double dot = 0;
          for (std::int64_t d = 0; d < 8; ++d)
            dot +=
                e4m3.at(call.q, ((b * 4 + h) * 3 + row) * 8 + d) * e4m3.at(call.k, ((b * 2 + h / 2) * 5 + j) * 8 + d);
          score = std::max(score, std::abs(dot * dq * dk / std::sqrt(8.0)));
        }
        for (std::int64_t d = 0; d < 8; ++d) o = std::max(o, std::abs(call.expected(b, h, row, d, {dq}, {dk}, {dv})));
      }
    EXPECT_NEAR(amax[static_cast<std::size_t>(h)], score, 1e-5 * score) << h;
    EXPECT_NEAR(amax[static_cast<std::size_t>(4 + h)], o, 1e-4 * o) << h;
    EXPECT_GT(amax[static_cast<std::size_t>(4 + h)], 448.0f);
  }
  const auto refused = [&](const char* text, const auto& change) {
    fc_operands bad = operands;
    change(bad);
    EXPECT_EQ(fc_plan_launch_operands(plan.get(), &bad, nullptr), FC_ERROR_BAD_INPUT) << text;
    EXPECT_NE(std::string(fc_last_error()).find(text), std::string::npos) << fc_last_error();
  };
  refused("amax is null", [](fc_operands& o) { o.amax = nullptr; });
  refused("no multiple of 4 bytes",
          [](fc_operands& o) { o.amax = reinterpret_cast<float*>(reinterpret_cast<std::uintptr_t>(o.amax) + 1); });
  refused("amax at", [&](fc_operands& o) { o.amax = reinterpret_cast<float*>(call.o.data()); });
  refused("overlaps descale_q", [&](fc_operands& o) { o.descale_q = o.amax + 7; });
  refused("fc_operands.struct_size", [](fc_operands& o) { o.struct_size -= 1; });
  const Plan plain(cpu, fp8_problem());
  EXPECT_EQ(fc_plan_launch_operands(plain.get(), &operands, nullptr), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("amax is given"), std::string::npos) << fc_last_error();
  // Callers of earlier versions, whose struct ends before.
  operands.struct_size = offsetof(fc_operands, amax);
  EXPECT_EQ(fc_plan_launch_operands(plain.get(), &operands, nullptr), FC_OK) << fc_last_error();
}

TEST(Fp8Api, RefusesTypesAndScalingsThatDoNotFit) {
  const Context cpu("cpu");
  const auto refused = [&](const char* text, const Attention& p) {
    try {
      const Plan plan(cpu, p);
      ADD_FAILURE() << text;
    } catch (const flashcore::Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  Attention p = fp8_problem();
  p.o_dtype = FC_FP32;
  refused("o_dtype is fp32 and dtype is e4m3", p);
  p = fp8_problem(FC_FP16);
  p.o_dtype = FC_BF16;
  refused("o_dtype is bf16 and dtype is fp16", p);
  p.o_dtype = {};
  p.scaling = FC_SCALING_HEAD;
  refused("scaling is head and dtype is fp16", p);
  p = fp8_problem();
  p.scaling = static_cast<fc_scaling>(7);
  refused("scaling is 7", p);
  p = fp8_problem();
  p.o_dtype = static_cast<fc_dtype>(9);
  refused("o_dtype is 9", p);
  refused("dtype is 5", fp8_problem(static_cast<fc_dtype>(5)));
}

TEST(Fp8Api, AStructOfVersionThreeHasTheUsualOfBoth) {
  const Context cpu("cpu");
  constexpr std::size_t kOld = offsetof(fc_attention, o_dtype);
  std::vector<unsigned char> memory(kOld + 16, 0xab);
  fc_attention now = fp8_problem(FC_FP16).c();
  now.struct_size = kOld;
  std::memcpy(memory.data(), &now, offsetof(fc_attention, unused));
  auto* const old = reinterpret_cast<fc_attention*>(memory.data());
  fc_plan plan = nullptr;
  ASSERT_EQ(fc_plan_create(cpu.get(), old, &plan), FC_OK) << fc_last_error();
  fc_plan_destroy(plan);
  ASSERT_EQ(fc_problem_parse("b1_h2_s8_d16_fp32_wl3", old), FC_OK) << fc_last_error();
  EXPECT_EQ(std::vector<unsigned char>(memory.begin() + kOld, memory.end()), std::vector<unsigned char>(16, 0xab));
  EXPECT_EQ(fc_problem_parse("b1_h2_s8_d16_e4m3_perhead", old), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("ABI version 4"), std::string::npos) << fc_last_error();
}

TEST(Fp8Api, AStructOfVersionTenHasNoLayoutOfV) {
  const Context cpu("cpu");
  fc_attention a = FC_ATTENTION_INIT;
  a.struct_size = offsetof(fc_attention, v_layout);
  ASSERT_EQ(fc_problem_parse("b1_h2_s8_d16_e4m3", &a), FC_OK) << fc_last_error();
  EXPECT_EQ(fc_problem_parse("b1_h2_s8_d16_e4m3_vdn", &a), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("ABI version 11"), std::string::npos) << fc_last_error();
  a.v_layout = 7;  // beyond its end
  fc_plan plan = nullptr;
  EXPECT_EQ(fc_plan_create(cpu.get(), &a, &plan), FC_OK) << fc_last_error();
  EXPECT_EQ(fc_plan_destroy(plan), FC_OK);
  a.struct_size = sizeof(a);
  EXPECT_EQ(fc_plan_create(cpu.get(), &a, &plan), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("v_layout is 7; use FC_V_ND (0) or FC_V_DN (1)"), std::string::npos);
}

// Columns of 37 keys without padding between them.
TEST(Fp8Api, ATransposedVIsToBePadded) {
  const Context emulator("emulator");
  Attention p = fp8_problem();
  p.seqlen_kv = 37;
  p.head_dim = 64;
  p.v_layout = FC_V_DN;
  EXPECT_EQ(emulator.explain(p).find("padded"), std::string::npos) << emulator.explain(p);
  p.v_strides = fc_strides{p.heads_kv * 64 * 37, 64 * 37, 37};
  const std::string said = Plan(emulator, p).describe();
  EXPECT_NE(said.find("columns of keys are padded to a multiple of 16"), std::string::npos) << said;
}

// The emulator's GPU has no host that looks at factors, and the slow kernel takes them.
TEST(Fp8Api, RunsOnAnEmulatedGpu) {
  const Context emulator("emulator");
  Attention p = fp8_problem();
  p.scaling = FC_SCALING_HEAD;
  Fp8Call call(p);
  const std::vector<float> dq = {0.25f, 0.5f, 0.125f, 1.0f}, dk = {0.5f, 0.25f, 1.0f, 0.125f},
                           dv = {1.0f, 2.0f, 3.0f, 4.0f};
  using Bytes = std::vector<unsigned char>;
  const auto upload = [&](const Bytes& host) {
    return flashcore::Memory<unsigned char>(emulator, std::span<const unsigned char>(host));
  };
  const auto q = upload(call.q), k = upload(call.k), v = upload(call.v);
  const flashcore::Memory<unsigned char> o(emulator, call.q.size() * 2);
  const flashcore::Memory<float> fq(emulator, std::span<const float>(dq)), fk(emulator, std::span<const float>(dk)),
      fv(emulator, std::span<const float>(dv));
  p.candidate = "ref_fwd";
  const Plan plan(emulator, p);
  plan.launch_scaled(q.data(), k.data(), v.data(), o.data(), fq.data(), fk.data(), fv.data());
  emulator.synchronize();
  call.o.resize(call.q.size() * 2);
  o.download(call.o);
  call.expect_right(FC_BF16, dq, dk, dv);
}

}  // namespace
