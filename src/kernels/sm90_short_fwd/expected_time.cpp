#include "kernels/sm90_short_fwd/expected_time.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/problem.h"
#include "kernels/expected_time.h"
#include "kernels/fitted_constants.h"
#include "kernels/gpu_family.h"

namespace flashcore::sm90_short_fwd {
namespace {

// "64 keys" and "64 columns" stand for what is in proportion to them; a block is a warpgroup's.
struct PartTimes {
  double launch_us;
  double us_per_tile, us_per_tile_64_columns;
  double us_per_block, us_per_block_64_keys, us_per_block_64_keys_64_columns;  // while others are busy
  double latency_us, latency_us_64_keys_64_columns;                            // what it takes longer when alone
  double us_per_cluster_doubling;                                              // of the merge
  double load_gbps_per_sm;
  double norm;  // by which work and DRAM's time add up

  template <class Visit>
  static void fields(Visit&& visit) {
    visit("launch_us", &PartTimes::launch_us);
    visit("us_per_tile", &PartTimes::us_per_tile);
    visit("us_per_tile_64_columns", &PartTimes::us_per_tile_64_columns);
    visit("us_per_block", &PartTimes::us_per_block);
    visit("us_per_block_64_keys", &PartTimes::us_per_block_64_keys);
    visit("us_per_block_64_keys_64_columns", &PartTimes::us_per_block_64_keys_64_columns);
    visit("latency_us", &PartTimes::latency_us);
    visit("latency_us_64_keys_64_columns", &PartTimes::latency_us_64_keys_64_columns);
    visit("us_per_cluster_doubling", &PartTimes::us_per_cluster_doubling);
    visit("load_gbps_per_sm", &PartTimes::load_gbps_per_sm);
    visit("norm", &PartTimes::norm);
  }
};
// SMs that clusters can use: each lies within one GPC, and GPCs differ in SMs (cuOccupancyMaxActiveClusters).
struct UsableSms {
  int cluster_up_to;
  double share;

  template <class Visit>
  static void fields(Visit&& visit) {
    visit("cluster_up_to", &UsableSms::cluster_up_to);
    visit("share", &UsableSms::share);
  }
};
struct Constants {
  // Tiles that share K and V with others of their head find them in L2. One that reads them alone, as in decoding,
  // waits for DRAM or for its own work, hardly for both.
  PartTimes tiles_that_share_kv, tiles_that_stream_kv;
  double tail_of_cta, tail_of_cluster;  // of a CTA's time: what is idle at the end
  double waiting_rounds_factor;         // where CTAs wait for others to end
  std::vector<UsableSms> usable_sm_share;

  template <class Visit>
  static void fields(Visit&& visit) {
    visit("tiles_that_share_kv", &Constants::tiles_that_share_kv);
    visit("tiles_that_stream_kv", &Constants::tiles_that_stream_kv);
    visit("tail_of_cta", &Constants::tail_of_cta);
    visit("tail_of_cluster", &Constants::tail_of_cluster);
    visit("waiting_rounds_factor", &Constants::waiting_rounds_factor);
    visit("usable_sm_share", &Constants::usable_sm_share);
  }

