// Quantising through the C++ API, on the CPU and on the emulated GPU, beside a plain formula: codes and factors bit for
// bit, means within an ulp; what is refused.
#include <cstring>

#include "quantise_call.h"

namespace api_test {
namespace {

class QuantiseTest : public ::testing::Test {
 protected:
  void expect_right(const QuantiseCase& c) {
    QuantiseCall call(c);
    expect_right(call);
  }
  void expect_right(QuantiseCall& call) {
    call.expect_right(cpu_, "cpu");
    call.expect_right(gpu_, "emulator");
  }
  const Context cpu_{"cpu"}, gpu_{"emulator"};
};

TEST_F(QuantiseTest, TypesAndScalings) {
  for (const fc_dtype dtype : {FC_FP32, FC_FP16, FC_BF16})
    for (const fc_dtype code : {FC_E4M3, FC_E5M2})
      for (const bool by_head : {false, true})
        expect_right({.name = "types", .dtype = dtype, .code = code, .by_head = by_head});
}

TEST_F(QuantiseTest, Shapes) {
  expect_right({.name = "odd head dim", .dim = 40, .dim_v = 40});
  expect_right({.name = "no multiples", .dtype = FC_BF16, .dim = 7, .dim_v = 1, .by_head = true, .smooths = true});
  expect_right({.name = "three parts", .dim = 48, .dim_v = 80, .by_head = true, .smooths = true});
  expect_right({.name = "rows first", .by_head = true, .smooths = true, .rows_first = true});
  expect_right({.name = "gaps", .dtype = FC_FP32, .rows_first = true, .gap = 16});
  expect_right({.name = "odd gaps", .rows_first = true, .gap = 3});
  expect_right({.name = "no multiple of 16 bytes", .gap = 16, .shift = 1});
  expect_right({.name = "one row", .batch = 1, .heads_q = 1, .heads_kv = 1, .seqlen_q = 1, .seqlen_kv = 1});
  expect_right({.name = "wide", .batch = 1, .seqlen_q = 3, .seqlen_kv = 5, .dim = 2048, .dim_v = 528, .smooths = true});
}

// Rows whose parts are lanes of a warp, of several warps, and no power of two; more of them than a CTA has at once.
TEST_F(QuantiseTest, AFactorForEachRow) {
  expect_right({.name = "rows", .by_row = true});
  expect_right({.name = "rows of e5m2", .dtype = FC_FP32, .code = FC_E5M2, .by_row = true, .rows_first = true});
  expect_right(
      {.name = "smooth rows", .dim = 64, .smooths = true, .rotates = true, .transposes = true, .by_row = true});
  expect_right({.name = "odd rows", .dtype = FC_BF16, .dim = 7, .dim_v = 1, .smooths = true, .by_row = true, .gap = 3});
  expect_right({.name = "three parts", .seqlen_q = 150, .seqlen_kv = 90, .dim = 48, .dim_v = 80, .by_row = true});
  expect_right({.name = "wide rows", .batch = 1, .seqlen_q = 3, .seqlen_kv = 5, .dim = 2048, .by_row = true});
  QuantiseCall zeros({.name = "rows of zeros and NaN", .by_row = true});
  for (std::int64_t i = 0; i < 32; ++i) zeros.set(zeros.q, 32 + i, 0), zeros.set(zeros.k, 64 + i, 0x7e00);
  expect_right(zeros);
}

// More than one CTA for a group and for the keys of a head; several heads in one chunk.
TEST_F(QuantiseTest, Chunks) {
  expect_right({.name = "chunks",
                .batch = 1,
                .heads_q = 2,
                .heads_kv = 1,
                .seqlen_q = 70,
                .seqlen_kv = 300,
                .dim = 256,
                .dim_v = 128,
                .by_head = true,
                .smooths = true});
  expect_right({.name = "chunks of all",
                .batch = 2,
                .heads_q = 4,
                .heads_kv = 2,
                .seqlen_q = 70,
                .seqlen_kv = 150,
                .dim = 128,
                .dim_v = 64,
                .smooths = true});
}

TEST_F(QuantiseTest, Hadamard) {
  for (const std::int64_t dim : {1, 2, 8, 16, 64, 512})
    expect_right({.name = "hadamard", .batch = 1, .seqlen_q = 5, .dim = dim, .by_head = true, .rotates = true});
  expect_right({.name = "both", .dtype = FC_BF16, .dim = 128, .smooths = true, .rotates = true, .seed = ~0ull});
  expect_right({.name = "unaligned", .dim = 32, .rotates = true, .gap = 1, .seed = 1});
}

TEST_F(QuantiseTest, TransposedV) {
  for (const std::int64_t keys : {1, 16, 37, 130, 300})
    expect_right({.name = "dn", .batch = 1, .seqlen_kv = keys, .dim_v = 48, .by_head = true, .transposes = true});
  expect_right({.name = "dn of rows first", .dtype = FC_FP32, .dim_v = 96, .transposes = true, .rows_first = true});
  expect_right({.name = "dn of odd columns", .code = FC_E5M2, .dim_v = 70, .transposes = true, .gap = 1});
}

TEST_F(QuantiseTest, Empty) {
  expect_right({.name = "no keys", .seqlen_kv = 0, .smooths = true, .transposes = true});
  expect_right({.name = "no rows", .seqlen_q = 0, .by_head = true});
  expect_right({.name = "no batch", .batch = 0});
  expect_right({.name = "no batch, no factors", .batch = 0, .by_head = true, .smooths = true});
}

// Every code but NaN and infinity comes back as it is where the largest one has a factor of 1.
TEST_F(QuantiseTest, EveryCode) {
  for (const fc_dtype code : {FC_E4M3, FC_E5M2})
    for (const bool transposes : {false, true}) {
      QuantiseCall call({.name = "codes",
                         .dtype = FC_FP32,
                         .code = code,
                         .batch = 1,
                         .heads_q = 1,
                         .heads_kv = 1,
                         .seqlen_q = 16,
                         .seqlen_kv = 16,
                         .dim = 16,
                         .dim_v = 16,
                         .transposes = transposes});
      for (QuantiseTensor* t : {&call.q, &call.k, &call.v})
        for (int i = 0; i < 256; ++i) {
          const float value =
              std::copysign(magnitude_of(code, std::min(i & 0x7f, largest_code(code))), i & 0x80 ? -1.0f : 1.0f);
          std::uint32_t bits = 0;
          std::memcpy(&bits, &value, sizeof bits);
          call.set(*t, i, bits);
        }
      expect_right(call);
    }
}

TEST_F(QuantiseTest, NanInfinityAndZeros) {
  constexpr std::uint32_t kInfinity = 0x7c00, kNan = 0x7e01, kNegative = 0x8000;
  for (const bool smooths : {false, true})
    for (const bool rotates : {false, true}) {
      QuantiseCall call({.name = "nan", .by_head = true, .smooths = smooths, .rotates = rotates});
      call.set(call.q, 5, kInfinity), call.set(call.q, 6 * 32 + 3, kNan);
      call.set(call.k, 70, kInfinity | kNegative), call.set(call.k, 17 * 32 + 71, kNan);
      call.set(call.v, 3, kInfinity), call.set(call.v, 4, kInfinity | kNegative),
          call.set(call.v, 40, kNan | kNegative);
      expect_right(call);
    }
  for (const fc_dtype code : {FC_E4M3, FC_E5M2}) {
    QuantiseCall zeros({.name = "zeros", .code = code, .by_head = true});
    for (std::int64_t i = 0; i < 9 * 2 * 32; ++i) zeros.set(zeros.q, i, i % 2 ? kNegative : 0);
    for (std::int64_t i = 0; i < 17 * 32; ++i) zeros.set(zeros.v, i, i == 3 ? kInfinity : 0);
    expect_right(zeros);
  }
  // Whose factor would not be a normal number, or that are all there is.
  QuantiseCall tiny({.name = "tiny", .dtype = FC_FP32, .by_head = true});
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(tiny.q.values.size()); ++i)
    tiny.set(tiny.q, i, static_cast<std::uint32_t>(i % 5));
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(tiny.k.values.size()); ++i)
    tiny.set(tiny.k, i, 0x7f7fffffu - static_cast<std::uint32_t>(i));
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(tiny.v.values.size()); ++i) tiny.set(tiny.v, i, 0x7f800000u);
  expect_right(tiny);
}

