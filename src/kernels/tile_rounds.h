#pragma once
// The host's half of tile/producer.cuh: the order of tiles, who takes them, and the counter that hands them out.

#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "kernels/program.h"
#include "kernels/tile/tile_order.h"

namespace flashcore {

// Tiles of `rows` query rows, for `takers` (CTAs or clusters) that run at once.
tile::TileOrder tile_order_of(const Problem& problem, int rows, std::int64_t takers);
// How many takers are launched for `tiles`.
std::int64_t takers_of(tile::Scheduler scheduler, std::int64_t tiles, std::int64_t at_once);
// The counter's workspace, and its address at byte `offset` of the one step's parameters; nothing without a counter.
void add_tile_counter(Program& program, tile::Scheduler scheduler, std::size_t offset);

}  // namespace flashcore
