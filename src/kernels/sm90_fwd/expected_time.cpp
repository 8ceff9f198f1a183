#include "kernels/sm90_fwd/expected_time.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/problem.h"
#include "kernels/expected_time.h"
#include "kernels/fitted_constants.h"

namespace flashcore::sm90_fwd {
namespace {

// A persistent CTA per SM works on tiles one after the other, each a while for itself and a while for each block.
struct TileTimes {
  int head_dim_up_to, num_consumers, block_n, key_groups;
  double launch_us;
  double us_per_block, us_per_block_128_columns;  // and what 128 columns add
  double us_per_tile, us_per_tile_128_columns;
  double us_per_masked_tile;  // what a tile's mask adds
  double tail_of_tile;        // under a mask: the part of the last tile that the other SMs wait for

  template <class Visit>
  static void fields(Visit&& visit) {
    visit("head_dim_up_to", &TileTimes::head_dim_up_to);
    visit("num_consumers", &TileTimes::num_consumers);
    visit("block_n", &TileTimes::block_n);
    visit("key_groups", &TileTimes::key_groups);
    visit("launch_us", &TileTimes::launch_us);
    visit("us_per_block", &TileTimes::us_per_block);
    visit("us_per_block_128_columns", &TileTimes::us_per_block_128_columns);
    visit("us_per_tile", &TileTimes::us_per_tile);
    visit("us_per_tile_128_columns", &TileTimes::us_per_tile_128_columns);
    visit("us_per_masked_tile", &TileTimes::us_per_masked_tile);
    visit("tail_of_tile", &TileTimes::tail_of_tile);
  }
};
struct Constants {
  std::vector<TileTimes> tiles;  // by head_dim_up_to, ascending

  template <class Visit>
  static void fields(Visit&& visit) {
    visit("tiles", &Constants::tiles);
  }

  // Of the least head dim that was measured from `widest` on; null: no such tile was.
  const TileTimes* find(std::int64_t widest, const Config& config) const {
    const auto group =
        std::find_if(tiles.begin(), tiles.end(), [&](const TileTimes& t) { return widest <= t.head_dim_up_to; });
    const auto found = std::find_if(group, tiles.end(), [&](const TileTimes& t) {
      return t.head_dim_up_to == group->head_dim_up_to && t.num_consumers == config.num_consumers &&
             t.block_n == config.block_n && t.key_groups == config.key_groups;
    });
    return found == tiles.end() ? nullptr : &*found;
  }
};

}  // namespace

std::optional<double> expected_us(const Config& config, const Problem& problem, const DeviceLimits& limits) {
  static const auto fitted = FittedConstants<Constants>::of_family("sm90_fwd");
  const auto& fit = fitted.nearest(limits);
  const TileTimes* times = fit.constants.find(std::max(problem.head_dim, problem.head_dim_v), config);
  if (!times) return std::nullopt;
  const CarriedOver over = carry_over(fit.device, limits);
  const TileBlocks blocks = blocks_of_tiles(problem, block_m(config), config.block_n, config.key_groups);
  const auto heads = problem.batch * problem.heads_q, tiles = blocks.tiles * heads;
  const std::int64_t sms = limits.multiprocessors;
  const double columns = mean_columns(problem) / 128;
  const double block = (times->us_per_block + times->us_per_block_128_columns * columns) * cost_of_scores(problem);
  double tile = times->us_per_tile + times->us_per_tile_128_columns * columns;
  const auto expected = [&](double work) {
    return over.clock_factor * times->launch_us +
           std::hypot(over.clock_factor * work, dram_us(problem, over.dram_bytes_per_us));
  };
  if (!problem.band().bounded()) {
    const auto rounds = static_cast<double>((tiles + sms - 1) / sms);
    return expected(rounds * (tile + block * static_cast<double>(blocks.longest)));
  }
  // Tiles of unequal length, the longest first.
  tile += times->us_per_masked_tile;
  const double all = (tile * static_cast<double>(blocks.tiles) + block * static_cast<double>(blocks.total)) *
                     static_cast<double>(heads);
  const double shared =
      all / static_cast<double>(sms) + (tiles > sms ? times->tail_of_tile * all / static_cast<double>(tiles) : 0);
  return expected(std::max(tile + block * static_cast<double>(blocks.longest), shared));
}

}  // namespace flashcore::sm90_fwd
