#include "kernels/tile_rounds.h"

#include <algorithm>

namespace flashcore {
namespace {

std::int64_t heads_per_section(const Problem& problem, std::int64_t heads, std::int64_t tiles, std::int64_t takers) {
  const int row_bytes =
      static_cast<int>((problem.head_dim + problem.head_dim_v) * static_cast<std::int64_t>(size_of(problem.dtype)));
  return tile::heads_of_section<std::int64_t>(tile::keys_of_section(row_bytes) / problem.seqlen_kv,
                                              problem.group_size(), heads, tiles, takers);
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
