#include "core/expression_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/expression_builtin.h"
#include "core/expression_value.h"

namespace flashcore {
namespace {

using Runs = std::vector<BlockRun>;
constexpr auto kFull = BlockUse::kFull;
constexpr auto kCut = BlockUse::kCut;

ExpressionBox box(std::int64_t rows, std::int64_t keys) { return ExpressionBox::of({1, 1, 1, rows, keys}); }

TEST(ExpressionBlocks, OfWhatMasksLookLike) {
  const Expression causal = causal_mask();
  EXPECT_EQ(mask_blocks(causal, box(1024, 1024), 256, 383, 128), (Runs{{0, 2, kFull}, {2, 3, kCut}}));
  EXPECT_EQ(mask_blocks(band_mask({Alignment::kBottomRight, 256, 0}), box(1024, 1024), 512, 639, 128),
            (Runs{{2, 3, kCut}, {3, 4, kFull}, {4, 5, kCut}}));
  EXPECT_EQ(mask_blocks(prefix_mask(256), box(1024, 1024), 512, 639, 128), (Runs{{0, 4, kFull}, {4, 5, kCut}}));
  EXPECT_EQ(mask_blocks(prefix_mask(256), box(1024, 1024), 0, 127, 128), (Runs{{0, 2, kFull}}));
  // Past the last key nobody sees: that block is cut.
  const Expression all = Expression::parse("i >= 0", ExpressionUse::kMask);
  EXPECT_EQ(mask_blocks(all, box(100, 300), 0, 99, 128), (Runs{{0, 2, kFull}, {2, 3, kCut}}));
  EXPECT_EQ(mask_blocks(all, box(100, 256), 0, 99, 128), (Runs{{0, 2, kFull}}));
  EXPECT_EQ(mask_blocks(Expression::parse("i < 0", ExpressionUse::kMask), box(100, 300), 0, 99, 128), Runs{});
  // Documents of 256 rows that the text knows.
  const Expression chunks = Expression::parse("i // 256 == j // 256", ExpressionUse::kMask);
  EXPECT_EQ(mask_blocks(chunks, box(4096, 4096), 512, 639, 128), (Runs{{4, 6, kFull}}));
  // Data: every block that the rest does not exclude.
  EXPECT_EQ(mask_blocks(both_masks(causal, document_mask()), box(1024, 1024), 256, 383, 128), (Runs{{0, 3, kCut}}));
}

TEST(ExpressionBlocks, NoVisiblePairIsLeftOutAndNoHiddenOneIsFull) {
  for (const char* text : {"j <= i && i - j < 50", "abs(i - 2 * j) < 20 || j < 9", "i // 32 == j // 32 && j <= i",
                           "(i * 7 + j * 3) % 16 < 9", "j < 40 && i > 70 || j > 90"}) {
    const Expression mask = Expression::parse(text, ExpressionUse::kMask);
    ExpressionEvaluator evaluator(mask);
    for (std::int64_t first = 0; first < 130; first += 32) {
      const std::int64_t last = std::min<std::int64_t>(first + 31, 129);
      const Runs runs = mask_blocks(mask, box(130, 150), first, last, 16);
      for (std::size_t r = 1; r < runs.size(); ++r) ASSERT_LE(runs[r - 1].end, runs[r].begin);
      for (std::int64_t i = first; i <= last; ++i) {
        for (std::int64_t j = 0; j < 160; ++j) {
          const bool visible =
              j < 150 && evaluator.mask({.i = static_cast<std::int32_t>(i), .j = static_cast<std::int32_t>(j)});
          const auto run = std::find_if(runs.begin(), runs.end(),
                                        [&](const BlockRun& of) { return of.begin <= j / 16 && j / 16 < of.end; });
          if (run == runs.end()) ASSERT_FALSE(visible) << text << ' ' << i << ' ' << j;
          else ASSERT_TRUE(visible || run->use == kCut) << text << ' ' << i << ' ' << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashcore
