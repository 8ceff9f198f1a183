// Softcap, ALiBi and sinks in the reference: rows without keys, and what its bounds let pass of a wrong kernel.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "core/error.h"
#include "core/reference.h"

namespace flashcore {
namespace {

// Whether an idealised kernel that computes `done` of the inputs passes as one of `asked`.
bool passes(const PlacedProblem& asked, const AttentionInputs& of_asked, const PlacedProblem& done,
            const AttentionInputs& of_done) {
  const Reference reference = reference_forward(asked, of_asked, {});
  const Reference ideal = ideal_forward(done, of_done);
  return within(compare(asked, reference, ideal.ideal_o, ideal.ideal_lse), error_bound(asked, reference));
}

struct Wrong {
  const char* what;
  const char* problem;
  std::function<void(PlacedProblem&, AttentionInputs&)> how;
};

TEST(ScoresTest, BoundsTellWrongKernelsFromRightOnes) {
  const double kLn2 = std::log(2.0);
  const Wrong all[] = {
      {"cap off by 10^-4", "b1_h2_s200_d64_fp16_causal_softcap5", [](auto& p, auto&) { *p.softcap *= 1.0001; }},
      {"no cap, where it is far", "b1_h2_s200_d64_bf16_softcap50", [](auto& p, auto&) { p.softcap.reset(); }},
      {"cap applied to what is not scaled", "b1_h2_s200_d64_fp16_softcap30",
       [](auto& p, auto&) { p.scale = 1, p.softcap = 30; }},
      {"sink counted twice", "b1_h3_s200_d64_bf16_causal_sink",
       [&](auto&, auto& in) {
         for (float& sink : in.sink) sink += static_cast<float>(kLn2);
       }},
      {"sink of the neighbour", "b1_h3_s200_d64_fp16_sink", [](auto&, auto& in) { std::swap(in.sink[0], in.sink[2]); }},
      {"sink left out", "b1_h3_sq100_sk60_d64_fp16_causal_sink",
       [](auto&, auto& in) { in.sink[1] = -std::numeric_limits<float>::infinity(); }},
      {"slope of the neighbour", "b1_h4_s200_d64_bf16_causal_alibi",
       [](auto&, auto& in) { std::swap(in.alibi[1], in.alibi[2]); }},
      {"slope off by 10^-4", "b2_h2_s200_d64_fp16_causal_alibibatch", [](auto&, auto& in) { in.alibi[0] *= 1.0001f; }},
      {"distance without its sign", "b1_h2_sq100_sk200_d64_fp16_alibi",
       [](auto&, auto& in) {
         for (float& slope : in.alibi) slope = -slope;
       }},
  };
  for (const Wrong& wrong : all) {
    const PlacedProblem p = PlacedProblem::parse(wrong.problem);
    const AttentionInputs in = make_inputs(p, Pattern::kNormal, 1);
    EXPECT_TRUE(passes(p, in, p, in)) << wrong.problem;
    PlacedProblem done = p;
    AttentionInputs of_done = in;
    wrong.how(done, of_done);
    EXPECT_FALSE(passes(p, in, done, of_done)) << wrong.what;
  }
}

TEST(ScoresTest, ARowWithoutKeysHasItsSink) {
  const PlacedProblem p = PlacedProblem::parse("b1_h2_sq20_sk5_d8_fp16_causal_sink");
  AttentionInputs in = make_inputs(p, Pattern::kNormal, 1);
  in.sink = {1.5f, -std::numeric_limits<float>::infinity()};
  const Reference reference = reference_forward(p, in, {});
  EXPECT_EQ(reference.lse[0], 1.5);
  EXPECT_EQ(reference.o[0], 0);
  EXPECT_EQ(reference.lse[20], -std::numeric_limits<double>::infinity());  // without a sink there is none
  EXPECT_TRUE(std::isfinite(reference.lse[39]));
  EXPECT_TRUE(within(compare(p, reference, reference.ideal_o, reference.ideal_lse), error_bound(p, reference)));
  in.sink = {std::nanf(""), std::numeric_limits<float>::infinity()};
  const Reference invalid = reference_forward(p, in, {});
  for (const std::size_t row : {0, 19, 20, 39}) EXPECT_TRUE(std::isnan(invalid.lse[row])) << row;
}

TEST(ScoresTest, ACapBoundsWhatIsInfinite) {
  const PlacedProblem p = PlacedProblem::parse("b1_h1_s4_d8_fp32_softcap3");
  AttentionInputs in = make_inputs(p, Pattern::kConstant, 1);
  for (std::int64_t d = 0; d < 8; ++d) in.q.set(0, 0, 0, d, d == 0 ? std::numeric_limits<float>::infinity() : 1.0f);
  const Reference reference = reference_forward(p, in, {});
  EXPECT_NEAR(std::abs(reference.lse[0] - std::log(4.0)), 3, 1e-6);
}

TEST(ScoresTest, FieldsHaveTheirWordsAndRanges) {
  const Problem p = Problem::parse("b1_h2_s8_d8_fp32_causal_scale0.5_softcap30_alibi_sink");
  EXPECT_EQ(*p.softcap, 30);
  EXPECT_EQ(p.alibi, Alibi::kHead);
  EXPECT_EQ(p.alibi_count() + 10 * p.sink_count(), 22);
  EXPECT_EQ(p.id(), "b1_h2_s8_d8_fp32_causal_scale0.5_softcap30_alibi_sink");
  EXPECT_EQ(Problem::parse("b3_h2_s8_d8_fp32_alibibatch").alibi_count(), 6);
  for (const char* id : {"b1_h1_s1_d1_fp32_softcap0", "b1_h1_s1_d1_fp32_softcap-1", "b1_h1_s1_d1_fp32_softcap1e7",
                         "b1_h1_s1_d1_fp32_softcapnan", "b1_h1_s1_d1_fp32_softcapinf", "b1_h1_s1_d1_fp32_sink_alibi"})
    EXPECT_THROW((void)Problem::parse(id), Error) << id;
}

}  // namespace
}  // namespace flashcore
