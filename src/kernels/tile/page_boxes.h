#pragma once
// Paged caches as TMA loads them. Read by g++ and by NVRTC.

#include "kernels/tile/fast_divide.h"

namespace flashcore::tile {

// How a block of keys is loaded from a paged cache: in boxes that each lie in one page, since `rows` divides both the
// page and the block.
struct PageBoxes {
  int rows, count;  // of a box, and boxes of a block
  // Of the map `v_end`: what a page and a key of a page add to its last coordinate.
  int steps_per_page, steps_per_key;
  FastDivide by_page_size;
};

// The parameters of a kernel that loads a paged cache so. The maps of k and v in `plain` are those of the pools, [page,
// head, key of the page, column], in boxes of `boxes.rows`. `v_end` loads the box in which a sequence ends:
// page_end_map_of of gpu_family.h.
template <class Plain, class Map>
struct Pool {
  Plain plain;
  Map v_end;
  PageBoxes boxes;
};

}  // namespace flashcore::tile
