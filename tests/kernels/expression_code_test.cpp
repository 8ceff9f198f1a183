// The device code of expressions, compiled as a kernel's: run on the emulator beside the values of the reference, and
// taken by NVRTC for every architecture.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/expression_builtin.h"
#include "core/expression_code.h"
#include "core/random_expression.h"
#include "device/emulator/emulator_compiler.h"
#include "device/emulator/emulator_device.h"
#include "kernels/embedded.h"
#include "kernels/tile/expression.h"

namespace flashcore {
namespace {

constexpr int kCount = 96, kLength = 50, kHeads = 8, kBatch = 2;

const ExpressionBox& box() {
  static const ExpressionBox all = ExpressionBox::of({kBatch, kHeads, 2, kLength, kLength});
  return all;
}

// One kernel: out[f * count + n] is function f of point n.
std::string kernel_text(const std::vector<Expression>& expressions) {
  std::string text =
      "#include \"kernels/ptx/memory.cuh\"\n#include \"kernels/ptx/special_registers.cuh\"\n#include "
      "\"kernels/tile/expression.cuh\"\n"
      "namespace flashcore {\n"
      "struct Params { const float* points; float* out; int count; expression::Tensor tensors[4]; };\n";
  std::string calls;
  for (std::size_t f = 0; f < expressions.size(); ++f) {
    text += expression_device_code(expressions[f], fmt::format("function{}", f), box());
    std::string tensors;
    for (const ExpressionTensor& tensor : expressions[f].tensors()) {
      const auto& all = example_tensors();
      const auto at = std::find(all.begin(), all.end(), tensor) - all.begin();
      tensors += fmt::format("p.tensors[{}], ", at);
    }
    if (tensors.empty()) tensors = "p.tensors[0]";
    calls += fmt::format(
        "    {{ const expression::Tensor own[] = {{{}}};\n"
        "    ptx::st_global_f32(p.out + {} * p.count + n, static_cast<float>(function{}(at, own))); }}\n",
        tensors, f, f);
  }
  return text +
         "FC_KERNEL(32, 1) kernel(const __grid_constant__ Params p) {\n"
         "  for (int n = ptx::tid_x(); n < p.count; n += 32) {\n"
         "    const auto whole = [&](int k) { return static_cast<int>(ptx::ld_global_f32(p.points + 8 * n + k)); };\n"
         "    const expression::Variables at{ptx::ld_global_f32(p.points + 8 * n), whole(1), whole(2), whole(3), "
         "whole(4), whole(5), whole(6), whole(7)};\n" +
         calls + "  }\n}\n}\n";
}

struct Params {
  const float* points;
  float* out;
  int count;
  expression::Tensor tensors[4];
};

class OnTheEmulator {
 public:
  explicit OnTheEmulator(const std::vector<ExpressionPoint>& points) : device_(open_emulator()) {
    std::vector<float> flat;
    for (const ExpressionPoint& p : points) {
      flat.push_back(static_cast<float>(p.s));
      for (const std::int32_t value : {p.b, p.h, p.hk, p.i, p.j, p.seqlen_q, p.seqlen_kv})
        flat.push_back(static_cast<float>(value));
    }
    params_.count = static_cast<int>(points.size());
    params_.points = put(flat);
    std::vector<float> slope, bias;
    std::vector<std::int32_t> doc;
    std::vector<std::uint8_t> keep;
    for (std::int32_t h = 0; h < kHeads; ++h) slope.push_back(element("slope", {h}));
    for (std::int32_t b = 0; b < kBatch; ++b)
      for (std::int32_t i = 0; i < kLength; ++i) doc.push_back(static_cast<std::int32_t>(element("doc", {b, i})));
    for (std::int32_t j = 0; j < kLength; ++j) keep.push_back(element("keep", {j}) != 0);
    for (std::int32_t b = 0; b < kBatch; ++b)
      for (std::int32_t h = 0; h < kHeads; ++h)
        for (std::int32_t i = 0; i < kLength; ++i)
          for (std::int32_t j = 0; j < kLength; ++j) bias.push_back(element("bias", {b, h, i, j}));
    params_.tensors[0] = {put(slope), {1, 0, 0, 0}};
    params_.tensors[1] = {put(doc), {kLength, 1, 0, 0}};
    params_.tensors[2] = {put(keep), {1, 0, 0, 0}};
    params_.tensors[3] = {put(bias), {kHeads * kLength * kLength, kLength * kLength, kLength, 1}};
  }

