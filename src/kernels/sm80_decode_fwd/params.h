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

// The parameters of `forward_fp8`, for q of 8 bits.
struct Fp8Params {
  Params plain;
  Descale descale_q, descale_k, descale_v;
};

template <bool kFirst, class First, class Second>
struct Choice {
  using Type = First;
};
template <class First, class Second>
struct Choice<false, First, Second> {
  using Type = Second;
};
// Parameters with the factors of codes.
template <Traits T>
using Factored = typename Choice<is_8bit(T.element), Fp8Params, Quantised<Params>>::Type;

}  // namespace flashcore::sm80_decode_fwd
