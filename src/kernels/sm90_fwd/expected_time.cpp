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
  int num_consumers, block_n;
  double start;            // of the launch, us
  double block, wide;      // of a block, and what 128 columns add
  double tile, tile_wide;  // of a tile, and what 128 columns add
  double masked;           // what a tile's mask adds
  double tail;             // of a tile, under a mask: how much of the last one the others wait for
};
// scripts/fit-expected-times
constexpr TileTimes kSmall[] = {{2, 64, 1.729, 0.395, 0.392, 0.374, 0.533, 0.149, 0.144},
                                {2, 128, 2.042, 0.868, 0.306, 0.010, 1.628, 0.380, 0.335},
                                {3, 128, 2.265, 1.151, 0.290, 0.010, 1.802, 0.087, 0.179},
                                {4, 64, 2.185, 0.738, 0.331, 0.010, 1.373, 0.071, 0.097}};
constexpr TileTimes kMiddle[] = {{2, 64, 1.859, 0.505, 0.226, 0.851, 0.010, 0.260, 0.106},
                                 {2, 128, 2.206, 0.794, 0.537, 0.886, 0.010, 0.426, 0.206},
                                 {3, 80, 2.018, 0.588, 0.593, 0.938, 0.010, 0.671, 0.241},
                                 {3, 96, 2.200, 1.065, 0.271, 0.346, 0.178, 1.527, 0.131}};
constexpr TileTimes kLarge[] = {{1, 80, 2.851, 0.001, 0.565, 0.570, 0.010, 0.958, 0.516},
                                {2, 64, 0.300, 0.238, 0.485, 0.010, 1.809, 0.325, 0.507},
                                {2, 80, 0.300, 0.289, 0.611, 0.010, 1.865, 0.397, 0.450}};

std::span<const TileTimes> times_of(std::int64_t widest) {
  if (widest <= 64) return kSmall;
  if (widest <= 128) return kMiddle;
  return kLarge;
}

}  // namespace

std::optional<double> expected_us(const Config& config, const Problem& problem, const DeviceLimits& limits) {
  if (config.key_groups != 1) return std::nullopt;
  const auto times = times_of(std::max(problem.head_dim, problem.head_dim_v));
  const auto found = std::find_if(times.begin(), times.end(), [&](const TileTimes& t) {
    return t.num_consumers == config.num_consumers && t.block_n == config.block_n;
  });
  if (found == times.end()) return std::nullopt;
  const TileBlocks blocks = blocks_of_tiles(problem, block_m(config), config.block_n);
  const auto heads = problem.batch * problem.heads_q, tiles = blocks.tiles * heads;
  const std::int64_t sms = limits.multiprocessors;
  const double columns = mean_columns(problem) / 128;
  const double block = found->block + found->wide * columns;
  double tile = found->tile + found->tile_wide * columns;
  const double dram = dram_us(problem);
  if (problem.causal == Causal::kNone) {
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
