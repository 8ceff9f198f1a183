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
constexpr TileTimes kSmall[] = {{2, 64, 1, 1.729, 0.395, 0.392, 0.374, 0.533, 0.149, 0.144},
                                {2, 128, 1, 2.042, 0.868, 0.306, 0.010, 1.628, 0.380, 0.335},
                                {3, 128, 1, 2.265, 1.151, 0.290, 0.010, 1.802, 0.087, 0.179},
                                {4, 64, 1, 2.185, 0.738, 0.331, 0.010, 1.373, 0.071, 0.097},
                                {2, 64, 2, 1.632, 0.425, 0.424, 0.614, 0.615, 0.447, 0.024},
                                {2, 128, 2, 1.752, 1.008, 0.221, 0.888, 0.523, 0.483, 0.010},
                                {4, 64, 2, 1.820, 0.678, 0.557, 0.821, 0.825, 0.130, 0.200}};
constexpr TileTimes kMiddle[] = {{2, 64, 1, 1.859, 0.505, 0.226, 0.851, 0.010, 0.260, 0.106},
                                 {2, 128, 1, 2.206, 0.794, 0.537, 0.886, 0.010, 0.426, 0.206},
                                 {3, 80, 1, 2.018, 0.588, 0.593, 0.938, 0.010, 0.671, 0.241},
                                 {3, 96, 1, 2.200, 1.065, 0.271, 0.346, 0.178, 1.527, 0.131},
                                 {2, 64, 2, 1.736, 0.823, 0.007, 1.223, 0.010, 0.445, 0.066},
                                 {2, 128, 2, 2.122, 1.503, 0.103, 0.974, 0.010, 0.713, 0.223}};
constexpr TileTimes kLarge[] = {{1, 80, 1, 2.851, 0.001, 0.565, 0.570, 0.010, 0.958, 0.516},
                                {2, 64, 1, 0.300, 0.238, 0.485, 0.010, 1.809, 0.325, 0.507},
                                {2, 80, 1, 0.300, 0.289, 0.611, 0.010, 1.865, 0.397, 0.450},
                                {2, 64, 2, 0.571, 0.346, 0.589, 0.784, 1.392, 0.876, 0.200}};

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