  std::vector<float> run(const std::vector<Expression>& expressions) {
    SourceMap sources = device_sources();
    sources["expression_test/kernel.cuh"] = kernel_text(expressions);
    const KernelSource kernel{"expression_test/kernel.cuh", "flashcore::kernel", 0, 32, {}};
    const auto module = device_->load(open_emulator_compiler()->compile(kernel, sources, "sm_90"));
    std::vector<float> out(expressions.size() * static_cast<std::size_t>(params_.count));
    params_.out = put(out);
    LaunchSpec spec;
    spec.block.x = 32;
    spec.params.resize(sizeof params_);
    std::memcpy(spec.params.data(), &params_, sizeof params_);
    device_->launch(*module, spec);
    device_->download(out.data(), params_.out, out.size() * sizeof(float));
    return out;
  }

 private:
  static float element(const char* name, std::initializer_list<std::int32_t> at) {
    return static_cast<float>(example_element(name, std::span<const std::int32_t>(at.begin(), at.size())));
  }
  template <class T>
  T* put(const std::vector<T>& values) {
    buffers_.push_back(device_->allocate((values.size() * sizeof(T) + 3) / 4 * 4, 256));
    device_->upload(buffers_.back()->data(), values.data(), values.size() * sizeof(T));
    return static_cast<T*>(buffers_.back()->data());
  }

  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  Params params_{};
};

std::vector<ExpressionPoint> some_points() {
  Draws draws(7);
  std::vector<ExpressionPoint> points;
  for (int n = 0; n < kCount; ++n) {
    const auto draw = [&](std::int64_t bound) { return static_cast<std::int32_t>(draws.below(bound)); };
    // fp32 numbers from 2^-20 on: every branch of tanh.
    const double s = n % 4 == 0 ? std::ldexp(draws.normal(), -5 * (n / 4 % 5)) : draws.normal() * 4;
    points.push_back({.s = static_cast<double>(static_cast<float>(s)),
                      .b = draw(kBatch),
                      .h = draw(kHeads),
                      .hk = draw(2),
                      .i = draw(kLength),
                      .j = draw(kLength),
                      .seqlen_q = kLength,
                      .seqlen_kv = kLength});
  }
  return points;
}

struct Evaluation {
  const Expression& expression;
  ExpressionEvaluator evaluator{expression, [this](int tensor, std::span<const std::int32_t> at) {
                                  const auto& of = expression.tensors()[static_cast<std::size_t>(tensor)];
                                  return example_element(of.name, at);
                                }};
};

TEST(ExpressionDeviceCode, MasksAreTheReferencesExactly) {
  std::vector<Expression> masks;
  for (const char* text : {"j <= i", "doc[b, i] == doc[b, j] && keep[j]", "!keep[j] || i // 7 == j // 7",
                           "(i - j) // 3 % 5 < (j - i) % -4", "i * 0.3 + j * 0.7 < h * 1.1",
                           "1.0 * i / (j + 1) >= 0.3 * j", "abs(min(i, 20) - max(j, 5)) < 12",
                           "slope[h] * (j - i) + 0.1 * bias[b, h, i, j] > -2.3", "i * 99991 * 99991 % 7 > 2"})
    masks.push_back(Expression::parse(text, ExpressionUse::kMask, example_tensors()));
  for (int n = 0; n < 60; ++n)
    masks.push_back(
        Expression::parse(RandomExpressions(static_cast<std::uint64_t>(n) + 60000, true, true).next(1 + n % 4).text,
                          ExpressionUse::kMask, example_tensors()));
  const std::vector<ExpressionPoint> points = some_points();
  const std::vector<float> device = OnTheEmulator(points).run(masks);
  int visible = 0;
  for (std::size_t f = 0; f < masks.size(); ++f) {
    Evaluation reference{masks[f]};
    for (std::size_t n = 0; n < points.size(); ++n) {
      const float got = device[f * points.size() + n];
      ASSERT_EQ(got, reference.evaluator.mask(points[n]) ? 1.0f : 0.0f)
          << masks[f].text() << " at i = " << points[n].i << ", j = " << points[n].j;
      visible += got != 0 ? 1 : 0;
    }
  }
  EXPECT_GT(visible, 1000);
}

TEST(ExpressionDeviceCode, EachOperationOfAScoreIsExactToAFewBits) {
  struct Case {
    const char* text;
    double relative, absolute;  // either may be met
  };
  const Case cases[] = {
      {"s + i", 0x1p-23, 0},
      {"s - 0.1", 0x1p-22, 0x1p-24},
      {"s * s", 0x1p-23, 0},
      {"s / (i + 1)", 0x1p-23, 0},
      {"s / 30", 0x1p-22, 0},
      {"i / 7", 0x1p-22, 0},
      {"-s", 0, 0},
      {"abs(s)", 0, 0},
      {"min(s, 0.5)", 0, 0},
      {"max(-s, j)", 0, 0},
      {"where(j <= i, s, -inf)", 0, 0},
      {"exp2(s)", 0x1p-21, 0},
      {"exp(s)", 0x1p-19, 0},
      {"log2(i + 1)", 0x1p-21, 0x1p-21},
      {"log(i + 1)", 0x1p-21, 0x1p-21},
      {"sqrt(i + 0.25)", 0x1p-22, 0},
      {"sqrt(s * s)", 0x1p-21, 0},
      {"sqrt(0.0 * i)", 0, 0},
      {"tanh(s)", 0x1p-21, 0},
      {"tanh(100 * s)", 0x1p-21, 0},
      {"30 * tanh(s / 30)", 0x1p-21, 0},
      {"slope[h] * (j - i) + s", 0x1p-21, 0x1p-20},
      {"bias[b, h, i, j] + bias[0, h, 0, min(j, 3)]", 0, 0},
      {"where(keep[j], doc[b, i], -1)", 0, 0},
      {"2147483647 + i * 65537 // 3 - (0 - i) % 7", 0x1p-23, 0},
      {"min(log(-abs(s) - 1), 1.0)", 0, 0},
      {"min(1.0, log(-abs(s) - 1))", 0, 0},
      {"max(log(-abs(s) - 1), 1.0)", 0, 0},
      {"max(1.0, log(-abs(s) - 1))", 0, 0},
  };
  std::vector<Expression> scores;
  for (const Case& one : cases) scores.push_back(Expression::parse(one.text, ExpressionUse::kScore, example_tensors()));
  const std::vector<ExpressionPoint> points = some_points();
  const std::vector<float> device = OnTheEmulator(points).run(scores);
  for (std::size_t f = 0; f < scores.size(); ++f) {
    Evaluation reference{scores[f]};
    for (std::size_t n = 0; n < points.size(); ++n) {
      const double expected = reference.evaluator.score(points[n]), got = device[f * points.size() + n];
      const double allowed = std::max(cases[f].relative * std::abs(expected), cases[f].absolute);
      const bool same = std::isfinite(expected) ? std::abs(got - expected) <= allowed
                                                : got == expected || (std::isnan(got) && std::isnan(expected));
      EXPECT_TRUE(same) << cases[f].text << " at s = " << points[n].s << ", i = " << points[n].i
                        << ", j = " << points[n].j << ": " << got << " and is " << expected;
    }
  }
}

TEST(ExpressionDeviceCode, NvrtcTakesItForEveryArchitecture) {
  std::unique_ptr<Compiler> compiler;
  try {
    compiler = open_compiler();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  std::vector<Expression> expressions;
  for (int n = 0; n < 16; ++n) {
    const bool mask = n % 2 == 0;
    RandomExpressions random(static_cast<std::uint64_t>(n) + 70000, mask, true);
    expressions.push_back(
        Expression::parse(random.next(3).text, mask ? ExpressionUse::kMask : ExpressionUse::kScore, example_tensors()));
  }
  for (const char* text : {"30 * tanh(s / 30) + slope[h] * (j - i)", "sqrt(exp(log(exp2(log2(abs(s) + 1)))))",
                           "where(keep[j], (i - j) // 3 % 7, doc[b, j]) + bias[b, h, i, j] / s"})
    expressions.push_back(Expression::parse(text, ExpressionUse::kScore, example_tensors()));
  SourceMap sources = device_sources();
  sources["expression_test/kernel.cuh"] = kernel_text(expressions);
  const KernelSource kernel{"expression_test/kernel.cuh", "flashcore::kernel", 0, 32, {}};
  for (const char* arch : {"sm_80", "sm_90a"}) {
    const Artifact artifact = compiler->compile(kernel, sources, arch);
    EXPECT_TRUE(artifact.warnings.empty()) << artifact.warnings[0];
    EXPECT_EQ(artifact.stack_bytes, 0) << arch;
  }
}

}  // namespace
}  // namespace flashcore
