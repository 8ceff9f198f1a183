// The emulated GPU: the path of a GPU, tensor maps and workspace included.
#include <cmath>
#include <cstring>
#include <optional>
#include <span>

#include "c_api.h"

namespace api_test {
namespace {

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
  // One launch on tensors that start `shift` elements into their memory. `meant`: what a mask of the problem says.
  void expect_right_on_gpu(const Plan& plan, std::size_t shift = 0, std::optional<fc_causal> meant = std::nullopt) {
    Attention p = plan.problem();
    p.causal = meant.value_or(p.causal);
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

// Lengths lie on the device; who is named has NaN.
TEST_F(Emulated, TheStatusNamesSequencesThatGetNaN) {
  constexpr std::size_t kTotal = 96, kRow = 2 * 64;
  Attention problem = half();
  problem.batch = 3, problem.heads_kv = 2, problem.seqlen_q = problem.seqlen_kv = 40;
  problem.lengths = FC_LENGTHS_FULL, problem.total_q = problem.total_kv = kTotal;
  problem.q_strides = problem.k_strides = problem.v_strides = problem.o_strides = fc_strides{0, 64, kRow};
  const std::vector<std::uint16_t> ones(kTotal * kRow, 0x3f80);
  for (const char* family : {"sm90_fwd", "sm80_fwd", "ref_fwd"}) {
    problem.candidate = family;
    const Plan plan(gpu_, problem);
    const Memory<std::uint16_t> x(gpu_, std::span<const std::uint16_t>(ones)), o(gpu_, ones.size());
    const std::vector<std::int32_t> lengths = {0, 40, 81, 96};  // the second is too long
    const Memory<std::int32_t> boundaries(gpu_, std::span<const std::int32_t>(lengths));
    fc_operands operands = FC_OPERANDS_INIT;
    operands.q = operands.k = operands.v = x.data(), operands.o = o.data();
    operands.cu_seqlens_q = operands.cu_seqlens_kv = boundaries.data();
    plan.launch(operands);
    EXPECT_EQ(plan.status(operands),
              R"({"bad":[{"sequence":1,"why":"it has 41 rows; the plan's bound seqlen_q is 40"}],"sequences":3})");
    std::vector<std::uint16_t> bits(ones.size());
    o.download(bits);
    const std::vector<float> out = from_bf16(bits);
    for (std::size_t row = 0; row < kTotal; ++row)
      EXPECT_EQ(std::isnan(out[row * kRow]), row >= 40 && row < 81) << family << " " << row;
    operands.cu_seqlens_q = lengths.data();  // of the host
    EXPECT_THROW(plan.status(operands), flashcore::Error);
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

// The blocks that a mask without tensors leaves are listed when the plan is made: they are another plan's only if that
// has the same lengths, and every launch reads them, the first of a stream or not.
TEST_F(Emulated, BlocksListedOnceServeEveryLaunch) {
  for (const char* family : {"sm90_fwd", "sm80_fwd"}) {
    for (const std::int64_t keys : {300, 200, 300}) {
      Attention problem = half();
      problem.candidate = family;
      problem.seqlen_q = 150, problem.seqlen_kv = keys;
      problem.causal = FC_CAUSAL_NONE;
      problem.mask = "j <= i + seqlen_kv - seqlen_q";
      const Plan plan(gpu_, problem);
      for (int launch = 0; launch < 2; ++launch) expect_right_on_gpu(plan, 0, FC_CAUSAL_BOTTOM_RIGHT);
    }
  }
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

TEST_F(Emulated, MemoryThatItDoesNotHaveIsRefused) {
  void* address = nullptr;
  EXPECT_EQ(fc_memory_allocate(gpu_.get(), ~std::size_t{0}, &address), FC_ERROR_ENVIRONMENT);
  EXPECT_EQ(fc_memory_allocate(gpu_.get(), ~std::size_t{0} - 64, &address), FC_ERROR_ENVIRONMENT);
  ASSERT_EQ(fc_memory_allocate(gpu_.get(), 64, &address), FC_OK);
  int word = 0;
  EXPECT_EQ(fc_memory_upload(gpu_.get(), address, &word, 4), FC_OK);
  ASSERT_EQ(fc_memory_free(gpu_.get(), address), FC_OK);
  EXPECT_EQ(fc_memory_upload(gpu_.get(), address, &word, 4), FC_ERROR_BAD_INPUT);
  EXPECT_EQ(fc_memory_download(gpu_.get(), &word, address, 4), FC_ERROR_BAD_INPUT);
}

TEST_F(Emulated, SlowKernelsSaySo) {
  Attention problem = half();
  problem.dtype = FC_FP32;
  problem.seqlen_q = problem.seqlen_kv = 8;
  EXPECT_NE(Plan(gpu_, problem).describe().find("slow reference kernel"), std::string::npos);
}

}  // namespace
}  // namespace api_test
