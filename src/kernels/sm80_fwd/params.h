#pragma once
// What the host hands to sm80_fwd where its problems have more than ForwardParams. Read by g++ and by NVRTC.

#include "kernels/tile/fast_divide.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm80_fwd {

// Of a paged problem.
struct PoolParams {
  ForwardParams plain;
  tile::FastDivide by_page_size;
};

}  // namespace flashcore::sm80_fwd
