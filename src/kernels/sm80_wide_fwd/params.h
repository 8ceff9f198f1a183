#pragma once
// What the host hands to sm80_wide_fwd. Read by g++ and by NVRTC.

#include "kernels/tile/fast_divide.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm80_wide_fwd {

struct Params {
  ForwardParams problem;
  void* parts;         // partial results of tiles that several CTAs share
  unsigned* counters;  // how many of a tile's parts are there; zero before and after a launch
  int group_size;      // query heads of a key head
  int total_q;         // rows of a ragged batch's q and o
  int row_tiles;       // of a sequence as long as the bound, and a key head
  int num_splits;      // CTAs of a tile
  tile::FastDivide by_group_size;
  tile::FastDivide by_page_size;
};

}  // namespace flashcore::sm80_wide_fwd
