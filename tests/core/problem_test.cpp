#include "core/problem.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/error.h"
#include "core/operands.h"
#include "core/paged.h"
#include "core/problem_fields.h"

namespace flashcore {
namespace {

std::string message_of(const std::string& id) {
  try {
    Problem::parse(id);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    return error.what();
  }
  return "accepted";
}

TEST(ProblemTest, IdsOfTheDocumentedForms) {
  for (const char* id : {"b1_h8_s512_d64_fp16", "b1_h32_hk8_s4096_d128_bf16_causal", "b16_h32_hk8_sq1_sk8192_d128_bf16",
                         "b16_h32_hk8_sq1_sk8192_d128_dv64_bf16_causaltl_scale0.125", "b1_h1_sq0_sk5_d8_fp32"}) {
    EXPECT_EQ(Problem::parse(id).id(), id);
    EXPECT_EQ(PlacedProblem::parse(id), PlacedProblem(Problem::parse(id), Layout::kBhsd));
  }
  for (const char* id : {"b16_h32_hk8_sq1_sk8192_d128_dv64_bf16_causaltl_bshd_scale0.125", "b1_h1_s0_d1_fp16_strided",
                         "b2_h6_hk1_s17_d72_fp16_causal_strided_scale1e-06"}) {
    EXPECT_EQ(PlacedProblem::parse(id).id(), id);
    EXPECT_NE(message_of(id).find("names a layout"), std::string::npos) << message_of(id);
  }
  const PlacedProblem p = PlacedProblem::parse("b16_h32_hk8_sq1_sk8192_d128_dv64_bf16_causaltl_bshd_scale0.125");
  EXPECT_EQ(p.batch, 16);
  EXPECT_EQ(p.heads_q, 32);
  EXPECT_EQ(p.heads_kv, 8);
  EXPECT_EQ(p.seqlen_q, 1);
  EXPECT_EQ(p.seqlen_kv, 8192);
  EXPECT_EQ(p.head_dim, 128);
  EXPECT_EQ(p.head_dim_v, 64);
  EXPECT_EQ(p.dtype, DType::kBF16);
  EXPECT_EQ(p.mask, Mask::causal(Alignment::kTopLeft));
  EXPECT_EQ(p.layout, Layout::kBshd);
  EXPECT_EQ(p.scale, 0.125);
}

std::vector<Mask> masks() {
  std::vector<Mask> all;
  for (const Alignment alignment : {Alignment::kBottomRight, Alignment::kTopLeft}) {
    for (const auto left : {std::optional<std::int64_t>(), std::optional<std::int64_t>(0),
                            std::optional<std::int64_t>(3), std::optional<std::int64_t>(20)}) {
      for (const auto right : {std::optional<std::int64_t>(), std::optional<std::int64_t>(0),
                               std::optional<std::int64_t>(2), std::optional<std::int64_t>(30)}) {
        if (left || right || alignment == Alignment::kBottomRight) all.push_back({alignment, left, right});
      }
    }
  }
  return all;
}

// Of q, k and v.
std::vector<std::int64_t> factors_of(const Problem& problem) {
  const DescaleCounts counts = descale_counts(problem, make_layouts(problem, Layout::kBshd));
  return {counts.q, counts.k, counts.v};
}

TEST(ProblemTest, TokensOfQuantisedCaches) {
  const Problem plain = Problem::parse("b2_h8_hk2_sq1_sk512_d64_bf16_kve4m3");
  EXPECT_EQ(plain.dtype, DType::kBF16);
  EXPECT_EQ(plain.cache_dtype(), DType::kE4M3);
  EXPECT_FALSE(plain.is_8bit());
  EXPECT_EQ(plain.output_dtype(), DType::kBF16);
  EXPECT_EQ(plain.input_scaling(), Scaling::kTensor);
  EXPECT_EQ(factors_of(plain), (std::vector<std::int64_t>{0, 1, 1}));
  EXPECT_EQ(plain.id(), "b2_h8_hk2_sq1_sk512_d64_bf16_kve4m3");
  // K and V count a byte an element.
  const double of_16_bits = Problem::parse("b2_h8_hk2_sq1_sk512_d64_bf16").bytes();
  EXPECT_EQ(of_16_bits - plain.bytes() + 2 * 4, 2.0 * 2 * 512 * (64 + 64));
  // And of int4 half of one; two columns share a byte.
  const Problem nibbles = Problem::parse("b2_h8_hk2_sq1_sk512_d64_bf16_kvint4");
  EXPECT_EQ(nibbles.id(), "b2_h8_hk2_sq1_sk512_d64_bf16_kvint4");
  EXPECT_EQ(plain.bytes() - nibbles.bytes(), 0.5 * 2 * 2 * 512 * (64 + 64));
  EXPECT_NE(message_of("b1_h8_s512_d63_bf16_kvint4").find("two columns share a byte"), std::string::npos);
  const char* whole = "b3_h4_sq2_sk70_d64_fp16_kvint8_perhead_causal_sink_raggedrandom_page7";
  const Problem p = Problem::parse(whole);
  EXPECT_EQ(p.id(), whole);
  EXPECT_EQ(p.cache_dtype(), DType::kInt8);
  EXPECT_EQ(factors_of(p), (std::vector<std::int64_t>{0, 12, 12}));
  EXPECT_EQ(factors_of(Problem::parse("b1_h4_s70_d64_fp32_kve5m2_unscaled")), (std::vector<std::int64_t>{0, 0, 0}));
  // A factor for each key: read with it, of dense caches and of those in pages.
  const char* by_token = "b3_h4_hk2_sq2_sk70_d64_fp16_kvint8_pertoken_causal_raggedhalving_page7";
  const PlacedProblem tokens = PlacedProblem::parse(by_token);
  EXPECT_EQ(tokens.id(), by_token);
  EXPECT_EQ(tokens.input_scaling(), Scaling::kToken);
  const std::int64_t in_pool = pool_pages(tokens) * 2 * 7;
  EXPECT_EQ(factors_of(tokens), (std::vector<std::int64_t>{0, in_pool, in_pool}));
  const Problem dense = Problem::parse("b2_h4_hk2_sq1_sk70_d64_fp16_kvint8_pertoken");
  EXPECT_EQ(factors_of(dense), (std::vector<std::int64_t>{0, 2 * 2 * 70, 2 * 2 * 70}));
  EXPECT_EQ(dense.bytes() - Problem::parse("b2_h4_hk2_sq1_sk70_d64_fp16_kvint8_unscaled").bytes(),
            2 * 4.0 * 2 * 2 * 70);
  EXPECT_NE(message_of("b2_h4_s70_d64_fp16_pertoken").find("pertoken"), std::string::npos);
  EXPECT_NE(message_of("b2_h4_s70_d64_fp16_kve4m3_pertoken_raggedfull").find("the keys of the batch are packed"),
            std::string::npos);
  EXPECT_NE(message_of("b1_h2_hk2_sq1_sk2000000000_d1_fp16_kve4m3_pertoken").find("2^31-1 factors of a batch entry"),
            std::string::npos);
  EXPECT_NE(message_of("b1_h8_s512_d64_e4m3_kve5m2").find("q of 8 bits is multiplied with k and v of its own type"),
            std::string::npos);
  EXPECT_NE(message_of("b1_h8_s512_d64_bf16_kvfp16").find("kvfp16"), std::string::npos);
  EXPECT_NE(message_of("b1_h8_s512_d64_int8").find("which is not fp32"), std::string::npos);
  EXPECT_EQ(problem_distance(plain, Problem::parse("b2_h8_hk2_sq1_sk512_d64_bf16_kvint8")), INFINITY);
}

TEST(ProblemTest, TokensOf8Bits) {
  const Problem plain = Problem::parse("b2_h8_hk2_s512_d64_e4m3");
  EXPECT_EQ(plain.output_dtype(), DType::kBF16);
  EXPECT_EQ(plain.input_scaling(), Scaling::kTensor);
  EXPECT_EQ(factors_of(plain), (std::vector<std::int64_t>{1, 1, 1}));
  const Problem p = Problem::parse("b2_h8_hk2_s512_d64_e5m2_ofp16_perhead_causal_scale0.5");
  EXPECT_EQ(p.id(), "b2_h8_hk2_s512_d64_e5m2_ofp16_perhead_causal_scale0.5");
  EXPECT_EQ(p.dtype, DType::kE5M2);
  EXPECT_EQ(p.output_dtype(), DType::kF16);
  EXPECT_EQ(factors_of(p), (std::vector<std::int64_t>{4, 4, 4}));
  EXPECT_EQ(factors_of(Problem::parse("b2_h8_s512_d64_e4m3_oe4m3_unscaled")), (std::vector<std::int64_t>{0, 0, 0}));
  EXPECT_EQ(factors_of(Problem::parse("b2_h8_s512_d64_bf16")), (std::vector<std::int64_t>{0, 0, 0}));
  // A factor for each row of q and each key, and for v one for each head: they are read with their rows.
  const char* by_row = "b2_h8_hk2_sq70_sk90_d64_e4m3_pertoken_causal_vdn";
  const Problem rows = Problem::parse(by_row);
  EXPECT_EQ(rows.id(), by_row);
  EXPECT_EQ(factors_of(rows), (std::vector<std::int64_t>{2 * 8 * 70, 2 * 2 * 90, 2 * 2}));
  const std::string unscaled = "b2_h8_hk2_sq70_sk90_d64_e4m3_unscaled_causal_vdn";
  EXPECT_EQ(rows.bytes() - Problem::parse(unscaled).bytes(), 4.0 * (2 * 8 * 70 + 2 * 2 * 90 + 2 * 2));
  EXPECT_NE(message_of("b2_h4_s70_d64_e4m3_pertoken_raggedfull").find("a ragged batch has dtype e4m3"),
            std::string::npos);
  EXPECT_NE(message_of("b1_h2_sq2000000000_sk1_d1_e4m3_pertoken").find("2 query heads have 2000000000 rows each"),
            std::string::npos);
  EXPECT_EQ(Problem::parse("b2_h8_s512_d64_bf16").output_dtype(), DType::kBF16);
  EXPECT_EQ(PlacedProblem::parse("b2_h8_s512_d64_e4m3_oe5m2_perhead_bshd").layout, Layout::kBshd);
  for (const char* id : {"b1_h8_s512_d64_fp16_obf16", "b1_h8_s512_d64_bf16_oe4m3"})
    EXPECT_NE(message_of(id).find("only q, k and v of 8 bits"), std::string::npos) << message_of(id);
  EXPECT_NE(message_of("b1_h8_s512_d64_e4m3_ofp32").find("use bf16, fp16, e4m3 or e5m2"), std::string::npos);
  EXPECT_NE(message_of("b1_h8_s512_d64_fp16_perhead").find("only operands of 8 bits have scales"), std::string::npos);
  // What is usual has no token.
  EXPECT_NE(message_of("b1_h8_s512_d64_e4m3_obf16").find("obf16"), std::string::npos);
  EXPECT_NE(message_of("b1_h8_s512_d64_fp16_unscaled").find("unscaled"), std::string::npos);
}

TEST(ProblemTest, TokenOfTransposedV) {
  const PlacedProblem p = PlacedProblem::parse("b2_h4_hk2_sq3_sk70_d64_dv32_e4m3_perhead_causal_strided_scale0.5_vdn");
  EXPECT_EQ(p.id(), "b2_h4_hk2_sq3_sk70_d64_dv32_e4m3_perhead_causal_strided_scale0.5_vdn");
  EXPECT_TRUE(p.has_transposed_v());
  // Its rows are columns of values, and lie a multiple of 16 bytes apart whatever the layout is.
  for (const Layout layout : {Layout::kBhsd, Layout::kBshd, Layout::kStrided}) {
    const TensorLayout v = make_layouts(p.problem(), layout).v;
    EXPECT_EQ(v.rows, 32);
    EXPECT_EQ(v.columns, 70);
    EXPECT_EQ(v.stride_row % 16, 0);
    EXPECT_EQ(v.stride_head % 16, 0);
  }
  EXPECT_EQ(make_layouts(p.problem(), Layout::kBhsd).v.stride_row, 80);
  EXPECT_EQ(p.bytes(), Problem::parse("b2_h4_hk2_sq3_sk70_d64_dv32_e4m3_perhead_causal_scale0.5").bytes());
  EXPECT_NE(message_of("b1_h2_s8_d64_bf16_vdn").find("v_layout is dn and dtype is bf16"), std::string::npos);
  EXPECT_NE(message_of("b1_h2_s8_d64_bf16_kve4m3_vdn").find("v_layout is dn and dtype is bf16"), std::string::npos);
  EXPECT_NE(message_of("b1_h2_s8_d64_e4m3_raggedfull_vdn").find("v_layout is dn and the batch is ragged"),
            std::string::npos);
}

TEST(ProblemTest, BytesOf8BitsCountEachTensorByItsOwnType) {
  const Problem p = Problem::parse("b1_h2_s128_d64_e4m3");
  const double rows = 2 * 128;
  EXPECT_EQ(p.bytes(), rows * (3 * 64 + 64 * 2 + 4) + 3 * 4);
  EXPECT_EQ(Problem::parse("b1_h2_s128_d64_e4m3_oe4m3_unscaled").bytes(), rows * (4 * 64 + 4));
  EXPECT_EQ(Problem::parse("b1_h2_s128_d64_bf16").bytes(), rows * (4 * 64 * 2 + 4));
}

TEST(ProblemTest, EveryCombinationRoundTrips) {
  for (const DType dtype : kAllDTypes) {
    for (const Mask& mask : masks()) {
      for (const Layout layout : {Layout::kBhsd, Layout::kBshd, Layout::kStrided}) {
        for (const std::int64_t kv : {17, 33}) {
          for (const std::optional<double>& scale :
               {std::optional<double>(), std::optional<double>(1.0 / 3), std::optional<double>(12.0)}) {
            const PlacedProblem p({dtype, 2, 6, kv == 17 ? 6 : 2, 17, kv, 64, kv == 17 ? 64 : 40, mask, scale}, layout);
            EXPECT_EQ(PlacedProblem::parse(p.id()), p) << p.id();
            EXPECT_EQ(Problem::parse(p.problem().id()), p.problem());
            EXPECT_EQ(p.id().find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.-"), std::string::npos);
          }
        }
      }
    }
  }
}

TEST(ProblemTest, TokensOfWindows) {
  EXPECT_EQ(Problem::parse("b1_h8_s512_d64_fp16_causal_wl128").mask, (Mask{Alignment::kBottomRight, 128, 0}));
  EXPECT_EQ(PlacedProblem::parse("b1_h8_s512_d64_fp16_causaltl_wl128_bshd").mask, (Mask{Alignment::kTopLeft, 128, 0}));
  EXPECT_EQ(Problem::parse("b1_h8_s512_d64_fp16_wl0_wr7_tl_scale0.5").mask, (Mask{Alignment::kTopLeft, 0, 7}));
  EXPECT_EQ(Problem::parse("b1_h8_s512_d64_fp16_wr7").mask, (Mask{Alignment::kBottomRight, std::nullopt, 7}));
  EXPECT_EQ(Problem::parse("b1_h8_s512_d64_fp16_wr0").id(), "b1_h8_s512_d64_fp16_causal");
  EXPECT_NE(message_of("b1_h8_s512_d64_fp16_tl").find("bounds nothing"), std::string::npos);
  EXPECT_NE(message_of("b1_h8_s512_d64_fp16_wl2147483648").find("window_left is 2147483648"), std::string::npos);
}

TEST(ProblemTest, BadIdsAreRefusedWithTheForm) {
  for (const char* id : {"",
                         "b1",
                         "b1_h8",
                         "h8_b1_s512_d64_fp16",
                         "b1_h8_s512_d64",
                         "b1_h8_s512_d64_fp8",
                         "b1_h8_s512_d64_half",
                         "b1_h8_sq512_d64_fp16",
                         "b1_h8_s-5_d64_fp16",
                         "b1_h8_s512_d64_fp16_",
                         "b1_h8_s512_d64_fp16_causal_causal",
                         "b1_h8_s512_d64_fp16_scale",
                         "b1_h8_s512_d64_fp16_scalex",
                         "b1_h8_s512_d64_fp16_bshd_causal",
                         "b1_h8_s512_d64_fp16_causal_wr4",
                         "b1_h8_s512_d64_fp16_wr4_wl4",
                         "b1_h8_s512_d64_fp16_causal_wl4_tl",
                         "b1_h8_s512_d64_fp16_wl-1",
                         "b1_h8_s512_d64_fp16_wl",
                         "b1_h8_s512_d64_fp16_wl4_causal",
                         "b99999999999999999999_h8_s512_d64_fp16",
                         "b1_h8_s512_d64_fp16__causal",
                         "mission"}) {
    EXPECT_NE(message_of(id).find("the form is b<batch>"), std::string::npos) << id << ": " << message_of(id);
  }
}

TEST(ProblemTest, LimitsNameTheFieldItsValueAndWhatIsAllowed) {
  EXPECT_NE(message_of("b0_h8_s512_d64_fp16").find("batch is 0"), std::string::npos);
  EXPECT_NE(message_of("b1_h8_hk3_s512_d64_fp16").find("heads_kv is 3, which does not divide heads_q = 8"),
            std::string::npos);
  EXPECT_NE(message_of("b1_h8_s512_d0_fp16").find("from 1 to 1024"), std::string::npos);
  EXPECT_NE(message_of("b1_h8_s512_d1025_fp16").find("head_dim is 1025"), std::string::npos);
  EXPECT_NE(message_of("b1_h8_s512_d64_dv2000_fp16").find("head_dim_v is 2000"), std::string::npos);
  EXPECT_NE(message_of("b1_h8_s2147483648_d64_fp16").find("seqlen_q is 2147483648"), std::string::npos);
  EXPECT_NE(message_of("b2147483647_h2147483647_s2147483647_d64_fp16").find("q has batch"), std::string::npos);
  EXPECT_NE(message_of("b1_h1_s2147483647_d1024_fp16").find("2^40"), std::string::npos);
  EXPECT_NE(message_of("b1_h1_s1_d8_fp16_scale0").find("scale is 0"), std::string::npos);
  EXPECT_NE(message_of("b1_h1_s1_d8_fp16_scale-1").find("scale is -1"), std::string::npos);
  EXPECT_NE(message_of("b1_h1_s1_d8_fp16_scaleinf").find("scale is inf"), std::string::npos);
  EXPECT_NE(message_of("b1_h1_s1_d8_fp16_scalenan").find("scale is nan"), std::string::npos);
  Problem p;
  p.seqlen_kv = -1;
  EXPECT_THROW(p.validate(), Error);
  p.seqlen_kv = 0;
  p.seqlen_q = 0;
  EXPECT_NO_THROW(p.validate());
}

TEST(ProblemTest, PairsAndBytesFollowFromWhatEachRowSees) {
  for (const Mask& mask : masks()) {
    for (const std::int64_t sq : {0, 1, 5, 17, 40}) {
      for (const std::int64_t sk : {0, 1, 5, 17, 40}) {
        Problem p;
        p.seqlen_q = sq;
        p.seqlen_kv = sk;
        p.mask = mask;
        p.validate();
        std::int64_t pairs = 0, rows_with_keys = 0;
        std::set<std::int64_t> read;
        for (std::int64_t row = 0; row < sq; ++row) {
          const std::int64_t own = row + (mask.alignment == Alignment::kTopLeft ? 0 : sk - sq);
          std::int64_t visible = 0;
          for (std::int64_t key = 0; key < sk; ++key) {
            if ((mask.left && key < own - *mask.left) || (mask.right && key > own + *mask.right)) continue;
            ++visible;
            read.insert(key);
          }
          EXPECT_EQ(p.visible_keys(row), visible) << p.id() << " row " << row;
          pairs += visible;
          rows_with_keys += visible > 0 ? 1 : 0;
        }
        const auto keys = static_cast<std::int64_t>(read.size());
        EXPECT_EQ(p.keys_read().size(), keys) << p.id();
        EXPECT_EQ(p.keys_read().begin, keys > 0 ? *read.begin() : p.keys_read().begin) << p.id();
        EXPECT_EQ(p.unmasked_pairs(), pairs) << p.id();
        EXPECT_EQ(p.flops(), 4.0 * 64 * static_cast<double>(pairs));
        const auto elements = static_cast<double>(64 * (rows_with_keys + 2 * keys + sq));
        EXPECT_EQ(p.bytes(), 2 * elements + 4.0 * static_cast<double>(sq)) << p.id();
      }
    }
  }
}

TEST(ProblemTest, ABoundThatCutsNothingIsNotThere) {
  const auto bounds = [](const char* id) {
    const Band<std::int64_t> band = Problem::parse(id).band();
    return std::pair(band.bounded_left, band.bounded_right);
  };
  EXPECT_EQ(bounds("b1_h1_s100_d64_fp16_wl99"), std::pair(false, false));  // the last row sees key 0
  EXPECT_EQ(bounds("b1_h1_s100_d64_fp16_wl98"), std::pair(true, false));
  EXPECT_EQ(bounds("b1_h1_s100_d64_fp16_wr99"), std::pair(false, false));  // the first row sees key 99
  EXPECT_EQ(bounds("b1_h1_s100_d64_fp16_wr98"), std::pair(false, true));
  EXPECT_EQ(bounds("b1_h1_sq1_sk100_d64_fp16_causal_wl1000"), std::pair(false, true));
  EXPECT_EQ(bounds("b1_h1_sq1_sk100_d64_fp16_causal_wl98"), std::pair(true, true));
  EXPECT_EQ(bounds("b1_h1_sq10_sk20_d64_fp16_wl9_tl"), std::pair(false, false));
  EXPECT_EQ(bounds("b1_h1_sq10_sk20_d64_fp16_wl9"), std::pair(true, false));
}

TEST(ProblemTest, AMillionRowsAreCountedAtOnceAndExactly) {
  const Problem p = Problem::parse("b1_h1_s1048576_d128_bf16_causal_wl1023");
  EXPECT_EQ(p.unmasked_pairs(), 1024 * 1025 / 2 + std::int64_t{1048576 - 1024} * 1024);
  // The largest lengths there are: near 2^61 pairs.
  const Problem most = Problem::parse("b1_h1_s1073741823_d1_bf16_wl1073741821");
  EXPECT_EQ(most.unmasked_pairs(), std::int64_t{1073741823} * 1073741823 - 1);
}

TEST(ProblemTest, FlopsCountUnmaskedPairsOfEveryQueryHead) {
  EXPECT_EQ(Problem::parse("b1_h8_s512_d64_fp16").flops(), 4.0 * 8 * 512 * 512 * 64);
  EXPECT_EQ(Problem::parse("b1_h8_s512_d64_fp16_causal").flops(), 4.0 * 8 * (512.0 * 513 / 2) * 64);
  EXPECT_EQ(Problem::parse("b2_h4_hk1_sq1_sk100_d64_dv32_fp16").flops(), 2.0 * (64 + 32) * 100 * 8);
}

TEST(ProblemTest, GroupedHeadsReadKeysOnce) {
  // q 4 heads, k and v 1 head of 100 keys, o 4 heads, lse.
  EXPECT_EQ(Problem::parse("b2_h4_hk1_sq1_sk100_d64_dv32_bf16").bytes(),
            2 * (2.0 * (4 * 64 + 100 * (64 + 32) + 4 * 32) + 4 * 4));
}

TEST(ProblemTest, DecodeIsFewRowsAgainstManyKeys) {
  EXPECT_TRUE(Problem::parse("b1_h32_hk8_sq1_sk32768_d128_bf16").is_decode());
  EXPECT_TRUE(Problem::parse("b64_h32_hk8_sq4_sk4096_d128_bf16_causal").is_decode());
  EXPECT_TRUE(Problem::parse("b1_h32_hk8_sq1_sk32768_d128_bf16_causal_wl127").is_decode());
  EXPECT_FALSE(Problem::parse("b1_h32_hk8_sq1_sk32768_d128_bf16_causal_wl6").is_decode());
  EXPECT_FALSE(Problem::parse("b1_h8_s512_d64_fp16").is_decode());
  EXPECT_FALSE(Problem::parse("b1_h8_s32_d64_fp16").is_decode());
  EXPECT_FALSE(Problem::parse("b1_h8_s1_d64_fp16").is_decode());
  EXPECT_FALSE(Problem::parse("b1_h128_hk1_sq1_sk4096_d128_bf16").is_decode());
  EXPECT_FALSE(Problem::parse("b1_h8_sq0_sk4096_d128_bf16").is_decode());
}

TEST(ProblemTest, ScaleDefaultsToOneOverRootHeadDim) {
  EXPECT_DOUBLE_EQ(Problem::parse("b1_h1_s1_d64_fp16").softmax_scale(), 0.125);
  EXPECT_DOUBLE_EQ(Problem::parse("b1_h1_s1_d64_fp16_scale0.5").softmax_scale(), 0.5);
}

TEST(ProblemTest, LayoutNames) {
  for (const Layout layout : {Layout::kBhsd, Layout::kBshd, Layout::kStrided})
    EXPECT_EQ(parse_layout(to_string(layout)), layout);
  EXPECT_THROW(parse_layout("sbhd"), Error);
}

}  // namespace
}  // namespace flashcore
