#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// NaN: a chain that begins by adding shows.
template <int kCount>
FC_DEVICE void fresh_accumulator(float (&values)[kCount]) {
  for (float& value : values) value = __builtin_bit_cast(float, 0x7fffffffu);
}

}  // namespace flashcore::ptx
