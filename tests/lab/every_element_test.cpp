// Rows that a sample does not speak for have a reference of their own.

#include "lab/gates/every_element.h"

#include <gtest/gtest.h>

#include "core/problem_expressions.h"

namespace flashcore {
namespace {

// Softcap of large scores: next to no error, but in the few rows of which the largest score is a small one.
class EveryElementTest : public ::testing::Test {
 protected:
  void SetUp() override {
    problem_ = PlacedProblem::parse("b1_h8_s64_d64_fp32_causal");
    set_expressions(problem_, "50 * tanh(s / 50)", "", {});
    oracle_ = cache_.get(problem_, Pattern::kExtreme, 1, problem_.flops() / 50);
    theirs_ = OracleCache::every_row(problem_, *oracle_);
    all_ = reference_forward(problem_, oracle_->inputs, {});
  }
  // What is beyond twice the sample's bound and within the row's own, and the reverse.
  std::size_t row_of(bool larger_bound) const {
    for (std::size_t row = 0; row < all_.lse.size(); ++row)
      if ((all_.predicted_lse[row] > 5 * oracle_->bound.lse_max_abs) == larger_bound) return row;
    throw std::logic_error("this data has no such row");
  }
  float beyond() const { return 4 * static_cast<float>(oracle_->bound.lse_max_abs); }

  OracleCache cache_;
  PlacedProblem problem_;
  std::shared_ptr<const Oracle> oracle_;
  AttentionOutputs theirs_;
  Reference all_;
};

TEST_F(EveryElementTest, ARowOfALargerBoundIsRightByThatBound) {
  ASSERT_FALSE(oracle_->rows.all);
  AttentionOutputs ours = theirs_;
  ours.lse[row_of(true)] += beyond();
  const EveryElement every = compare_every_element(problem_, *oracle_, ours, theirs_);
  EXPECT_EQ(every.rows_judged_again, 1u);
  EXPECT_TRUE(within_norms(every.error, every.bound));
}

TEST_F(EveryElementTest, ARowOfNoLargerBoundIsNot) {
  AttentionOutputs ours = theirs_;
  ours.lse[row_of(true)] += beyond();
  ours.lse[row_of(false)] += beyond();
  const EveryElement every = compare_every_element(problem_, *oracle_, ours, theirs_);
  EXPECT_EQ(every.rows_beyond, 2u);
  EXPECT_EQ(every.rows_judged_again, 1u);
  EXPECT_FALSE(within_norms(every.error, every.bound));
}

TEST_F(EveryElementTest, AWrongRowOfOIsWrong) {
  AttentionOutputs ours = theirs_;
  for (std::int64_t column = 0; column < problem_.head_dim_v; ++column) ours.o.set(0, 2, 41, column, 0);
  const EveryElement every = compare_every_element(problem_, *oracle_, ours, theirs_);
  EXPECT_EQ(every.rows_judged_again, 0u);
  EXPECT_EQ(every.error.first_bad_row, 2 * 64 + 41);
  EXPECT_FALSE(within_norms(every.error, every.bound));
}

TEST_F(EveryElementTest, ManyRowsAreNotJudgedAgain) {
  AttentionOutputs ours = theirs_;
  for (std::size_t row = 0; row <= kMostRowsAgain; ++row) ours.lse[row] += beyond();
  const EveryElement every = compare_every_element(problem_, *oracle_, ours, theirs_);
  EXPECT_EQ(every.rows_beyond, kMostRowsAgain + 1);
  EXPECT_EQ(every.rows_judged_again, 0u);
}

}  // namespace
}  // namespace flashcore
