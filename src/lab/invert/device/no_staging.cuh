#pragma once
// Nothing is copied ahead: cp.async becomes a load and a store that its thread waits for.

#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"

namespace flashcore::planted {

FC_DEVICE void cp_async_16(ptx::SharedAddress destination, const void* source, int source_bytes) {
  ptx::Vector4 piece = {0, 0, 0, 0};
  if (source_bytes != 0) piece = ptx::ld_global_v4(source);
  ptx::st_shared_v4(destination, ptx::float_of_bits(piece.x), ptx::float_of_bits(piece.y), ptx::float_of_bits(piece.z),
                    ptx::float_of_bits(piece.w));
}

}  // namespace flashcore::planted
