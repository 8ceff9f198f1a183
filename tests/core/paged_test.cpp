#include "core/paged.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "core/error.h"
#include "core/operands.h"
#include "core/problem_fields.h"
#include "core/ragged.h"
#include "core/reference.h"
#include "core/suite.h"

namespace flashcore {
namespace {

constexpr const char* kDecode = "b5_h4_hk2_sq1_sk70_d16_bf16_raggedfull_page16";
constexpr const char* kRandom = "b6_h4_hk2_sq20_sk90_d8_fp16_causal_raggedrandom_page7";

std::span<const std::int32_t> row_of(const PlacedProblem& p, const AttentionInputs& in, std::int64_t s) {
  const ProblemLayouts l = make_layouts(p);
  return std::span(in.block_table)
      .subspan(static_cast<std::size_t>(s * l.table_stride), static_cast<std::size_t>(l.max_pages));
}

TEST(PagedTest, IdsAndFields) {
  for (const char* id : {kDecode, kRandom, "b2_h2_s9_d8_e4m3_perhead_sink_raggedhalving_page65536"}) {
    EXPECT_EQ(Problem::parse(id).id(), id);
    EXPECT_TRUE(Problem::parse(id).paged());
  }
  EXPECT_EQ(Problem::parse(kDecode).page_size, 16);
  EXPECT_EQ(PlacedProblem::parse("b2_h2_s9_d8_fp16_bshd_raggedfull_page4").layout, Layout::kBshd);
  for (const char* bad :
       {"b2_h2_s9_d8_fp16_page16", "b2_h2_s9_d8_fp16_raggedfull_page", "b2_h2_s9_d8_fp16_raggedfull_page65537",
        "b2_h2_s9_d8_fp16_raggedfull_page-1", "b2_h2_s9_d8_fp16_page16_raggedfull"})
    EXPECT_THROW(Problem::parse(bad), Error) << bad;
  try {
    Problem::parse("b2_h2_s9_d8_fp16_page16");
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("page_size is 16 and lengths is fixed"), std::string::npos)
        << error.what();
  }
  const Suite suite = parse_suite(
      "name: x\nproblems:\n  - {name: a, num_heads: 2, seq_len: 9, head_dim: 8, dtype: fp16, lengths: full, page_size: "
      "4}\n",
      "x.yaml");
  EXPECT_EQ(suite.problems[0].problem.id(), "b1_h2_s9_d8_fp16_raggedfull_page4");
  const Problem paged = Problem::parse(kDecode), small = Problem::parse("b5_h4_hk2_sq1_sk70_d16_bf16_raggedfull_page8"),
                dense = Problem::parse("b5_h4_hk2_sq1_sk70_d16_bf16_raggedfull");
  EXPECT_TRUE(std::isinf(problem_distance(paged, dense)));
  EXPECT_FALSE(std::isinf(problem_distance(paged, small)));
  EXPECT_EQ(compiled_value("paged", paged), 1);
  EXPECT_EQ(compiled_value("paged", dense), 0);
}

// Every simpler problem is one; the boldest has no pages; a batch that is not ragged any more has none either.
TEST(PagedTest, ShrinksToDense) {
  bool dense = false, fixed = false;
  for (const Problem& p : simpler_problems(Problem::parse(kRandom))) {
    EXPECT_NO_THROW(p.validate()) << p.id();
    dense = dense || (!p.paged() && p.ragged());
    fixed = fixed || !p.ragged();
  }
  EXPECT_TRUE(dense);
  EXPECT_TRUE(fixed);
  Draws draws(3);
  int paged = 0;
  for (int i = 0; i < 400; ++i) {
    const Problem p = random_problem(draws);
    EXPECT_NO_THROW(p.validate()) << p.id();
    paged += p.paged();
  }
  EXPECT_GT(paged, 10);
}

// Keys once for each sequence, and what the table takes.
TEST(PagedTest, CostsAreThoseOfTheDenseBatch) {
  const Problem paged = Problem::parse("b3_h4_hk2_sq2_sk40_d16_bf16_causal_raggedhalving_page16");
  Problem dense = paged;
  dense.page_size = 0;
  EXPECT_EQ(paged.flops(), dense.flops());
  EXPECT_EQ(paged.bytes(), dense.bytes() + 4 * (3 + 2 + 1));
  EXPECT_EQ(paged.is_decode(), dense.is_decode());
  EXPECT_FALSE(paged.of_sequence({1, 1}).paged());
}

TEST(PagedTest, LayoutsAreOfThePool) {
  const Problem p = Problem::parse("b3_h4_hk2_sq8_sk33_d16_dv24_fp16_raggedhalving_page16");
  const ProblemLayouts heads_first = make_layouts(p, Layout::kBhsd), rows_first = make_layouts(p, Layout::kBshd),
                       strided = make_layouts(p, Layout::kStrided);
  EXPECT_EQ(heads_first.q.rows, 8 + 4 + 2);
  EXPECT_EQ(heads_first.total_q, 14);
  EXPECT_EQ(heads_first.total_kv, 0);
  EXPECT_GT(heads_first.pages, 3 + 1 + 1);
  EXPECT_EQ(heads_first.k.batch, heads_first.pages);
  EXPECT_EQ(heads_first.k.rows, 16);
  EXPECT_EQ(heads_first.max_pages, 4);
  EXPECT_EQ(heads_first.k.stride_head, 16 * 16);  // HND
  EXPECT_EQ(rows_first.v.stride_head, 24);        // NHD
  EXPECT_EQ(rows_first.v.stride_row, 2 * 24);
  EXPECT_EQ(rows_first.v.stride_batch, 16 * 2 * 24);
  EXPECT_GT(strided.table_stride, strided.max_pages);
  EXPECT_THROW((void)pool_pages(Problem::parse("b1000000_h1_s1_d8_fp16_raggedfull_page65536")), Error);
}

TEST(PagedTest, TablesAreScatteredAndHostile) {
  for (const char* id : {kDecode, kRandom, "b4_h2_s40_d8_fp32_strided_raggedrandom_page1"}) {
    const PlacedProblem p = PlacedProblem::parse(id);
    const AttentionInputs in = make_inputs(p, Pattern::kNormal, 3);
    const ProblemLayouts l = make_layouts(p);
    const std::vector<SequenceLengths> sequences = p.sequences();
    std::set<std::int32_t> used;
    std::size_t entries = 0, hostile = 0;
    bool in_order = true;
    for (std::int64_t s = 0; s < p.batch; ++s) {
      const std::span<const std::int32_t> row = row_of(p, in, s);
      const std::int64_t count = pages_of_keys(sequences[static_cast<std::size_t>(s)].kv, p.page_size);
      EXPECT_EQ(in.seqused_kv[static_cast<std::size_t>(s)], sequences[static_cast<std::size_t>(s)].kv);
      for (std::int64_t i = 0; i < l.max_pages; ++i) {
        const std::int32_t page = row[static_cast<std::size_t>(i)];
        const bool is_page = page >= 0 && page < l.pages;
        EXPECT_EQ(is_page, i < count) << id;
        if (!is_page) ++hostile;
        else ++entries, in_order = in_order && (used.empty() || page > *used.rbegin()), used.insert(page);
      }
    }
    EXPECT_FALSE(in_order) << id;
    EXPECT_GT(hostile, 0u);
    EXPECT_LT(static_cast<std::int64_t>(used.size()), l.pages) << "a page is nobody's";
    // Prefixes are shared where lengths are drawn, and nowhere else.
    EXPECT_EQ(used.size() < entries, p.lengths == Lengths::kRandom) << id;
  }
  const PlacedProblem p = PlacedProblem::parse(kDecode);
  EXPECT_NE(make_inputs(p, Pattern::kNormal, 1).block_table, make_inputs(p, Pattern::kNormal, 2).block_table);
  EXPECT_EQ(make_inputs(p, Pattern::kNormal, 1).block_table, make_inputs(p, Pattern::kPeaked, 1).block_table);
}

// What no key is holds NaN, of every type: nobody may read it.
TEST(PagedTest, RowsThatNoKeyHasAreNaN) {
  for (const char* id :
       {kRandom, "b3_h2_s11_d16_e4m3_perhead_strided_raggedhalving_page8", "b3_h2_s11_d16_e5m2_raggedfull_page8",
        "b3_h2_s11_d16_bf16_kve4m3_pertoken_raggedhalving_page8"}) {
    const PlacedProblem p = PlacedProblem::parse(id);
    const AttentionInputs in = make_inputs(p, Pattern::kNormal, 3);
    const DrawnPages drawn = draw_pages(p, make_layouts(p).table_stride, 3);
    EXPECT_EQ(drawn.table, in.block_table);
    const std::vector<SequenceLengths> sequences = p.sequences();
    for (std::int64_t page = 0; page < in.k.layout.batch; ++page) {
      const auto [sequence, first] = drawn.owners[static_cast<std::size_t>(page)];
      for (std::int64_t row = 0; row < p.page_size; ++row) {
        const bool is_key = sequence >= 0 && first + row < sequences[static_cast<std::size_t>(sequence)].kv;
        for (std::int64_t head = 0; head < p.heads_kv; ++head) {
          ASSERT_EQ(std::isnan(in.k.at(page, head, row, 0)), !is_key) << id;
          ASSERT_EQ(std::isnan(in.v.at(page, head, row, p.head_dim_v - 1)), !is_key) << id;
          if (p.input_scaling() == Scaling::kToken) {
            ASSERT_EQ(std::isnan(descale_v_at(p, in.descale_v, page, head, row)), !is_key) << id;
          }
        }
      }
    }
  }
}

// The same keys one after another must give the same results: the reference of the dense batch, sequence by sequence.
TEST(PagedTest, TheReferenceIsThatOfTheGatheredKeys) {
  for (const char* id :
       {kDecode, kRandom, "b4_h2_hk1_sq9_sk30_d8_bf16_causal_bshd_softcap5_alibibatch_sink_raggedrandom_page4",
        "b3_h2_s11_d16_e4m3_perhead_strided_raggedrandom_page2",
        "b4_h4_hk2_s11_d16_bf16_kve4m3_pertoken_raggedrandom_page4"}) {
    const PlacedProblem p = PlacedProblem::parse(id);
    const AttentionInputs in = make_inputs(p, Pattern::kNormal, 3);
    const Reference all = reference_forward(p, in, {});
    const Boundaries at = boundaries_of(p);
    const std::vector<SequenceLengths> sequences = p.sequences();
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const Problem one = p.of_sequence(sequences[s]);
      const AttentionInputs own = inputs_of_sequence(p, in, at, static_cast<std::int64_t>(s));
      for (std::int64_t key = 0; key < one.seqlen_kv; ++key) {
        const std::int64_t page =
            row_of(p, in, static_cast<std::int64_t>(s))[static_cast<std::size_t>(key / p.page_size)];
        for (std::int64_t head = 0; head < p.heads_kv; ++head)
          for (std::int64_t c = 0; c < p.head_dim; ++c)
            ASSERT_EQ(own.k.at(0, head, key, c), in.k.at(page, head, key % p.page_size, c)) << id;
        for (std::int64_t head = 0; head < p.heads_kv && p.input_scaling() == Scaling::kToken; ++head)
          ASSERT_EQ(descale_k_at(one, own.descale_k, 0, head, key),
                    descale_k_at(p, in.descale_k, page, head, key % p.page_size))
              << id;
      }
      const Reference ref = reference_forward(one, own, {});
      for (std::int64_t h = 0; h < p.heads_q; ++h)
        for (std::int64_t row = 0; row < one.seqlen_q; ++row) {
          const std::int64_t packed = h * at.q.back() + at.q[s] + row, own_row = h * one.seqlen_q + row;
          ASSERT_EQ(all.lse[static_cast<std::size_t>(packed)], ref.lse[static_cast<std::size_t>(own_row)]) << id;
          ASSERT_TRUE(one.seqlen_kv == 0 || !std::isnan(all.lse[static_cast<std::size_t>(packed)])) << id;
        }
    }
  }
}

// A page that the pool does not have holds keys of NaN: rows that see them are NaN, others are not.
TEST(PagedTest, MissingPagesMakeNaNOfTheRowsThatSeeThem) {
  const PlacedProblem p = PlacedProblem::parse("b2_h1_s16_d8_fp32_causal_raggedfull_page4");
  AttentionInputs in = make_inputs(p, Pattern::kNormal, 3);
  in.block_table[2] = -1;  // keys 8 to 11 of the first sequence
  const Reference all = reference_forward(p, in, {});
  for (std::size_t row = 0; row < 32; ++row) {
    EXPECT_EQ(std::isnan(all.lse[row]), row >= 8 && row < 16) << row;
    EXPECT_EQ(std::isnan(all.o[row * 8]), row >= 8 && row < 16) << row;
  }
}

}  // namespace
}  // namespace flashcore
