#include "core/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "core/error.h"
#include "core/operands.h"

namespace flashcore {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

AttentionInputs empty_inputs(const PlacedProblem& p) {
  const ProblemLayouts at = make_layouts(p);
  return {HostTensor(p.dtype, at.q), HostTensor(p.dtype, at.k), HostTensor(p.dtype, at.v)};
}

// Attention by its formula, one row, no blocking: what the fast reference is checked against.
std::vector<double> naive_row(const PlacedProblem& p, const AttentionInputs& in, std::int64_t b, std::int64_t h,
                              std::int64_t row, double* lse) {
  const std::int64_t head = h / p.group_size();
  std::vector<double> scores, o(static_cast<std::size_t>(p.head_dim_v), 0.0);
  double maximum = -kInf, sum = 0;
  const KeyRange<std::int64_t> keys = p.band().keys_of_row(row);
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    double s = 0;
    for (std::int64_t d = 0; d < p.head_dim; ++d)
      s += static_cast<double>(in.q.at(b, h, row, d)) * in.k.at(b, head, j, d);
    s *= static_cast<double>(descale_q_at(p, in.descale_q, b, h, row)) * descale_k_at(p, in.descale_k, b, head, j);
    s *= p.softmax_scale();
    if (p.softcap) s = *p.softcap * std::tanh(s / *p.softcap);
    s -= slope_at(p, in.alibi, b, h) * std::abs(static_cast<double>(row + p.seqlen_kv - p.seqlen_q - j));
    scores.push_back(s);
    maximum = std::max(maximum, s);
  }
  const double sink = p.sink ? in.sink[static_cast<std::size_t>(h)] : -kInf;
  maximum = std::max(maximum, sink);
  if (p.sink) sum = std::exp(sink - maximum);
  for (double& s : scores) sum += s = std::exp(s - maximum);
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const std::int64_t key = keys.begin + static_cast<std::int64_t>(j);
    for (std::size_t d = 0; d < o.size(); ++d)
      o[d] += scores[j] / sum * in.v.at(b, head, key, static_cast<std::int64_t>(d)) *
              static_cast<double>(descale_v_at(p, in.descale_v, b, head, key));
  }
  *lse = sum == 0 ? -kInf : maximum + std::log(sum);
  return o;
}

TEST(ReferenceTest, AgreesWithTheFormulaOnEveryKindOfProblem) {
  for (const char* id : {"b1_h1_s1_d1_fp32",
                         "b2_h6_hk2_s37_d24_dv40_fp16_causal",
                         "b1_h2_sq50_sk19_d64_bf16_causal_bshd",
                         "b1_h5_hk1_sq19_sk50_d80_fp16_causaltl_strided",
                         "b1_h3_sq7_sk129_d33_dv5_fp32_scale0.5",
                         "b1_h2_s99_d16_fp16_causal_wl13",
                         "b1_h2_sq40_sk90_d16_bf16_wl20_wr3",
                         "b1_h2_sq90_sk40_d16_fp32_wl5_tl",
                         "b1_h4_hk2_sq3_sk200_d16_fp32_causal_wl33",
                         "b2_h6_hk2_s37_d24_dv40_e4m3_perhead_causal",
                         "b1_h2_s50_d16_e5m2_ofp16",
                         "b2_h6_hk2_sq37_sk41_d24_dv40_e4m3_pertoken_causal_strided",
                         "b1_h4_hk2_s50_d16_e5m2_pertoken_softcap5_alibi",
                         "b1_h2_s50_d16_e4m3_oe4m3_unscaled_strided",
                         "b1_h2_s50_d16_fp16_softcap2",
                         "b2_h4_hk2_sq40_sk70_d16_bf16_causal_alibi",
                         "b2_h3_sq40_sk30_d16_fp32_wr9_alibibatch",
                         "b2_h4_hk2_sq9_sk70_d16_fp32_kvint8_pertoken_causal",
                         "b2_h4_hk2_sq9_sk70_d16_dv34_fp32_kvint4_pertoken_causal_strided",
                         "b2_h4_hk2_sq9_sk70_d16_bf16_kve4m3_pertoken_wl9_softcap5",
                         "b1_h4_hk2_sq50_sk30_d16_fp16_causal_sink",
                         "b2_h4_s37_d24_e4m3_perhead_causal_softcap5_alibibatch_sink"}) {
    const PlacedProblem p = PlacedProblem::parse(id);
    const AttentionInputs in = make_inputs(p, Pattern::kNormal, 3);
    const Reference ref = reference_forward(p, in, {});
    ASSERT_EQ(ref.rows, p.batch * p.heads_q * p.seqlen_q);
    std::int64_t at = 0;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t h = 0; h < p.heads_q; ++h) {
        for (std::int64_t row = 0; row < p.seqlen_q; ++row, ++at) {
          double lse = 0;
          const std::vector<double> o = naive_row(p, in, b, h, row, &lse);
          if (p.visible_keys(row) == 0 && !p.sink) {
            ASSERT_EQ(ref.lse[static_cast<std::size_t>(at)], -kInf) << id;
          } else {
            ASSERT_NEAR(ref.lse[static_cast<std::size_t>(at)], lse, 1e-12) << id;
          }
          for (std::size_t d = 0; d < o.size(); ++d) {
            ASSERT_NEAR(ref.o[static_cast<std::size_t>(at * p.head_dim_v) + d], o[d], 1e-12) << id << " row " << row;
          }
        }
      }
    }
  }
}