// Of callers built with the header of ABI version 13, whose structs end before the counts.
TEST_F(QuantiseTest, StructsOfAnOlderHeader) {
  fc_quantize_kind kind = FC_QUANTIZE_KIND_INIT;
  kind.struct_size = offsetof(fc_quantize_kind, counts_saturated);
  kind.counts_saturated = 77;  // memory of somebody else
  fc_quantize handle = nullptr;
  ASSERT_EQ(fc_quantize_create(cpu_.get(), &kind, &handle), FC_OK) << fc_last_error();
  fc_quantize_operands o = FC_QUANTIZE_OPERANDS_INIT;
  o.struct_size = offsetof(fc_quantize_operands, has_factors);
  o.has_factors = 77, o.heads_q = o.heads_kv = o.head_dim = o.head_dim_v = 1;
  float factors[3];
  o.descale_q = factors, o.descale_k = factors + 1, o.descale_v = factors + 2;
  EXPECT_EQ(fc_quantize_launch(handle, &o, nullptr), FC_OK) << fc_last_error();
  EXPECT_EQ(fc_quantize_destroy(handle), FC_OK);
}

TEST_F(QuantiseTest, WhatIsRefused) {
  fc_quantize_kind kind = FC_QUANTIZE_KIND_INIT;
  fc_quantize handle = nullptr;
  const auto create = [&] { flashcore::detail::check(fc_quantize_create(cpu_.get(), &kind, &handle)); };
  kind.dtype = FC_E4M3;
  expect_refused(FC_ERROR_BAD_INPUT, "dtype is 3; use FC_FP32 (0)", create);
  kind.dtype = FC_FP16, kind.code_dtype = FC_INT8;
  expect_refused(FC_ERROR_BAD_INPUT, "code_dtype is 5; use FC_E4M3 (3) or FC_E5M2 (4)", create);
  kind.struct_size = 3;
  expect_refused(FC_ERROR_BAD_INPUT, "fc_quantize_kind.struct_size is 3", create);

  kind = FC_QUANTIZE_KIND_INIT, kind.counts_saturated = 2;
  expect_refused(FC_ERROR_BAD_INPUT, "counts_saturated is 2; use 0 or 1", create);

  const Quantize quantize(cpu_, FC_FP32);
  std::vector<float> x(2 * 8 * 16, 1), factors(6), mean(64);
  alignas(16) std::uint8_t codes[3][256];
  fc_quantize_operands good = FC_QUANTIZE_OPERANDS_INIT;
  good.batch = 1, good.heads_q = good.heads_kv = 2, good.seqlen_q = good.seqlen_kv = 8,
  good.head_dim = good.head_dim_v = 16;
  good.q = good.k = good.v = x.data();
  good.q_codes = codes[0], good.k_codes = codes[1], good.v_codes = codes[2];
  for (fc_strides* s : {&good.q_strides, &good.k_strides, &good.v_strides, &good.q_codes_strides, &good.k_codes_strides,
                        &good.v_codes_strides})
    *s = {256, 128, 16};
  good.descale_q = factors.data(), good.descale_k = factors.data() + 2, good.descale_v = factors.data() + 4;
  good.k_mean = mean.data();
  quantize.launch(good);
  const auto refused = [&](const char* words, auto change) {
    fc_quantize_operands bad = good;
    change(bad);
    expect_refused(FC_ERROR_BAD_INPUT, words, [&] { quantize.launch(bad); });
  };
  using Operands = fc_quantize_operands;
  std::uint64_t counts[3] = {};
  refused("saturated is given, and this handle was made with counts_saturated 0; give null",
          [&](Operands& o) { o.saturated = counts; });
  refused("block_q is 64 and scaling is not FC_SCALING_TOKEN; use 0", [](Operands& o) { o.block_q = 64; });
  refused("block_kv is -1; 0 to", [](Operands& o) { o.scaling = FC_SCALING_TOKEN, o.block_kv = -1; });
  refused("has_factors is 2; use 0 or 1", [](Operands& o) { o.has_factors = 2; });
  refused("has_factors is 1 and scaling is FC_SCALING_TOKEN, whose factors are found on the way; use 0",
          [](Operands& o) { o.has_factors = 1, o.scaling = FC_SCALING_TOKEN; });
  refused("descale_q has inf at 0; factors are positive and finite", [](Operands& o) {
    static float infinite = INFINITY;
    o.has_factors = 1, o.descale_q = &infinite;
  });
  refused("fc_quantize_operands.struct_size is 8", [](Operands& o) { o.struct_size = 8; });
  refused("scaling is 5; use FC_SCALING_TENSOR", [](Operands& o) { o.scaling = FC_SCALING_TOKEN + 1; });
  refused("v_layout is 2; use FC_V_ND (0)", [](Operands& o) { o.v_layout = 2; });
  refused("hadamard is 2; use 0 or 1", [](Operands& o) { o.hadamard = 2; });
  refused("batch is -1; 0 to", [](Operands& o) { o.batch = -1; });
  refused("heads_kv is 0; 1 to", [](Operands& o) { o.heads_kv = 0; });
  refused("heads_q is 3 and heads_kv 2; give a multiple", [](Operands& o) { o.heads_q = 3; });
  refused("head_dim_v is 2049; 1 to 2048", [](Operands& o) { o.head_dim_v = 2049; });
  refused("head_dim is 12, and hadamard needs a power of two up to 512",
          [](Operands& o) { o.head_dim = 12, o.hadamard = 1; });
  refused("head_dim is 1024, and hadamard needs", [](Operands& o) { o.head_dim = 1024, o.hadamard = 1; });
  refused("are too many; at most", [](Operands& o) { o.batch = 1 << 20, o.seqlen_q = 1 << 20; });
  refused("k is null; give its address on cpu", [](Operands& o) { o.k = nullptr; });
  refused("v_codes is null", [](Operands& o) { o.v_codes = nullptr; });
  refused("descale_q is null", [](Operands& o) { o.descale_q = nullptr; });
  refused("q is at", [](Operands& o) { o.q = static_cast<const char*>(o.q) + 1; });
  refused("k_mean is at",
          [](Operands& o) { o.k_mean = reinterpret_cast<float*>(reinterpret_cast<char*>(o.k_mean) + 2); });
  refused("q_codes has strides (256, 128, 8) of batch, head and row: its rows of 16 elements share memory",
          [](Operands& o) { o.q_codes_strides.row = 8; });
  refused("q_codes at", [](Operands& o) { o.q_codes = o.k_codes; });
  refused("overlaps", [&](Operands& o) { o.v_codes = x.data(); });
  refused("descale_q at",
          [](Operands& o) { o.scaling = FC_SCALING_TOKEN, o.descale_q = static_cast<float*>(o.q_codes); });
  refused("descale_v at", [](Operands& o) { o.scaling = FC_SCALING_HEAD, o.descale_v = o.descale_k + 1; });
  refused("and v_layout is FC_V_DN; give multiples of 16, and a row's stride of at least 16", [](Operands& o) {
    o.v_layout = FC_V_DN, o.v_codes_strides = {256, 128, 8};
  });
  fc_quantize_operands one = good;  // of one batch entry, head or column any stride is the same
  one.batch = one.heads_q = one.heads_kv = one.head_dim_v = 1, one.v_layout = FC_V_DN, one.v_codes_strides = {3, 5, 7};
  quantize.launch(one);
  expect_refused(FC_ERROR_BAD_INPUT, "a stream was given", [&] { quantize.launch(good, &x); });
  expect_refused(FC_ERROR_BAD_INPUT, "the quantize handle is null; fc_quantize_create makes one",
                 [&] { flashcore::detail::check(fc_quantize_launch(nullptr, &good, nullptr)); });

  // An emulated GPU takes no negative strides.
  const Quantize on_gpu(gpu_, FC_FP32);
  fc_quantize_operands bad = good;
  bad.q_strides.row = -16;
  expect_refused(FC_ERROR_BAD_INPUT, "q has a negative stride", [&] { on_gpu.launch(bad); });
}

}  // namespace
}  // namespace api_test
