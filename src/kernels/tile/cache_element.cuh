#pragma once
// What a quantised cache stores, as 16-bit elements that tensor cores multiply with q: exact, NaN and infinities too.

#include "kernels/ptx/cvt_fp8.cuh"
#include "kernels/ptx/prmt.cuh"
#include "kernels/tile/element_fp8.cuh"

namespace flashcore::tile {

// By integer arithmetic, for architectures without the conversion.
template <Element E, Element kStored>
FC_DEVICE void widen_by_arithmetic(unsigned codes, unsigned (&pairs)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i)
    pairs[i] =
        pack<E>(float_of_fp8<kStored>(codes >> 16 * i & 0xffu), float_of_fp8<kStored>(codes >> (16 * i + 8) & 0xffu));
}

// Four int8, the lowest byte first. A byte below the mantissa of 2^10 in fp16, or of 2^23 in fp32, is a number of its
// own.
template <Element E>
FC_DEVICE void widen_int8(unsigned codes, unsigned (&pairs)[2]) {
  const unsigned positive = codes ^ 0x80808080u;  // x + 128
  if constexpr (E == Element::kF16) {
    constexpr unsigned kUpperBytes = 0x64646464u;  // of 2^10
    constexpr unsigned kOffsets = 0x64806480u;     // 2^10 + 128, twice
    pairs[0] = ptx::sub_f16x2(ptx::prmt(positive, kUpperBytes, 0x4140u), kOffsets);
    pairs[1] = ptx::sub_f16x2(ptx::prmt(positive, kUpperBytes, 0x4342u), kOffsets);
    return;
  }
  constexpr unsigned kTwoTo23 = 0x4b000000u;
  constexpr float kOffset = 8388608.0f + 128.0f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float low = ptx::float_of_bits(ptx::prmt(positive, kTwoTo23, 0x7440u + 2 * i)) - kOffset;
    const float high = ptx::float_of_bits(ptx::prmt(positive, kTwoTo23, 0x7441u + 2 * i)) - kOffset;
    pairs[i] = pack<E>(low, high);
  }
}

// Four 8-bit floats as pairs of fp16.
template <Element kStored>
FC_DEVICE void widen_to_f16(unsigned codes, unsigned (&pairs)[2]) {
  if constexpr (kStored == Element::kE5M2) {
    // e5m2 is the upper half of an fp16.
    pairs[0] = ptx::prmt(codes, 0u, 0x1404u), pairs[1] = ptx::prmt(codes, 0u, 0x3424u);
  } else {
    pairs[0] = ptx::cvt_f16x2_e4m3x2(codes & 0xffffu), pairs[1] = ptx::cvt_f16x2_e4m3x2(codes >> 16);
  }
}

// Four codes, the lowest byte first, as two packed pairs of E.
template <Element E, Element kStored>
FC_DEVICE void widen(unsigned codes, unsigned (&pairs)[2]) {
  if constexpr (kStored == Element::kInt8) {
    widen_int8<E>(codes, pairs);
  } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
    if constexpr (kStored == Element::kE4M3) return widen_by_arithmetic<E, kStored>(codes, pairs);
#endif
    widen_to_f16<kStored>(codes, pairs);
    if constexpr (E == Element::kBF16) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        pairs[i] = pack<E>(ptx::cvt_f32_f16(static_cast<unsigned short>(pairs[i])),
                           ptx::cvt_f32_f16(static_cast<unsigned short>(pairs[i] >> 16)));
    }
  }
}

}  // namespace flashcore::tile
