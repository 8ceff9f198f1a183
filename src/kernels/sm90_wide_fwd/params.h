#pragma once
// What the host hands to sm90_wide_fwd. Read by g++ and by NVRTC.

#include "kernels/tile/fast_divide.h"
#include "kernels/tile/page_boxes.h"
#include "kernels/tile/tile_order.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm90_wide_fwd {

// `Map` is ptx::TensorMap on the device and 128 bytes to be encoded on the host.
template <class Map>
struct Params {
  Map q, k, v, o;  // 4-D: column, row, head, batch; boxes of 64 columns
  ForwardParams problem;
  // The same with other heads: a head of a tile is pack_heads of the problem's, once for each of num_splits parts of
  // the keys.
  ForwardParams tiles;
  unsigned* tile_counter;  // zero before and after every launch; of Scheduler::kCounter only
  tile::TileOrder order;   // of the tiles of a cluster
  void* parts;             // of tiles whose keys several clusters share
  unsigned* part_counts;   // how many of them a CTA's tile has
  int num_splits;
  tile::FastDivide by_splits;
  int row_tiles;  // of a head of tiles; of a ragged batch at the most
  int total_q;    // rows of a ragged batch's q and o
};

// The parameters of a paged problem. Boxes are of a CTA's share of a block.
template <class Map>
using PoolParams = tile::Pool<Params<Map>, Map>;

}  // namespace flashcore::sm90_wide_fwd
