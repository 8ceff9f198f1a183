#pragma once
// A thread's columns of a row, as they are before they are divided by their factor, and what they become behind it.

#include "kernels/ptx/cvt_fp8.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/quantise/params.h"
#include "kernels/tile/element_fp8.cuh"
#include "kernels/tile/values.cuh"

namespace flashcore::quantise {

// Columns behind the last are zeros.
template <Element E, bool kVector>
FC_DEVICE void load_columns(const Operand& x, const Place& place, int part, float (&values)[kColumns]) {
  const long long first = offset_of(x.from_stride, place) + part * kColumns;
  if constexpr (kVector) {
    constexpr int kBytes = tile::bytes_of_element(E), kOfVector = 16 / kBytes;
    const char* from = static_cast<const char*>(x.from) + first * kBytes;
#pragma unroll
    for (int i = 0; i < kColumns; i += kOfVector) tile::load_16_bytes<E>(from + i * kBytes, values, i);
  } else {
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
      values[i] = part * kColumns + i < x.dim ? tile::load<E>(x.from, first + i) : 0.0f;
  }
}

// Takes the head's mean, which many rows have in common, from L1: 16 registers for it would cost CTAs.
template <bool kVector>
FC_DEVICE void take_mean(const float* mean, const Place& place, int dim, int part, float (&values)[kColumns]) {
  const float* from = mean + static_cast<long long>(place.slab) * dim + part * kColumns;
  float means[kColumns];
  if constexpr (kVector) {
#pragma unroll
    for (int i = 0; i < kColumns; i += 4) tile::load_16_bytes<Element::kF32>(from + i, means, i);
  } else {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) means[i] = part * kColumns + i < dim ? ptx::ld_global_f32(from + i) : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) values[i] -= means[i];
}

// The butterflies of the Hadamard transform, by rising distance: between columns of a thread first, then between lanes.
FC_DEVICE void rotate(const QuantiseParams& params, int dim, int part, float (&values)[kColumns]) {
  const unsigned signs = params.signs[part / 2 % (kMostRotated / 32)] >> part % 2 * kColumns;
#pragma unroll
  for (int i = 0; i < kColumns; ++i)
    values[i] = ptx::float_of_bits(ptx::bits_of_float(values[i]) ^ (signs >> i & 1u) << 31);
#pragma unroll
  for (int size = 1; size < kColumns; size *= 2) {
    if (size >= dim) continue;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (i & size) continue;
      const float a = values[i], b = values[i + size];
      values[i] = a + b, values[i + size] = a - b;
    }
  }
  for (int lanes = 1; lanes * kColumns < dim; lanes *= 2) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float other = ptx::shfl_bfly(values[i], lanes);
      values[i] = part & lanes ? other - values[i] : values[i] + other;
    }
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) values[i] *= params.rotation_scale;
}

// Four codes, the first in the lowest byte.
template <Element E>
FC_DEVICE unsigned word_of_codes(float a, float b, float c, float d) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
  if constexpr (E == Element::kE4M3) return ptx::cvt_e4m3x4(a, b, c, d);
#endif
  return tile::fp8_of_float<E>(a) | tile::fp8_of_float<E>(b) << 8 | tile::fp8_of_float<E>(c) << 16 |
         tile::fp8_of_float<E>(d) << 24;
}

template <Element E>
FC_DEVICE void codes_of(const float (&values)[kColumns], float factor, unsigned (&words)[kColumns / 4]) {
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i)
    words[i] = word_of_codes<E>(values[4 * i] / factor, values[4 * i + 1] / factor, values[4 * i + 2] / factor,
                                values[4 * i + 3] / factor);
}

}  // namespace flashcore::quantise