TEST(ReferenceTest, TheIdealKernelHasTheExpectedErrorOnNormalData) {
  struct Expected {
    const char* id;
    double rel, predicted;
  };
  // Of 8 bits P is off by 0.425 * 2^-4 of each probability; what tensor cores cut off of sums is predicted beside.
  const Expected expected[] = {{"b1_h2_s512_d64_fp16", 2.8e-4, 2.8e-4},
                               {"b1_h2_s512_d64_bf16", 2.3e-3, 2.3e-3},
                               {"b1_h2_s512_d64_e4m3", 2.5e-2, 3.0e-2}};
  for (const auto& [id, rel, predicted] : expected) {
    const PlacedProblem p = PlacedProblem::parse(id);
    const Reference ref = reference_forward(p, make_inputs(p, Pattern::kNormal, 1), {});
    const OutputError error = compare(p, ref, ref.ideal_o, ref.ideal_lse);
    EXPECT_NEAR(error.rel, rel, 0.15 * rel) << id;
    // The prediction by theory stands on its own feet: it must find the same figure.
    double predicted2 = 0, norm2 = 0;
    for (const float of_row : ref.predicted_o) predicted2 += static_cast<double>(of_row) * of_row;
    for (const double value : ref.o) norm2 += value * value;
    EXPECT_NEAR(std::sqrt(predicted2 / norm2), predicted, 0.15 * predicted) << id;
  }
}

TEST(ReferenceTest, Fp32BoundIsAFewUlps) {
  const PlacedProblem p = PlacedProblem::parse("b1_h2_s512_d64_fp32");
  const Reference ref = reference_forward(p, make_inputs(p, Pattern::kNormal, 1), {});
  const OutputError error = compare(p, ref, ref.ideal_o, ref.ideal_lse);
  const ErrorBound bound = error_bound(p, ref);
  EXPECT_GT(error.rel, 1e-8);
  EXPECT_LT(error.rel, 1e-6);
  EXPECT_GT(bound.rel, 5e-7);
  EXPECT_LT(bound.rel, 1e-5);
  EXPECT_TRUE(within(error, bound));
}

