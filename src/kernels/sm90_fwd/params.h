#pragma once
// What the host hands to sm90_fwd. Read by g++ and by NVRTC.

#include "kernels/tile/fast_divide.h"
#include "kernels/tile/tile_order.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm90_fwd {

// `Map` is ptx::TensorMap on the device and 128 bytes to be encoded on the host.
template <class Map>
struct Params {
  Map q, k, v, o;  // 4-D: column, row, head, batch; boxes of 64 columns
  ForwardParams problem;
  unsigned* tile_counter;  // zero before and after every launch; of Scheduler::kCounter only
  tile::TileOrder order;   // of the tiles of a cluster
};

// How a block of keys is loaded from a paged cache: in boxes that each lie in one page, since `rows` divides both the
// page and the block.
struct PageBoxes {
  int rows, count;  // of a box, and boxes of a block
  // Of the map `v_end`: what a page and a key of a page add to its last coordinate.
  int steps_per_page, steps_per_key;
  tile::FastDivide by_page_size;
};

// The parameters of a paged problem. The maps of k and v are those of the pools, [page, head, key of the page, column],
// in boxes of `boxes.rows`. `v_end` loads the box in which a sequence ends: page_end_map_of of gpu_family.h.
template <class Map>
struct PoolParams {
  Params<Map> plain;
  Map v_end;
  PageBoxes boxes;
};

}  // namespace flashcore::sm90_fwd
