#include "kernels/sm90_short_fwd/expected_time.h"

#include <algorithm>
#include <cmath>

#include "core/problem.h"
#include "kernels/expected_time.h"
#include "kernels/gpu_family.h"

namespace flashcore::sm90_short_fwd {
namespace {

// scripts/fit-expected-times; us
constexpr double kStart = 0.575;
constexpr double kTile = 1.717, kTileWide = 0.474;                         // of a tile, and what 64 columns add
constexpr double kStep = 0.092, kStepKeys = 0.050, kStepProducts = 0.173;  // a warpgroup's block, the SM's others busy
constexpr double kLatency = 0.175, kLatencyProducts = 0.056;               // and what it takes longer when alone
constexpr double kClusterMerge = 0.299;                                    // for each doubling of a cluster
constexpr double kLoadedBytes = 75.5e3;                                    // of an SM's loads in a us, from L2
constexpr double kTail = 0.3, kClusterTail = 0.5;                          // of a CTA: what is idle at the end
constexpr double kRounds = 1.1;                                            // where CTAs wait for others to end

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
  const double columns = mean_columns(problem) / 64, keys = config.block_n / 64.0;
  const double head_bytes = static_cast<double>(problem.head_dim + problem.head_dim_v) * 2;
  const double load = config.key_groups * config.block_n * head_bytes / kLoadedBytes;
  const double warpgroup_step = kStep + kStepKeys * keys + kStepProducts * keys * columns;
  const double step = std::max(warpgroup_step * config.key_groups, load);
  const double alone = std::max(warpgroup_step + kLatency + kLatencyProducts * keys * columns, load);
  const double tile = kTile + kTileWide * columns;

  const TileBlocks blocks = blocks_of_tiles(problem, positions(config), config.block_n, parts(config));
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
  return kStart + std::hypot(work, dram_us(problem)) + kClusterMerge * std::log2(config.cluster);
}

}  // namespace flashcore::sm90_short_fwd
