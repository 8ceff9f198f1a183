#include "core/ragged.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"
#include "core/operands.h"
#include "core/problem_expressions.h"
#include "core/problem_fields.h"
#include "core/reference.h"

namespace flashcore {
namespace {

using Sequences = std::vector<SequenceLengths>;

TEST(RaggedTest, IdsAndLengths) {
  for (const char* id : {"b8_h32_hk8_s8192_d128_bf16_causal_raggedhalving", "b2_h2_s9_d8_fp16_raggedfull",
                         "b3_h1_sq0_sk5_d8_fp32_softcap30_alibibatch_sink_raggedrandom"}) {
    EXPECT_EQ(Problem::parse(id).id(), id);
    EXPECT_TRUE(Problem::parse(id).ragged());
  }
  EXPECT_EQ(PlacedProblem::parse("b2_h2_s9_d8_fp16_bshd_raggedfull").layout, Layout::kBshd);
  for (const char* bad : {"b2_h2_s9_d8_fp16_ragged", "b2_h2_s9_d8_fp16_raggedfull_raggedfull",
                          "b2_h2_s9_d8_fp16_raggedfixed", "b2000000_h1_s9_d8_fp16_raggedfull"})
    EXPECT_THROW(Problem::parse(bad), Error) << bad;
  EXPECT_EQ(Problem::parse("b2_h2_sq7_sk9_d8_fp16").sequences(), (Sequences{{7, 9}, {7, 9}}));
  EXPECT_EQ(Problem::parse("b2_h2_sq7_sk9_d8_fp16_raggedfull").sequences(), (Sequences{{7, 9}, {7, 9}}));
  EXPECT_EQ(Problem::parse("b5_h2_sq7_sk0_d8_fp16_raggedhalving").sequences(),
            (Sequences{{7, 0}, {3, 0}, {1, 0}, {1, 0}, {1, 0}}));
  const Problem p = Problem::parse("b64_h2_sq40_sk90_d8_fp16_raggedrandom");
  const Sequences drawn = p.sequences();
  EXPECT_EQ(drawn, p.sequences());
  const auto count = [&](auto of) { return std::count_if(drawn.begin(), drawn.end(), of); };
  EXPECT_GT(count([](const auto& s) { return s.q == 0 && s.kv > 0; }), 0);
  EXPECT_GT(count([](const auto& s) { return s.kv == 0 && s.q > 0; }), 0);
  EXPECT_GT(count([](const auto& s) { return s.q == 40; }), 0);
  EXPECT_GT(count([](const auto& s) { return s.kv == 90; }), 0);
  EXPECT_EQ(count([](const auto& s) { return s.q < 0 || s.q > 40 || s.kv < 0 || s.kv > 90; }), 0);
}

// What a ragged problem costs is what its sequences do; operands that there are once for all of them count once.
TEST(RaggedTest, CostsAreThoseOfTheParts) {
  const Problem p = Problem::parse("b3_h4_hk2_sq40_sk90_d16_bf16_causal_wl20_alibi_sink_raggedhalving");
  double flops = 0, bytes = 0;
  std::int64_t pairs = 0;
  for (const SequenceLengths& each : p.sequences()) {
    const Problem one = p.of_sequence(each);
    EXPECT_FALSE(one.ragged());
    flops += one.flops(), pairs += one.unmasked_pairs(), bytes += one.bytes() - 4 * (4 + 4);
  }
  EXPECT_EQ(p.flops(), flops);
  EXPECT_EQ(p.unmasked_pairs(), pairs);
  EXPECT_EQ(p.bytes(), bytes + 4 * (4 + 4));
  EXPECT_EQ(p.total_lengths(), (SequenceLengths{40 + 20 + 10, 90 + 45 + 22}));
  Problem full = Problem::parse("b3_h4_hk2_sq40_sk90_d16_bf16_causal_wl20_raggedfull"), fixed = full;
  fixed.lengths = Lengths::kFixed;
  EXPECT_EQ(full.flops(), fixed.flops());
  EXPECT_EQ(full.bytes(), fixed.bytes());
  EXPECT_TRUE(std::isinf(problem_distance(full, fixed)));
}

// A side that some lengths within the bounds are cut on counts as bounded, and only such a side.
TEST(RaggedTest, TheBandOfTheBoundsSaysWhichSidesAnyLengthsAreCutOn) {
  for (const char* mask : {"", "_causal", "_causaltl", "_wl3", "_wr3", "_wl3_wr2_tl", "_wl6", "_wl7_tl", "_wr6",
                           "_wr8_tl", "_causal_wl7", "_wl8_wr1"}) {
    const Problem p = Problem::parse("b1_h1_sq7_sk9_d8_fp16" + std::string(mask) + "_raggedfull");
    bool left = false, right = false;
    for (std::int64_t q = 0; q <= 7; ++q)
      for (std::int64_t kv = 0; kv <= 9; ++kv) {
        const Band<std::int64_t> band = p.of_sequence({q, kv}).band();
        for (std::int64_t row = 0; row < q; ++row)
          left = left || band.begin_of(row) > 0, right = right || band.end_of(row) < kv;
      }
    EXPECT_EQ(p.band().bounded_left, left) << p.id();
    EXPECT_EQ(p.band().bounded_right, right || p.mask.is_causal()) << p.id();
  }
}

TEST(RaggedTest, TensorsArePacked) {
  const Problem p = Problem::parse("b3_h4_hk2_sq8_sk6_d16_dv24_fp16_raggedhalving");
  const ProblemLayouts heads_first = make_layouts(p, Layout::kBhsd), rows_first = make_layouts(p, Layout::kBshd);
  EXPECT_EQ(heads_first.total_q, 8 + 4 + 2);
  EXPECT_EQ(heads_first.total_kv, 6 + 3 + 1);
  EXPECT_EQ(heads_first.q.batch, 1);
  EXPECT_EQ(heads_first.q.rows, 14);
  EXPECT_EQ(heads_first.o.stride_head, 14 * 24);
  EXPECT_EQ(rows_first.v.stride_row, 2 * 24);
  EXPECT_EQ(rows_first.lse_elements, 4 * 14);
  const ProblemLayouts given = make_layouts(p, Layout::kBshd, {100, 200});
  EXPECT_EQ(given.q.rows, 100);
  EXPECT_EQ(given.k.rows, 200);
  EXPECT_EQ(make_layouts(Problem::parse("b3_h4_sq8_sk6_d16_fp16"), Layout::kBhsd).total_kv, 18);
  const Boundaries boundaries = boundaries_of(p);
  EXPECT_EQ(boundaries.q, (std::vector<std::int64_t>{0, 8, 12, 14}));
  EXPECT_EQ(sequence_of_row({0, 0, 3, 3, 5}, 0), 1);
  EXPECT_EQ(sequence_of_row({0, 0, 3, 3, 5}, 3), 3);
}

// The reference of a ragged batch is that of each sequence by itself, whatever else lies in the tensors.
TEST(RaggedTest, TheReferenceIsThatOfEachSequence) {
  for (const char* id :
       {"b4_h4_hk2_sq20_sk30_d8_fp16_causal_raggedhalving", "b6_h2_sq17_sk9_d8_fp32_wl5_bshd_raggedrandom",
        "b3_h2_s11_d16_e4m3_perhead_strided_raggedhalving",
        "b3_h2_hk1_sq9_sk14_d8_bf16_causal_softcap5_alibibatch_sink_raggedhalving"}) {
    const PlacedProblem p = PlacedProblem::parse(id);
    const AttentionInputs in = make_inputs(p, Pattern::kNormal, 3);
    const Reference all = reference_forward(p, in, {});
    const Boundaries at = boundaries_of(p);
    const Sequences sequences = p.sequences();
    ASSERT_EQ(all.rows, p.heads_q * at.q.back());
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const Problem one = p.of_sequence(sequences[s]);
      const Reference ref = reference_forward(one, inputs_of_sequence(p, in, at, static_cast<std::int64_t>(s)), {});
      for (std::int64_t h = 0; h < p.heads_q; ++h)
        for (std::int64_t row = 0; row < one.seqlen_q; ++row) {
          const std::int64_t packed = h * at.q.back() + at.q[s] + row, own = h * one.seqlen_q + row;
          ASSERT_EQ(all.lse[static_cast<std::size_t>(packed)], ref.lse[static_cast<std::size_t>(own)]) << id;
          for (std::int64_t d = 0; d < p.head_dim_v; ++d)
            ASSERT_EQ(all.o[static_cast<std::size_t>(packed * p.head_dim_v + d)],
                      ref.o[static_cast<std::size_t>(own * p.head_dim_v + d)])
                << id;
        }
    }
    // The same rows by a sample.
    const RowSample sample = choose_rows(p, 1, 5);
    const Reference some = reference_forward(p, in, sample);
    ASSERT_EQ(static_cast<std::size_t>(some.rows), sample.rows.size());
    ASSERT_GT(some.rows, 0);
    for (std::size_t i = 0; i < sample.rows.size(); ++i) {
      const auto& [b, h, row] = sample.rows[i];
      ASSERT_EQ(b, 0);
      ASSERT_EQ(some.lse[i], all.lse[static_cast<std::size_t>(h * at.q.back() + row)]) << id;
    }
    std::vector<float> lse(all.ideal_lse);
    EXPECT_EQ(gather_lse(p, lse, sample), some.ideal_lse);
  }
}

void expect_a_batch(const PlacedProblem& ragged) {
  PlacedProblem fixed = ragged;
  fixed.lengths = Lengths::kFixed;
  const AttentionInputs packed = make_inputs(ragged, Pattern::kNormal, 1);
  AttentionInputs batched = make_inputs(fixed, Pattern::kNormal, 1);
  // [batch, seqlen, heads, dim] is [total, heads, dim].
  batched.q.data = packed.q.data, batched.k.data = packed.k.data, batched.v.data = packed.v.data;
  const Reference a = reference_forward(ragged, packed, {}), b = reference_forward(fixed, batched, {});
  for (std::int64_t s = 0; s < 3; ++s)
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t row = 0; row < 7; ++row)
        EXPECT_EQ(a.lse[static_cast<std::size_t>(h * 21 + s * 7 + row)],
                  b.lse[static_cast<std::size_t>((s * 4 + h) * 7 + row)]);
}

