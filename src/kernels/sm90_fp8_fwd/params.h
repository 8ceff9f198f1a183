#pragma once
// What the host hands to sm90_fp8_fwd. Read by g++ and by NVRTC.

#include "kernels/tile/page_boxes.h"
#include "kernels/tile/tile_order.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm90_fp8_fwd {

// `Map` is ptx::TensorMap on the device and 128 bytes to be encoded on the host.
template <class Map>
struct Params {
  Map q, k, v, o;  // 4-D: column, row, head, batch
  Fp8ForwardParams fp8;
  unsigned* tile_counter;  // zero before and after every launch; of Scheduler::kCounter only
  tile::TileOrder order;
  float* amax;  // of Traits::amax only; in what were padding bytes, so that nothing else moves
};

// The parameters of a paged problem.
template <class Map>
using PoolParams = tile::Pool<Params<Map>, Map>;

// Of V that lies transposed: `plain.k` is of K's even rows.
template <class Map>
struct TransposedParams {
  Params<Map> plain;
  Map k_odd;
};

}  // namespace flashcore::sm90_fp8_fwd
