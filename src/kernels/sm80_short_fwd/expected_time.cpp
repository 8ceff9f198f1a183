#include "kernels/sm80_short_fwd/expected_time.h"

#include <algorithm>
#include <cmath>

#include "kernels/expected_time.h"
#include "kernels/fitted_constants.h"
#include "kernels/gpu_family.h"

namespace flashcore::sm80_short_fwd {
namespace {

// A step is a warp's, with one block of keys; "32 keys", "64 columns" stand for what is in proportion to them.
struct Constants {
  double launch_us;
  double us_per_step, us_per_step_32_keys_64_columns;
  double us_per_merge, us_per_merge_16_rows_64_columns;  // the latter of each warp
  double load_gbps;                                      // of all SMs' loads, from L2
  int max_steps, max_tiles_per_sm;                       // what was measured

  template <class Visit>
  static void fields(Visit&& visit) {
    visit("launch_us", &Constants::launch_us);
    visit("us_per_step", &Constants::us_per_step);
    visit("us_per_step_32_keys_64_columns", &Constants::us_per_step_32_keys_64_columns);
    visit("us_per_merge", &Constants::us_per_merge);
    visit("us_per_merge_16_rows_64_columns", &Constants::us_per_merge_16_rows_64_columns);
    visit("load_gbps", &Constants::load_gbps);
    visit("max_steps", &Constants::max_steps);
    visit("max_tiles_per_sm", &Constants::max_tiles_per_sm);
  }
};

}  // namespace

std::optional<double> expected_us(const Config& config, const Problem& problem, const DeviceLimits& limits) {
  static const auto fitted = FittedConstants<Constants>::of_family("sm80_short_fwd");
  const auto& fit = fitted.nearest(limits);
  const Constants& constants = fit.constants;
  const Traits traits = traits_of(problem);
  const double columns = (padded_dim_qk(traits) + padded_dim_v(traits)) / 128.0;
  const TileBlocks blocks = blocks_of_tiles(problem, positions(config), config.block_n, config.key_warps);
  if (blocks.longest > constants.max_steps) return std::nullopt;
  const std::int64_t head_tiles = (problem.group_size() + config.pack_heads - 1) / config.pack_heads;
  const std::int64_t heads = head_tiles * problem.heads_kv * problem.batch;
  const std::int64_t ctas = blocks.tiles * heads;
  if (ctas > std::int64_t{constants.max_tiles_per_sm} * limits.multiprocessors) return std::nullopt;
  // ptxas takes some more registers than registers_needed says.
  const std::int64_t registers = std::min((registers_needed(config, traits) + 16 + 7) / 8 * 8, 256);
  const std::int64_t resident = std::max<std::int64_t>(65536 / (registers * threads_per_block(config)), 1);
  const std::int64_t active = std::min(resident, (ctas + limits.multiprocessors - 1) / limits.multiprocessors);

  const double step = (constants.us_per_step +
                       constants.us_per_step_32_keys_64_columns * config.block_n / 32 * columns * config.row_blocks) *
                      cost_of_scores(problem);
  double tile = static_cast<double>(blocks.longest) * step;
  if (config.key_warps > 1) {
    const double parts = config.key_warps * config.row_blocks * padded_dim_v(traits) / 64.0;
    tile += constants.us_per_merge + constants.us_per_merge_16_rows_64_columns * parts * static_cast<double>(active);
  }
  const double rounds =
      std::max(1.0, static_cast<double>(ctas) / static_cast<double>(limits.multiprocessors * resident));
  const std::int64_t read_blocks = blocks_of_tiles(problem, positions(config), config.block_n).total;
  const double loaded = static_cast<double>(heads * read_blocks * config.block_n) *
                        static_cast<double>(problem.head_dim + problem.head_dim_v) * 2;
  const CarriedOver over = carry_over(fit.device, limits);
  const double work = rounds * tile + loaded / (constants.load_gbps * 1000 * over.sms_factor);
  return over.clock_factor * constants.launch_us +
         std::hypot(over.clock_factor * work, dram_us(problem, over.dram_bytes_per_us));
}

}  // namespace flashcore::sm80_short_fwd
