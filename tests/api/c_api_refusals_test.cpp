// What the C API refuses, and the words that it has for it.
#include <cmath>
#include <span>
#include <thread>

#include "c_api.h"

namespace api_test {
namespace {

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
  raw.given = 0x400;
  EXPECT_EQ(fc_plan_create(cpu.get(), &raw, &plan), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("given is 0x400"), std::string::npos) << fc_last_error();
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

// The library knows how much memory it has given, and where.
TEST(CApi, CopiesStayInTheirAllocation) {
  const Context cpu("cpu");
  void* address = nullptr;
  ASSERT_EQ(fc_memory_allocate(cpu.get(), 4096, &address), FC_OK);
  auto* const bytes = static_cast<char*>(address);
  std::vector<char> host(3 << 20, 'x');
  EXPECT_EQ(fc_memory_upload(cpu.get(), bytes, host.data(), 4096), FC_OK);
  EXPECT_EQ(fc_memory_download(cpu.get(), host.data(), bytes + 4095, 1), FC_OK);
  // Far enough to end the process, were it tried.
  EXPECT_EQ(fc_memory_upload(cpu.get(), bytes, host.data(), host.size()), FC_ERROR_BAD_INPUT);
  EXPECT_NE(std::string(fc_last_error()).find("bytes 0 to 3145728 of an allocation of 4096 bytes"), std::string::npos)
      << fc_last_error();
  EXPECT_EQ(fc_memory_upload(cpu.get(), bytes + 4000, host.data(), 97), FC_ERROR_BAD_INPUT);
  EXPECT_EQ(fc_memory_download(cpu.get(), host.data(), bytes + 1, 4096), FC_ERROR_BAD_INPUT);
  EXPECT_EQ(fc_memory_download(cpu.get(), host.data(), bytes, ~std::size_t{0}), FC_ERROR_BAD_INPUT);
  // What comes from outside and reaches into it is no better.
  EXPECT_EQ(fc_memory_upload(cpu.get(), bytes - 4, host.data(), 8), FC_ERROR_BAD_INPUT);
  EXPECT_EQ(fc_memory_download(cpu.get(), host.data(), bytes - 1, 4098), FC_ERROR_BAD_INPUT);
  // Others' memory is theirs to know.
  std::vector<char> own(64);
  EXPECT_EQ(fc_memory_upload(cpu.get(), own.data(), host.data(), own.size()), FC_OK);
  EXPECT_EQ(own[63], 'x');
  ASSERT_EQ(fc_memory_free(cpu.get(), address), FC_OK);
}

TEST(CApi, LaunchesStayInTheirAllocations) {
  const Context cpu("cpu");
  const Plan plan(cpu, small());
  const Tensors t(small());
  const Memory<float> q(cpu, std::span(t.q)), k(cpu, std::span(t.k)), v(cpu, std::span(t.v)), o(cpu, t.o.size()),
      lse(cpu, t.lse.size()), tiny(cpu, 8);
  plan.launch(q.data(), k.data(), v.data(), o.data(), lse.data());
  const char* const words = "of an allocation of 32 bytes";
  expect_refused(FC_ERROR_BAD_INPUT, words, [&] { plan.launch(tiny.data(), k.data(), v.data(), o.data()); });
  expect_refused(FC_ERROR_BAD_INPUT, words, [&] { plan.launch(q.data(), k.data(), tiny.data(), o.data()); });
  expect_refused(FC_ERROR_BAD_INPUT, words, [&] { plan.launch(q.data(), k.data(), v.data(), tiny.data()); });
  expect_refused(FC_ERROR_BAD_INPUT, words, [&] { plan.launch(q.data(), k.data(), v.data(), o.data(), tiny.data()); });
  expect_refused(FC_ERROR_BAD_INPUT, "o at",
                 [&] { plan.launch(q.data(), k.data(), v.data(), o.data() + 1, lse.data()); });
}

}  // namespace
}  // namespace api_test
