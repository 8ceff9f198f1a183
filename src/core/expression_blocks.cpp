#include "core/expression_blocks.h"

#include <algorithm>

#include "core/error.h"

namespace flashcore {

std::vector<BlockRun> mask_blocks(const Expression& mask, const ExpressionBox& box, std::int64_t first_row,
                                  std::int64_t last_row, std::int64_t block_n) {
  FC_CHECK(block_n > 0 && first_row <= last_row);
  const std::int64_t keys = box[ExpressionVariable::kJ].last + 1;
  ExpressionBox part = box;
  part[ExpressionVariable::kI] = {first_row, last_row};
  std::vector<BlockRun> runs;
  const auto add = [&](std::int64_t begin, std::int64_t end, BlockUse use) {
    if (!runs.empty() && runs.back().end == begin && runs.back().use == use) runs.back().end = end;
    else runs.push_back({begin, end, use});
  };
  std::vector<BlockRun> pending = {{0, (keys + block_n - 1) / block_n, BlockUse::kCut}};
  while (!pending.empty()) {
    const auto [begin, end, unused] = pending.back();
    pending.pop_back();
    if (begin >= end) continue;
    part[ExpressionVariable::kJ] = {begin * block_n, std::min(end * block_n, keys) - 1};
    const BlockUse use = classify_tile(mask, part);
    if (use == BlockUse::kSkip) continue;
    if (use == BlockUse::kCut && end - begin > 1) {
      const std::int64_t middle = begin + (end - begin) / 2;
      pending.push_back({middle, end, BlockUse::kCut});
      pending.push_back({begin, middle, BlockUse::kCut});
      continue;
    }
    const std::int64_t whole = use == BlockUse::kFull ? std::min(end, keys / block_n) : begin;
    if (begin < whole) add(begin, whole, BlockUse::kFull);
    if (whole < end) add(whole, end, BlockUse::kCut);
  }
  return runs;
}

}  // namespace flashcore
