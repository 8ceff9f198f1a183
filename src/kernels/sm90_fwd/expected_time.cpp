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
constexpr TileTimes kSmall[] = {{2, 64, 1, 1.784, 0.393, 0.393, 0.376, 0.538, 0.124, 0.148},
                                {2, 128, 1, 2.032, 0.868, 0.306, 0.010, 1.626, 0.385, 0.334},
                                {3, 128, 1, 2.266, 1.150, 0.291, 0.010, 1.800, 0.087, 0.178},
                                {4, 64, 1, 2.185, 0.738, 0.331, 0.010, 1.373, 0.071, 0.097},
                                {2, 64, 2, 1.721, 0.423, 0.424, 0.569, 0.569, 0.408, 0.147},
                                {2, 128, 2, 1.717, 1.007, 0.220, 0.868, 0.652, 0.480, 0.026},
                                {4, 64, 2, 1.270, 0.854, 0.207, 1.418, 0.723, 0.156, 0.216}};
constexpr TileTimes kMiddle[] = {{2, 64, 1, 2.089, 0.503, 0.227, 0.658, 0.010, 0.261, 0.137},
                                 {2, 128, 1, 2.193, 0.794, 0.539, 0.877, 0.010, 0.435, 0.203},
                                 {3, 80, 1, 2.018, 0.588, 0.593, 0.938, 0.010, 0.671, 0.241},
                                 {3, 96, 1, 2.200, 1.065, 0.271, 0.346, 0.178, 1.527, 0.131},
                                 {2, 64, 2, 1.847, 0.761, 0.053, 1.250, 0.010, 0.218, 0.237},
                                 {2, 128, 2, 2.180, 1.422, 0.170, 0.990, 0.010, 0.658, 0.234}};
constexpr TileTimes kLarge[] = {{1, 80, 1, 2.826, 0.001, 0.570, 0.481, 0.067, 0.891, 0.512},
                                {2, 64, 1, 0.300, 0.226, 0.495, 0.010, 1.815, 0.303, 0.498},
                                {2, 80, 1, 0.300, 0.289, 0.611, 0.010, 1.865, 0.397, 0.450},
                                {2, 64, 2, 0.777, 0.394, 0.627, 0.472, 1.166, 0.863, 0.500}};

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
