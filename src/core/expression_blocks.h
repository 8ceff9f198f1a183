#pragma once
// A static mask as the blocks of keys that each tile of rows needs, decided from the text alone.

#include <cstdint>
#include <vector>

#include "core/band.h"
#include "core/expression_range.h"

namespace flashcore {

// Blocks begin .. end - 1 of keys, all kFull or all kCut. What is skipped is in no run.
struct BlockRun {
  std::int64_t begin = 0, end = 0;
  BlockUse use = BlockUse::kCut;
  bool operator==(const BlockRun&) const = default;
};

// Of the tile of rows first_row .. last_row, in the order of the keys; runs of one use that touch are one. `box` has
// the ranges of the other variables, and all keys; a block that reaches past the last key is cut. The work is that of
// deciding ranges of blocks, halved where a range is neither skipped nor full.
std::vector<BlockRun> mask_blocks(const Expression& mask, const ExpressionBox& box, std::int64_t first_row,
                                  std::int64_t last_row, std::int64_t block_n);

}  // namespace flashcore
