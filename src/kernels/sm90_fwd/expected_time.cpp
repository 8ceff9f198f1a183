#include "kernels/sm90_fwd/expected_time.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/problem.h"
#include "kernels/expected_time.h"

namespace flashcore::sm90_fwd {
namespace {

// A persistent CTA per SM works on tiles one after the other, each a while for itself and a while for each block.
struct TileTimes {
  int num_consumers, block_n, key_groups;
  double start;            // of the launch, us
  double block, wide;      // of a block, and what 128 columns add
  double tile, tile_wide;  // of a tile, and what 128 columns add
  double masked;           // what a tile's mask adds
  double tail;             // of a tile, under a mask: how much of the last one the others wait for
};
// scripts/fit-expected-times
constexpr TileTimes kSmall[] = {{2, 64, 1, 1.783, 0.394, 0.394, 0.377, 0.538, 0.121, 0.150},
                                {2, 128, 1, 2.023, 0.901, 0.234, 0.010, 1.707, 0.354, 0.355},
                                {3, 128, 1, 2.259, 1.149, 0.298, 0.010, 1.799, 0.078, 0.185},
                                {4, 64, 1, 2.180, 0.746, 0.319, 0.010, 1.325, 0.094, 0.110},
                                {2, 64, 2, 1.752, 0.424, 0.423, 0.534, 0.534, 0.410, 0.153},
                                {2, 128, 2, 1.799, 0.812, 0.594, 0.758, 0.792, 0.304, 0.094},
                                {4, 64, 2, 1.314, 0.686, 0.547, 1.187, 1.085, 0.146, 0.236}};
constexpr TileTimes kMiddle[] = {{2, 64, 1, 2.081, 0.496, 0.238, 0.651, 0.010, 0.271, 0.149},
                                 {2, 128, 1, 2.213, 0.781, 0.563, 0.843, 0.010, 0.393, 0.252},
                                 {3, 80, 1, 2.011, 0.592, 0.589, 0.939, 0.010, 0.654, 0.242},
                                 {3, 96, 1, 2.200, 1.065, 0.271, 0.346, 0.178, 1.527, 0.131},
                                 {2, 64, 2, 1.968, 0.763, 0.056, 1.111, 0.010, 0.229, 0.237},
                                 {2, 128, 2, 1.914, 1.487, 0.183, 1.118, 0.010, 0.519, 0.182}};
constexpr TileTimes kLarge[] = {{1, 80, 1, 2.700, 0.001, 0.577, 0.105, 0.276, 1.067, 0.244},
                                {2, 64, 1, 0.300, 0.179, 0.521, 0.010, 1.787, 0.359, 0.445},
                                {2, 80, 1, 0.307, 0.214, 0.657, 0.010, 1.825, 0.420, 0.425},
                                {2, 64, 2, 0.815, 0.412, 0.639, 0.166, 1.205, 0.710, 0.190}};

std::span<const TileTimes> times_of(std::int64_t widest) {
  if (widest <= 64) return kSmall;
  if (widest <= 128) return kMiddle;
  return kLarge;
}

}  // namespace

std::optional<double> expected_us(const Config& config, const Problem& problem, const DeviceLimits& limits) {
  const auto times = times_of(std::max(problem.head_dim, problem.head_dim_v));
  const auto found = std::find_if(times.begin(), times.end(), [&](const TileTimes& t) {
    return t.num_consumers == config.num_consumers && t.block_n == config.block_n && t.key_groups == config.key_groups;
  });
  if (found == times.end()) return std::nullopt;
  const TileBlocks blocks = blocks_of_tiles(problem, block_m(config), config.block_n, config.key_groups);
  const auto heads = problem.batch * problem.heads_q, tiles = blocks.tiles * heads;
  const std::int64_t sms = limits.multiprocessors;
  const double columns = mean_columns(problem) / 128;
  const double block = found->block + found->wide * columns;
  double tile = found->tile + found->tile_wide * columns;
  const double dram = dram_us(problem);
  if (!problem.band().bounded()) {
    const auto rounds = static_cast<double>((tiles + sms - 1) / sms);
    return found->start + std::hypot(rounds * (tile + block * static_cast<double>(blocks.longest)), dram);
  }
  // Tiles of unequal length, the longest first.
  tile += found->masked;
  const double all = (tile * static_cast<double>(blocks.tiles) + block * static_cast<double>(blocks.total)) *
                     static_cast<double>(heads);
  const double shared =
      all / static_cast<double>(sms) + (tiles > sms ? found->tail * all / static_cast<double>(tiles) : 0);
  return found->start + std::hypot(std::max(tile + block * static_cast<double>(blocks.longest), shared), dram);
}

}  // namespace flashcore::sm90_fwd
