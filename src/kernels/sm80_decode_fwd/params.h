#pragma once
// What the host hands to sm80_decode_fwd. Read by g++ and by NVRTC.

#include "kernels/tile/fast_divide.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm80_decode_fwd {

// Strides of K or V in units of 16 bytes, of which 32 bits reach through 64 GB.
struct Units {
  unsigned batch, head, row;
};

struct Params {
  ForwardParams problem;
  void* parts;         // partial results of tiles that several CTAs share
  unsigned* counters;  // how many of a tile's parts are there; zero before and after a launch
  int group_size;      // query heads of a key head
  int total_q;         // rows of a ragged batch's q and o
  tile::FastDivide by_group_size;
  tile::FastDivide by_page_size;
  Units k_units, v_units;
};

}  // namespace flashcore::sm80_decode_fwd
