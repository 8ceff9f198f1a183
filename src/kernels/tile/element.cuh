#pragma once
// Operations that depend on the element type, chosen at compile time.

#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/mma_fp8.cuh"
#include "kernels/tile/traits.h"

namespace flashcore::tile {

// Two floats rounded to packed 16-bit elements, `low` first in memory.
template <Element E>
FC_DEVICE unsigned pack(float low, float high) {
  if constexpr (E == Element::kF16) return ptx::cvt_f16x2(low, high);
  else return ptx::cvt_bf16x2(low, high);
}

// m16n8k16, of 8 bits m16n8k32. E: of a; of b as well, unless that is e5m2 beside a of e4m3.
template <Element E, Element OfB = E>
FC_DEVICE void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  static_assert(E == OfB || (E == Element::kE4M3 && OfB == Element::kE5M2));
  if constexpr (E == Element::kF16) ptx::mma_m16n8k16_f16(d, a, b0, b1);
  else if constexpr (E == Element::kE4M3 && OfB == Element::kE4M3) ptx::mma_m16n8k32_e4m3(d, a, b0, b1);
  else if constexpr (E == Element::kE4M3) ptx::mma_m16n8k32_e4m3_e5m2(d, a, b0, b1);
  else if constexpr (E == Element::kE5M2) ptx::mma_m16n8k32_e5m2(d, a, b0, b1);
  else ptx::mma_m16n8k16_bf16(d, a, b0, b1);
}

// Element `index` of an array of E in global memory, as float.
template <Element E>
FC_DEVICE float load(const void* base, long long index) {
  if constexpr (E == Element::kF32) return ptx::ld_global_f32(static_cast<const float*>(base) + index);
  const unsigned short bits = ptx::ld_global_u16(static_cast<const unsigned short*>(base) + index);
  if constexpr (E == Element::kF16) return ptx::cvt_f32_f16(bits);
  else return ptx::cvt_f32_bf16(bits);
}

template <Element E>
FC_DEVICE void store(void* base, long long index, float value) {
  if constexpr (E == Element::kF32) ptx::st_global_f32(static_cast<float*>(base) + index, value);
  else
    ptx::st_global_u16(static_cast<unsigned short*>(base) + index, static_cast<unsigned short>(pack<E>(value, 0.0f)));
}

}  // namespace flashcore::tile
