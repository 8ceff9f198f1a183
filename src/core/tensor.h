#pragma once
// Four-dimensional tensors in host memory, addressed as (batch, head, row, column) whatever their layout.

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/host_bytes.h"

namespace flashcore {

// Extents and strides in elements. The column stride is always 1.
struct TensorLayout {
  std::int64_t batch = 0, heads = 0, rows = 0, columns = 0;
  std::int64_t stride_batch = 0, stride_head = 0, stride_row = 0;

  std::int64_t offset(std::int64_t b, std::int64_t h, std::int64_t row) const {
    return b * stride_batch + h * stride_head + row * stride_row;
  }
  std::int64_t elements() const { return batch * heads * rows * columns; }
  // Elements from the first to one past the last, gaps included: what to allocate.
  std::int64_t span() const;
};

// Owns host memory of one tensor.
struct HostTensor {
  DType dtype = DType::kF32;
  TensorLayout layout;
  HostBytes data;

  HostTensor() = default;
  HostTensor(DType element, const TensorLayout& where);  // of zeros
  float at(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t column) const {
    return load_element(dtype, data.data(), layout.offset(b, h, row) + column);
  }
  void set(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t column, float value) {
    store_element(dtype, data.data(), layout.offset(b, h, row) + column, value);
  }
  // Where element `offset` of the layout begins; of int4 an even one.
  std::byte* address(std::int64_t offset) { return data.data() + bytes_of(dtype, offset); }
  const std::byte* address(std::int64_t offset) const { return data.data() + bytes_of(dtype, offset); }
  std::size_t row_bytes() const { return static_cast<std::size_t>(bytes_of(dtype, layout.columns)); }
};

// The columns of one row, between tensors of one type and width, or within one; at offsets of their layouts.
void copy_row(HostTensor& to, std::int64_t to_offset, const HostTensor& from, std::int64_t from_offset);

}  // namespace flashcore
