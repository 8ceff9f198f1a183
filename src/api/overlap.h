#pragma once
// Whether two strided tensors share memory: an output may not lie on an input, nor on the other output.

#include <array>
#include <cstdint>

#include "core/tensor.h"

namespace flashcore::api {

// A tensor's bytes, relative to the address of its element [0, 0, 0, 0].
struct Footprint {
  Footprint() = default;  // no bytes at all
  Footprint(const TensorLayout& layout, std::int64_t element_bytes);
  static Footprint of(const TensorLayout& layout, DType dtype);
  bool empty() const { return low == high; }

  struct Axis {
    std::int64_t extent = 1, stride = 0;  // bytes
  };
  std::array<Axis, 3> axes;
  std::int64_t row_bytes = 0;
  std::int64_t low = 0, high = 0;  // from the first byte to one past the last, gaps included
};

// Exact for tensors as slices and permutations make them: views that interleave, as q and o of one packed buffer, do
// not overlap. Strides in no order at all may need more search than a launch should pay for; those are called
// overlapping. A few comparisons when the ranges of bytes are apart.
bool overlap(const Footprint& a, const void* a_at, const Footprint& b, const void* b_at);

}  // namespace flashcore::api