TEST(ReferenceTest, RowsWithoutKeysAreZeroAndMinusInfinity) {
  const PlacedProblem p = PlacedProblem::parse("b1_h1_sq8_sk3_d16_fp16_causal");
  AttentionInputs in = make_inputs(p, Pattern::kNormal, 1);
  // NaN in what a row does not see must not reach it.
  in.v.set(0, 0, 2, 0, std::numeric_limits<float>::quiet_NaN());
  in.k.set(0, 0, 2, 0, std::numeric_limits<float>::quiet_NaN());
  const Reference ref = reference_forward(p, in, {});
  for (std::size_t row = 0; row < 5; ++row) {
    EXPECT_EQ(ref.lse[row], -kInf);
    EXPECT_EQ(ref.ideal_lse[row], -kInf);
    for (std::size_t d = 0; d < 16; ++d) {
      EXPECT_EQ(ref.o[row * 16 + d], 0.0);
      EXPECT_EQ(ref.ideal_o[row * 16 + d], 0.0f);
    }
  }
  for (const std::size_t row : {5u, 6u}) {
    EXPECT_TRUE(std::isfinite(ref.lse[row]));
    EXPECT_TRUE(std::isfinite(ref.o[row * 16]));
    EXPECT_TRUE(std::isfinite(ref.ideal_o[row * 16]));
  }
  EXPECT_TRUE(std::isnan(ref.lse[7]));
  EXPECT_TRUE(std::isnan(ref.o[7 * 16 + 5]));
  EXPECT_TRUE(std::isnan(ref.ideal_o[7 * 16 + 5]));
}

TEST(ReferenceTest, ZeroLengths) {
  const PlacedProblem no_keys = PlacedProblem::parse("b1_h2_sq3_sk0_d8_fp16");
  const Reference masked = reference_forward(no_keys, make_inputs(no_keys, Pattern::kNormal, 1), {});
  EXPECT_EQ(masked.rows, 6);
  for (const double lse : masked.lse) EXPECT_EQ(lse, -kInf);
  for (const double o : masked.o) EXPECT_EQ(o, 0.0);
  const PlacedProblem no_rows = PlacedProblem::parse("b1_h2_sq0_sk3_d8_fp16");
  const Reference nothing = reference_forward(no_rows, make_inputs(no_rows, Pattern::kNormal, 1), {});
  EXPECT_EQ(nothing.rows, 0);
  EXPECT_TRUE(within(compare(no_rows, nothing, {}, {}), error_bound(no_rows, nothing)));
}

TEST(ReferenceTest, InfiniteScores) {
  const PlacedProblem p = PlacedProblem::parse("b1_h1_sq4_sk3_d1_dv2_fp32_scale1");
  AttentionInputs in = empty_inputs(p);
  const float inf = std::numeric_limits<float>::infinity();
  const float q[] = {1, -1, inf, -inf};
  const float k[] = {2, inf, 1};
  for (std::int64_t i = 0; i < 4; ++i) in.q.set(0, 0, i, 0, q[i]);
  for (std::int64_t j = 0; j < 3; ++j) {
    in.k.set(0, 0, j, 0, k[j]);
    in.v.set(0, 0, j, 0, static_cast<float>(j));
    in.v.set(0, 0, j, 1, 1);
  }
  const Reference ref = reference_forward(p, in, {});
  EXPECT_TRUE(std::isnan(ref.o[0]) && std::isnan(ref.lse[0]));  // +inf is the maximum
  // The infinite key counts for nothing; the others have scores -2 and -1.
  EXPECT_DOUBLE_EQ(ref.lse[1], std::log(std::exp(-2.0) + std::exp(-1.0)));
  EXPECT_DOUBLE_EQ(ref.o[2], 2 / (1 + std::exp(-1.0)));
  EXPECT_DOUBLE_EQ(ref.o[3], 1.0);
  EXPECT_TRUE(std::isnan(ref.o[4]) && std::isnan(ref.lse[2]));
  EXPECT_EQ(ref.o[6], 0.0);  // all scores -inf
  EXPECT_EQ(ref.lse[3], -kInf);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(std::isnan(ref.o[i]), std::isnan(ref.ideal_o[i]));
}

