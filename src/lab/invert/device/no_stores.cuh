#pragma once
// No stores of results: the values are computed, unknown to the compiler, and go nowhere.

#include "kernels/ptx/bulk.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/tma.cuh"

namespace flashcore::planted {

FC_DEVICE void st_global_f32(float*, float value) { ptx::opaque(ptx::bits_of_float(value)); }
FC_DEVICE void st_global_u16(unsigned short*, unsigned short value) { ptx::opaque(static_cast<unsigned>(value)); }
FC_DEVICE void st_global_u8(unsigned char*, unsigned value) { ptx::opaque(value); }
FC_DEVICE void st_global_u32(unsigned*, unsigned value) { ptx::opaque(value); }
FC_DEVICE void st_global_v4(void*, ptx::Vector4 value) {
  ptx::opaque(value.x), ptx::opaque(value.y), ptx::opaque(value.z), ptx::opaque(value.w);
}
FC_DEVICE void tma_store_4d(const ptx::TensorMap&, ptx::SharedAddress, int, int, int, int) {}
FC_DEVICE void bulk_store(void*, ptx::SharedAddress, int) {}

}  // namespace flashcore::planted
