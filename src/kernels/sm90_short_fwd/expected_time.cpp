#include "kernels/sm90_short_fwd/expected_time.h"

#include <algorithm>
#include <cmath>

#include "core/problem.h"
#include "kernels/expected_time.h"
#include "kernels/gpu_family.h"

namespace flashcore::sm90_short_fwd {
namespace {

struct PartTimes {                        // us
  double start;                           // of the launch
  double tile, tile_wide;                 // of a tile, and what 64 columns add
  double step, step_keys, step_products;  // a warpgroup's block: any, 64 keys, 64 columns of them; others busy
  double latency, latency_products;       // and what it takes longer when alone: any, 64 columns of 64 keys
  double cluster_merge;                   // for each doubling of a cluster
  double loaded_kb;                       // of an SM's loads in a us
  double norm;                            // by which work and DRAM's time add up
};
// scripts/fit-expected-times. Tiles that share K and V with others of their head find them in L2. One that reads them
// alone, as in decoding, waits for DRAM or for its own work, hardly for both.
constexpr PartTimes kShared = {0.795, 1.436, 0.568, 0.082, 0.071, 0.164, 0.176, 0.051, 0.308, 73.264, 2};
constexpr PartTimes kStreamed = {0.200, 1.483, 0.640, 0.128, 0.001, 0.204, 0.189, 0.040, 0.534, 73.259, 4};
constexpr double kTail = 0.3, kClusterTail = 0.5;  // of a CTA: what is idle at the end
constexpr double kRounds = 1.1;                    // where CTAs wait for others to end

constexpr std::int64_t kSharedBytes = 233472;  // of an SM; a CTA reserves 1 KB beside its own
constexpr int kRegistersOfPart = 16384;        // an SM's are in four parts

// SMs that clusters of such a size can use: each lies within one GPC, and of an H200's some have 14 or 18 SMs (the
// shares are cuOccupancyMaxActiveClusters's answers there).
std::int64_t usable_sms(int cluster, int multiprocessors) {
  const double share = cluster <= 2 ? 1.0 : cluster <= 8 ? 0.915 : 0.85;
  return std::max<std::int64_t>(std::lround(share * multiprocessors), 1);
}

// CTAs of an SM. ptxas takes 7% more registers than registers_needed says, and a warp's come in units of 256.
std::int64_t resident_ctas(const Config& config, const Traits& traits) {
  const int registers = std::min(registers_needed(config, traits) * 107 / 100, 255);
  const int of_warp = (registers * 32 + 255) / 256 * 256;
  const std::int64_t by_registers = kRegistersOfPart / of_warp / warpgroups(config);
  return std::max<std::int64_t>(std::min(by_registers, kSharedBytes / (smem_bytes(config, traits) + 1024)), 1);
}

}  // namespace

std::optional<double> expected_us(const Config& config, const Problem& problem, const DeviceLimits& limits) {
  if (config.row_groups != 1) return std::nullopt;
  const TileBlocks blocks = blocks_of_tiles(problem, positions(config), config.block_n, parts(config));
  const PartTimes& times = blocks.tiles == 1 ? kStreamed : kShared;
  const double columns = mean_columns(problem) / 64, keys = config.block_n / 64.0;
  const double head_bytes = static_cast<double>(problem.head_dim + problem.head_dim_v) * 2;
  const double load = config.key_groups * config.block_n * head_bytes / (times.loaded_kb * 1000);
  const double warpgroup_step = times.step + times.step_keys * keys + times.step_products * keys * columns;
  const double step = std::max(warpgroup_step * config.key_groups, load);
  const double alone = std::max(warpgroup_step + times.latency + times.latency_products * keys * columns, load);
  const double tile = times.tile + times.tile_wide * columns;

  const std::int64_t head_tiles = (problem.group_size() + config.pack_heads - 1) / config.pack_heads;
  const std::int64_t ctas = blocks.tiles * head_tiles * problem.heads_kv * problem.batch * config.cluster;
  const std::int64_t sms = usable_sms(config.cluster, limits.multiprocessors);
  const std::int64_t resident = resident_ctas(config, traits_of(problem)), slots = sms * resident;
  const auto time = [&](double count, std::int64_t active) {
    return tile + count * std::max(alone, step * static_cast<double>(active));
  };
  const auto on_an_sm = [&](std::int64_t some) { return std::min(resident, (some + sms - 1) / sms); };
  const auto longest = static_cast<double>(blocks.longest);
  double work = 0;
  if (longest <= 1.1 * blocks.mean()) {  // all alike: round after round
    const std::int64_t rest = ctas % slots;
    work = static_cast<double>(ctas / slots) * time(longest, resident);
    if (rest > 0) work += time(longest, on_an_sm(rest));
  } else {
    const double rounds = static_cast<double>(ctas) / static_cast<double>(slots);
    const double tail = config.cluster > 2 ? kClusterTail : kTail * std::min(1.0, rounds - 1);
    work = ctas <= slots ? time(blocks.mean(), on_an_sm(ctas)) : time(blocks.mean(), resident) * (rounds + tail);
    work = std::max(work, time(longest, 1));
  }
  if (ctas > slots) work *= kRounds;
  const double both = std::pow(std::pow(work, times.norm) + std::pow(dram_us(problem), times.norm), 1 / times.norm);
  return times.start + both + times.cluster_merge * std::log2(config.cluster);
}

}  // namespace flashcore::sm90_short_fwd