TEST(ReferenceTest, ASampleIsTheSameRowsAndThreadsDoNotMatter) {
  const PlacedProblem p = PlacedProblem::parse("b2_h4_hk2_s150_d40_bf16_causal");
  const AttentionInputs in = make_inputs(p, Pattern::kNormal, 9);
  const Reference all = reference_forward(p, in, {}, 1);
  RowSample sample;
  sample.all = false;
  sample.rows = {{1, 3, 149}, {0, 0, 0}, {1, 2, 5}, {0, 3, 64}, {0, 0, 0}, {1, 3, 0}};  // in no order, one twice
  for (const int threads : {1, 3}) {
    const Reference some = reference_forward(p, in, sample, threads);
    ASSERT_EQ(some.rows, 6);
    for (std::size_t i = 0; i < sample.rows.size(); ++i) {
      const auto& [b, h, row] = sample.rows[i];
      const auto at = static_cast<std::size_t>((b * 4 + h) * 150 + row);
      EXPECT_NEAR(some.lse[i], all.lse[at], 1e-13);
      EXPECT_EQ(some.ideal_lse[i], all.ideal_lse[at]);
      for (std::size_t d = 0; d < 40; ++d) EXPECT_NEAR(some.o[i * 40 + d], all.o[at * 40 + d], 1e-14);
    }
  }
  const Reference again = reference_forward(p, in, {}, 3);
  EXPECT_EQ(again.o, all.o);
  EXPECT_EQ(again.ideal_o, all.ideal_o);
}

TEST(ReferenceTest, GatherTakesTheRowsOfTheSample) {
  const PlacedProblem p = PlacedProblem::parse("b2_h2_s5_d3_fp32_strided");
  const AttentionInputs in = make_inputs(p, Pattern::kNormal, 9);
  RowSample sample;
  sample.all = false;
  sample.rows = {{1, 0, 4}, {0, 1, 2}};
  const std::vector<float> some = gather_rows(in.q, sample), all = gather_rows(in.q, {});
  ASSERT_EQ(some.size(), 6u);
  ASSERT_EQ(all.size(), 60u);
  EXPECT_EQ(some[0], in.q.at(1, 0, 4, 0));
  EXPECT_EQ(some[5], in.q.at(0, 1, 2, 2));
  EXPECT_EQ(all[3], in.q.at(0, 0, 1, 0));
  std::vector<float> lse(20);
  for (std::size_t i = 0; i < lse.size(); ++i) lse[i] = static_cast<float>(i);
  EXPECT_EQ(gather_lse(p, lse, sample), (std::vector<float>{14, 7}));
  EXPECT_EQ(gather_lse(p, lse, {}), lse);
}

TEST(ReferenceTest, ChooseRowsTakesAllWhenCheapElseEdgesAndEveryHead) {
  const PlacedProblem p = PlacedProblem::parse("b2_h4_s1000_d64_fp16_causal");
  EXPECT_TRUE(choose_rows(p, p.flops(), 1).all);
  const double budget = p.flops() / 50;
  const RowSample sample = choose_rows(p, budget, 1);
  ASSERT_FALSE(sample.all);
  std::set<std::int64_t> heads, first_head, last_head;
  double flops = 0;
  for (const auto& [b, h, row] : sample.rows) {
    ASSERT_TRUE(row >= 0 && row < 1000);
    heads.insert(b * 4 + h);
    if (b == 0 && h == 0) first_head.insert(row);
    if (b == 1 && h == 3) last_head.insert(row);
    flops += 256.0 * static_cast<double>(p.visible_keys(row));
  }
  EXPECT_EQ(heads.size(), 8u);
  EXPECT_NEAR(flops, budget, 0.1 * budget);
  for (const std::int64_t row : {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 999})
    EXPECT_TRUE(first_head.contains(row)) << row;
  for (const std::int64_t row : {0, 959, 960, 961, 991, 992, 993, 999}) EXPECT_TRUE(last_head.contains(row)) << row;
  // Seeded: the same again, another with another seed; and no row twice.
  const auto key = [](const RowSample& s) {
    std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> rows;
    for (const auto& [b, h, row] : s.rows) rows.emplace(b, h, row);
    return rows;
  };
  EXPECT_EQ(key(sample), key(choose_rows(p, budget, 1)));
  EXPECT_NE(key(sample), key(choose_rows(p, budget, 2)));
  EXPECT_EQ(key(sample).size(), sample.rows.size());
  // A budget for less than the edges still has them; one just short of everything ends.
  EXPECT_GE(choose_rows(p, 1, 1).rows.size(), 20u);
  EXPECT_GT(choose_rows(p, p.flops() * 0.999, 1).rows.size(), 4000u);
  EXPECT_FALSE(choose_rows(PlacedProblem::parse("b1_h1_sq1_sk4096_d64_fp16"), 1, 1).rows.empty());
}

}  // namespace
}  // namespace flashcore