// Sequences of equal lengths are a batch: the same values packed must give the same results.
TEST(RaggedTest, EqualSequencesAreABatch) {
  const PlacedProblem plain = PlacedProblem::parse("b3_h4_hk2_sq7_sk11_d8_fp32_causal_bshd_raggedfull");
  PlacedProblem expressed = plain;
  set_expressions(expressed, "s + bias[b, h, i, j]", "(j + b) % 3 != 0 || gate[b] < 0.1 || j == seqlen_kv - 1",
                  parse_tensors("bias: float[4], gate: float[1]"));
  expect_a_batch(plain);
  expect_a_batch(expressed);
}

// What a mask leaves of a ragged batch is counted by sequence, each with its own place in the batch and lengths.
TEST(RaggedTest, PairsOfAMaskFunctionAreThoseOfTheParts) {
  Problem p = Problem::parse("b3_h2_sq8_sk12_d8_fp32_raggedhalving");
  const auto pairs = [&](const char* mask) {
    set_expressions(p, "", mask, {});
    return p.unmasked_pairs();
  };
  // 8 x 12, 4 x 6, 2 x 3.
  EXPECT_EQ(pairs("j >= 0"), 96 + 24 + 6);
  EXPECT_EQ(pairs("b == 1"), 24);
  EXPECT_EQ(pairs("j < seqlen_kv - 2"), 80 + 16 + 2);
  EXPECT_EQ(pairs("i == seqlen_q - 1 && h == 0"), 6 + 3 + 2);  // the mean over two heads, each rounded
  EXPECT_EQ(p.flops(), 2.0 * 16 * 11 * 2);
}

