#include "kernels/tile_rounds.h"

#include <algorithm>

namespace flashcore {
namespace {

// K and V of the heads that causal tiles go round should stay in L2: 32 MB of an H200's 60 was best; more lowered the
// clock, less gained nothing.
constexpr std::int64_t kSectionBytes = 32 << 20;
// Longest tiles first, a section of more heads than an eighth of the SMs has them all read K and V of other heads at
// once, and wait for DRAM: 3-11% at up to 1024 keys. With fewer tiles to an SM than this, balance counts for more.
constexpr std::int64_t kSmsPerSectionHead = 8, kTilesPerSm = 8;

std::int64_t heads_per_section(const Problem& problem, std::int64_t heads, std::int64_t tiles, std::int64_t takers) {
  const std::int64_t group = problem.group_size();
  const std::int64_t head_bytes =
      problem.seqlen_kv * (problem.head_dim + problem.head_dim_v) * static_cast<std::int64_t>(size_of(problem.dtype));
  std::int64_t groups = kSectionBytes / head_bytes;
  if (tiles >= kTilesPerSm * takers)
    groups = std::min(groups, std::max<std::int64_t>(takers / kSmsPerSectionHead / group, 1));
  return std::clamp<std::int64_t>(groups * group, 1, heads);
}

}  // namespace

tile::TileOrder tile_order_of(const Problem& problem, int rows, std::int64_t takers) {
  const std::int64_t heads = problem.batch * problem.heads_q;
  const std::int64_t row_tiles = (problem.seqlen_q + rows - 1) / rows;
  return tile::TileOrder::of(static_cast<int>(row_tiles), static_cast<int>(heads), static_cast<int>(problem.heads_q),
                             static_cast<int>(problem.group_size()),
                             static_cast<int>(heads_per_section(problem, heads, row_tiles * heads, takers)));
}

std::int64_t takers_of(tile::Scheduler scheduler, std::int64_t tiles, std::int64_t at_once) {
  return scheduler == tile::Scheduler::kOneTile ? tiles : std::min(tiles, at_once);
}

void add_tile_counter(Program& program, tile::Scheduler scheduler, std::size_t offset) {
  if (scheduler != tile::Scheduler::kCounter) return;
  program.workspaces = {{sizeof(unsigned), Workspace::Contents::kLeftZero}};
  program.steps.front().relocate(offset, AddressOf::workspace(0));
}

}  // namespace flashcore
