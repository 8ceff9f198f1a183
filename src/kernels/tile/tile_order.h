#pragma once
// In which order tiles are taken, and by whom. Read by g++ and by NVRTC.

#include "kernels/tile/fast_divide.h"

namespace flashcore::tile {

// How a CTA comes by its tiles: a config's `scheduler`.
enum class Scheduler : int {
  kOneTile,      // one per CTA
  kFixedStride,  // one wave of CTAs, each taking every so many-th
  kCounter,      // one wave of CTAs, handed out by a counter in global memory
};

// Keys of all heads of a section (below), of which a row of K and V has `row_bytes` together. They should stay in L2:
// 32 MB of an H200's 60 was best; more lowered the clock, less gained nothing.
constexpr int keys_of_section(int row_bytes) { return (32 << 20) / row_bytes; }

// Query heads of a section, of `heads`, where `groups` of them have their keys in L2; with so many tiles and takers.
// Longest tiles first, a section of more heads than an eighth of the SMs has them all read K and V of other heads at
// once, and wait for DRAM: 3-11% at up to 1024 keys. With fewer than eight tiles to an SM, balance counts for more.
template <class Int>
constexpr Int heads_of_section(Int groups, Int group_size, Int heads, Int tiles, Int takers) {
  if (tiles >= 8 * takers) {
    const Int of_sms = takers / 8 / group_size, at_most = of_sms > 1 ? of_sms : 1;
    groups = groups < at_most ? groups : at_most;
  }
  const Int wanted = groups * group_size;
  return wanted < 1 ? 1 : wanted > heads ? heads : wanted;
}

// Tiles as numbers. In full attention a head's tiles follow each other. Under a mask whose rows differ in length the
// longest tiles come first, which leaves the short ones to fill the end: over as many heads at a time (a section) as
// have their keys and values in L2.
struct TileOrder {
  int row_tiles;          // of one head
  int tile_count;         // of all heads and batches
  int heads_per_section;  // whose tiles are taken together, longest first
  int whole_sections;     // of that many heads; one of fewer may follow
  FastDivide by_row_tiles, by_heads_q, by_group_size;
  FastDivide by_section_tiles, by_section_heads, by_last_section_heads;

  // Of `heads` query heads, of all batches.
  static constexpr TileOrder of(int row_tiles, int heads, int heads_q, int group_size, int heads_per_section) {
    const int last = heads % heads_per_section;
    return {row_tiles,
            row_tiles * heads,
            heads_per_section,
            heads / heads_per_section,
            FastDivide::by(row_tiles),
            FastDivide::by(heads_q),
            FastDivide::by(group_size),
            FastDivide::by(row_tiles * heads_per_section),
            FastDivide::by(heads_per_section),
            FastDivide::by(last > 0 ? last : 1)};
  }
};

}  // namespace flashcore::tile