TEST(RaggedTest, DataOfSequencesDiffers) {
  const PlacedProblem p = PlacedProblem::parse("b2_h1_s5_d8_fp32_raggedfull");
  const AttentionInputs in = make_inputs(p, Pattern::kNormal, 1);
  EXPECT_NE(in.k.at(0, 0, 0, 0), in.k.at(0, 0, 5, 0));
  EXPECT_NE(in.q.at(0, 0, 0, 0), in.q.at(0, 0, 5, 0));
}

TEST(RaggedTest, ShorterSequencesFitTheOperandsAndAreOfEveryKind) {
  for (const char* id : {"b1_h1_sq40_sk50_d8_fp16_raggedfull", "b2_h1_sq40_sk50_d8_fp16_raggedfull",
                         "b3_h1_sq40_sk50_d8_fp16_raggedfull", "b9_h1_sq40_sk50_d8_fp16_raggedhalving",
                         "b6_h1_sq1_sk70_d8_fp16_raggedrandom", "b2_h1_sq0_sk0_d8_fp16_raggedfull"}) {
    const Problem p = Problem::parse(id);
    const std::vector<SequenceLengths> own = p.sequences();
    const auto sets = shorter_sequences(p);
    EXPECT_EQ(sets, shorter_sequences(p)) << "lengths follow from the problem";
    bool single = false, no_keys = false, no_rows = false, shorter = false;
    for (const std::vector<SequenceLengths>& set : sets) {
      ASSERT_EQ(set.size(), own.size()) << id;
      for (std::size_t s = 0; s < set.size(); ++s) {
        EXPECT_LE(set[s].q, own[s].q) << id;
        EXPECT_LE(set[s].kv, own[s].kv) << id;
        single |= set[s] == SequenceLengths{1, 1};
        no_keys |= set[s].q > 0 && set[s].kv == 0;
        no_rows |= set[s].q == 0 && set[s].kv > 0;
        shorter |= set[s].kv > 1 && set[s].kv < own[s].kv;
      }
    }
    if (p.lengths == Lengths::kRandom || p.seqlen_q == 0) continue;
    EXPECT_TRUE(single && no_keys && no_rows && shorter) << id;
  }
}

