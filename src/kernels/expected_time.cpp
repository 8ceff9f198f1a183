#include "kernels/expected_time.h"

#include <algorithm>

namespace flashcore {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

TileBlocks blocks_of_tiles(const Problem& problem, std::int64_t rows, std::int64_t block_n, std::int64_t parts) {
  TileBlocks blocks;
  blocks.tiles = ceil_div(problem.seqlen_q, rows);
  const auto count = [&](std::int64_t keys) {
    return ceil_div(std::max<std::int64_t>(ceil_div(keys, block_n), 1), parts);
  };
  const Band<std::int64_t> band = problem.band();
  if (!band.bounded()) {
    blocks.longest = count(problem.seqlen_kv);
    blocks.total = blocks.tiles * blocks.longest;
    return blocks;
  }
  for (std::int64_t tile = 0; tile < blocks.tiles; ++tile) {
    const std::int64_t last_row = std::min((tile + 1) * rows, problem.seqlen_q) - 1;
    const KeyRange<std::int64_t> keys = band.keys_of_any(tile * rows, last_row);
    // Blocks start at multiples of block_n, whichever key is the first.
    const std::int64_t own = count(keys.end - keys.begin / block_n * block_n);
    blocks.longest = std::max(blocks.longest, own);
    blocks.total += own;
  }
  return blocks;
}

double mean_columns(const Problem& problem) {
  return static_cast<double>(ceil_div(problem.head_dim, 16) + ceil_div(problem.head_dim_v, 16)) * 8;
}

// Measured in sm90_fwd at head dim 128 on an H200: softcap_8k 1001 us and alibi_8k 763 (results/h200/scores.json),
// where the plain problem takes 695. The instructions of a softcap are more than multiplies of 128 columns hide.
double cost_of_scores(const Problem& problem) {
  return (problem.softcap ? 1.45 : 1.0) * (problem.alibi != Alibi::kNone ? 1.1 : 1.0);
}

double dram_us(const Problem& problem, double bytes_per_us) {
  const auto rows = problem.batch * (problem.heads_kv * problem.seqlen_kv + problem.heads_q * problem.seqlen_q);
  return static_cast<double>(rows) * static_cast<double>(problem.head_dim + problem.head_dim_v) * 2 / bytes_per_us;
}

}  // namespace flashcore