  std::int64_t usable_sms(int cluster, int multiprocessors) const {
    double share = usable_sm_share.back().share;
    for (const UsableSms& some : usable_sm_share) {
      if (cluster <= some.cluster_up_to) {
        share = some.share;
        break;
      }
    }
    return std::max<std::int64_t>(std::lround(share * multiprocessors), 1);
  }
};

// A warpgroup that is alone on its SM waits for its own loads, and boxes of pages are many: 170 and 210 us where 106
// and 130 were expected (20,000 keys in pages of 16, blocks of 128 and of 64; H100).
constexpr double kPagesAlone = 1.6;

// What sm80_decode_fwd takes beside what its bytes need: 7 to 12 us of 4,096 and 32,768 keys (H100); of 230 problems on
// an H200 10 us with up to eight rows, and 13 to 20 with 16.
constexpr std::int64_t kFewRows = 8;
constexpr double kDealtOutUs = 10, kDealtOutUsOfManyRows = 17;

constexpr std::int64_t kSharedBytes = 233472;  // of an SM; a CTA reserves 1 KB beside its own
constexpr int kRegistersOfPart = 16384;        // an SM's are in four parts

// CTAs of an SM. ptxas takes 7% more registers than registers_needed says, and a warp's come in units of 256.
std::int64_t resident_ctas(const Config& config, const Traits& traits) {
  const int registers = std::min(registers_needed(config, traits) * 107 / 100, 255);
  const int of_warp = (registers * 32 + 255) / 256 * 256;
  const std::int64_t by_registers = kRegistersOfPart / of_warp / warpgroups(config);
  return std::max<std::int64_t>(std::min(by_registers, kSharedBytes / (smem_bytes(config, traits) + 1024)), 1);
}

}  // namespace

std::optional<double> expected_us(const Config& config, const Problem& problem, const DeviceLimits& limits,
                                  double share_of_bound) {
  if (config.row_groups != 1) return std::nullopt;
  const TileBlocks blocks = blocks_of_tiles(problem, positions(config), config.block_n, parts(config));
  static const auto fitted = FittedConstants<Constants>::of_family("sm90_short_fwd");
  const auto& fit = fitted.nearest(limits);
  const Constants& constants = fit.constants;
  const PartTimes& times = blocks.tiles == 1 ? constants.tiles_that_stream_kv : constants.tiles_that_share_kv;
  const CarriedOver over = carry_over(fit.device, limits);
  const double columns = mean_columns(problem) / 64, keys = config.block_n / 64.0;
  const double head_bytes = static_cast<double>(problem.head_dim + problem.head_dim_v) * 2;
  const double load = config.key_groups * config.block_n * head_bytes / (times.load_gbps_per_sm * 1000);
  const double warpgroup_step = (times.us_per_block + times.us_per_block_64_keys * keys +
                                 times.us_per_block_64_keys_64_columns * keys * columns) *
                                cost_of_scores(problem);
  const double step = std::max(warpgroup_step * config.key_groups, load);
  const double alone =
      std::max((warpgroup_step + times.latency_us + times.latency_us_64_keys_64_columns * keys * columns) *
                   (problem.paged() ? kPagesAlone : 1),
               load);
  const double tile = times.us_per_tile + times.us_per_tile_64_columns * columns;

  const std::int64_t head_tiles = (problem.group_size() + config.pack_heads - 1) / config.pack_heads;
  const std::int64_t ctas = blocks.tiles * head_tiles * problem.heads_kv * problem.batch * config.cluster;
  const std::int64_t sms = constants.usable_sms(config.cluster, limits.multiprocessors);
  const std::int64_t resident = resident_ctas(config, traits_of(problem)), slots = sms * resident;
  const auto time = [&](double count, std::int64_t active) {
    return tile + count * std::max(alone, step * static_cast<double>(active));
  };
  const auto on_an_sm = [&](std::int64_t some) { return std::min(resident, (some + sms - 1) / sms); };
  const auto longest = static_cast<double>(blocks.longest);
  const double mean = share_of_bound * blocks.mean();
  double work = 0;
  if (longest <= 1.1 * mean) {  // all alike: round after round
    const std::int64_t rest = ctas % slots;
    work = static_cast<double>(ctas / slots) * time(longest, resident);
    if (rest > 0) work += time(longest, on_an_sm(rest));
  } else {
    const double rounds = static_cast<double>(ctas) / static_cast<double>(slots);
    const double tail =
        config.cluster > 2 ? constants.tail_of_cluster : constants.tail_of_cta * std::min(1.0, rounds - 1);
    work = ctas <= slots ? time(mean, on_an_sm(ctas)) : time(mean, resident) * (rounds + tail);
    work = std::max(work, time(longest, 1));
  }
  if (ctas > slots) work *= constants.waiting_rounds_factor;
  work *= over.clock_factor;
  const double dram = share_of_bound * dram_us(problem, over.dram_bytes_per_us);
  const double both = std::pow(std::pow(work, times.norm) + std::pow(dram, times.norm), 1 / times.norm);
  return over.clock_factor * times.launch_us + both +
         over.clock_factor * times.us_per_cluster_doubling * std::log2(config.cluster);
}

double dealt_out_us(const Problem& problem, const DeviceLimits& limits) {
  static const auto fitted = FittedConstants<Constants>::of_family("sm90_short_fwd");
  const bool few = problem.seqlen_q * problem.group_size() <= kFewRows;
  return (few ? kDealtOutUs : kDealtOutUsOfManyRows) +
         dram_us(problem, carry_over(fitted.nearest(limits).device, limits).dram_bytes_per_us);
}

namespace {

Problem of_one_sequence(const Problem& problem) {
  Problem one = problem;
  one.batch = 1;
  return one;
}

}  // namespace

double loss_of_one_long_sequence(const Config& config, const Problem& problem, const DeviceLimits& limits) {
  const Problem one = of_one_sequence(problem);
  const auto us = expected_us(config, one, limits);
  return us ? *us / dealt_out_us(one, limits) : kNotMeasuredUs;
}

double one_long_sequence_longer_us(const Config& config, const Problem& problem, const DeviceLimits& limits) {
  const Problem one = of_one_sequence(problem);
  const auto us = expected_us(config, one, limits);
  return us ? *us - dealt_out_us(one, limits) : kNotMeasuredUs;
}

}  // namespace flashcore::sm90_short_fwd