TEST(RaggedTest, RowsThatCountArePackedToTheFront) {
  const PlacedProblem p = PlacedProblem::parse("b3_h2_sq4_sk6_d8_fp32_raggedfull");
  for (const Layout layout : {Layout::kBhsd, Layout::kBshd, Layout::kStrided}) {
    PlacedProblem placed = p;
    placed.layout = layout;
    const AttentionInputs in = make_inputs(placed, Pattern::kNormal, 1);
    HostTensor packed = in.k;
    pack_rows(packed, {0, 6, 12, 18}, {0, 2, 2, 7});
    for (std::int64_t head = 0; head < 2; ++head)
      for (std::int64_t column = 0; column < 8; ++column) {
        for (std::int64_t row = 0; row < 2; ++row)
          EXPECT_EQ(packed.at(0, head, row, column), in.k.at(0, head, row, column));
        for (std::int64_t row = 0; row < 5; ++row)
          EXPECT_EQ(packed.at(0, head, 2 + row, column), in.k.at(0, head, 12 + row, column));
        for (std::int64_t row = 7; row < 18; ++row)
          EXPECT_EQ(packed.at(0, head, row, column), in.k.at(0, head, row, column));
      }
  }
}

// As a kernel serves them: the tensors of before, of which the sequences take the first rows.
TEST(RaggedTest, TheReferenceOfShorterSequencesIsThatOfEachByItself) {
  for (const char* id :
       {"b5_h2_hk1_sq12_sk20_d8_fp32_causal_raggedfull", "b3_h2_sq7_sk30_d8_fp32_raggedhalving_page8"}) {
    const PlacedProblem p = PlacedProblem::parse(id);
    const AttentionInputs in = make_inputs(p, Pattern::kNormal, 1);
    for (const std::vector<SequenceLengths>& set : shorter_sequences(p)) {
      const RowSample rows = choose_rows(p, set, 1e12, 1);
      const Reference all = reference_forward(p, set, in, rows);
      const Boundaries at = boundaries_of(set);
      ASSERT_EQ(all.rows, p.heads_q * at.q.back()) << id;
      for (std::size_t s = 0; s < set.size(); ++s) {
        const Problem one = p.of_sequence(set[s]);
        const Reference own = reference_forward(one, inputs_of_sequence(p, in, at, static_cast<std::int64_t>(s)), {});
        for (std::int64_t head = 0; head < p.heads_q; ++head)
          for (std::int64_t row = 0; row < set[s].q; ++row)
            EXPECT_EQ(all.lse[static_cast<std::size_t>(head * at.q.back() + at.q[s] + row)],
                      own.lse[static_cast<std::size_t>(head * set[s].q + row)])
                << id;
      }
    }
  }
}

}  // namespace
}  // namespace flashcore
