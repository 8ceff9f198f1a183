#include "kernels/sm80_short_fwd/expected_time.h"

#include <algorithm>
#include <cmath>

#include "kernels/expected_time.h"
#include "kernels/gpu_family.h"

namespace flashcore::sm80_short_fwd {
namespace {

// scripts/fit-expected-times; us
constexpr double kStart = 1.354;
constexpr double kStep = 0.337, kStepProducts = 0.370;  // of a warp: for any block, and for 32 keys of 64 columns
constexpr double kMerge = 0.262, kMergeParts = 0.067;   // for any, and for each warp's 16 rows of 64 columns
constexpr double kLoadedBytes = 16.4e6;                 // of all SMs' loads in a us, from L2

constexpr std::int64_t kMaxSteps = 8, kMaxTilesOfSm = 16;  // what was measured

}  // namespace

std::optional<double> expected_us(const Config& config, const Problem& problem, const DeviceLimits& limits) {
  const Traits traits = traits_of(problem);
  const double columns = (padded_dim_qk(traits) + padded_dim_v(traits)) / 128.0;
  const TileBlocks blocks = blocks_of_tiles(problem, positions(config), config.block_n, config.key_warps);
  if (blocks.longest > kMaxSteps) return std::nullopt;
  const std::int64_t head_tiles = (problem.group_size() + config.pack_heads - 1) / config.pack_heads;
  const std::int64_t heads = head_tiles * problem.heads_kv * problem.batch;
  const std::int64_t ctas = blocks.tiles * heads;
  if (ctas > kMaxTilesOfSm * limits.multiprocessors) return std::nullopt;
  // ptxas takes some more registers than registers_needed says.
  const std::int64_t registers = std::min((registers_needed(config, traits) + 16 + 7) / 8 * 8, 256);
  const std::int64_t resident = std::max<std::int64_t>(65536 / (registers * threads_per_block(config)), 1);
  const std::int64_t active = std::min(resident, (ctas + limits.multiprocessors - 1) / limits.multiprocessors);

  const double step = kStep + kStepProducts * config.block_n / 32 * columns * config.row_blocks;
  double tile = static_cast<double>(blocks.longest) * step;
  if (config.key_warps > 1) {
    const double parts = config.key_warps * config.row_blocks * padded_dim_v(traits) / 64.0;
    tile += kMerge + kMergeParts * parts * static_cast<double>(active);
  }
  const double rounds =
      std::max(1.0, static_cast<double>(ctas) / static_cast<double>(limits.multiprocessors * resident));
  const std::int64_t read_blocks = blocks_of_tiles(problem, positions(config), config.block_n).total;
  const double loaded = static_cast<double>(heads * read_blocks * config.block_n) *
                        static_cast<double>(problem.head_dim + problem.head_dim_v) * 2;
  return kStart + std::hypot(rounds * tile + loaded / kLoadedBytes, dram_us(problem));
}

}  // namespace flashcore::sm80_short_fwd
