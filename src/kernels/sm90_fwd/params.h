#pragma once
// What the host hands to sm90_fwd. Read by g++ and by NVRTC.

#include "kernels/tile/fast_divide.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm90_fwd {

// `Map` is ptx::TensorMap on the device and 128 bytes to be encoded on the host.
template <class Map>
struct Params {
  Map q, k, v, o;  // 4-D: column, row, head, batch; boxes of 64 columns
  ForwardParams problem;
  unsigned* tile_counter;  // zero before and after every launch; scheduler 2 only
  int row_tiles;           // of one head
  int tile_count;          // of all heads and batches
  int heads_per_section;   // causal: heads whose tiles are taken together, longest first
  int whole_sections;      // causal: sections of that many heads; one of fewer may follow
  tile::FastDivide by_row_tiles, by_heads_q, by_group_size;
  tile::FastDivide by_section_tiles, by_section_heads, by_last_section_heads;
};

}  // namespace flashcore::sm90_fwd
