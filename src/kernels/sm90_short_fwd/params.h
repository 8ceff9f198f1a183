#pragma once
// What the host hands to sm90_short_fwd. Read by g++ and by NVRTC.

#include "kernels/tile/page_boxes.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm90_short_fwd {

// `Map` is ptx::TensorMap on the device and 128 bytes to be encoded on the host.
template <class Map>
struct Params {
  Map q, k, v;  // 4-D: column, row, head, batch; boxes of 64 columns
  ForwardParams problem;
  int group_size;     // query heads of a key head
  int head_tiles;     // tiles of pack_heads that they make
  int longest_first;  // of a paged problem: whether CTAs take the sequences by their length
};

// The parameters of a paged problem.
template <class Map>
using PoolParams = tile::Pool<Params<Map>, Map>;

}  // namespace flashcore::sm90_short_fwd
