#pragma once
// Four-dimensional tensors in host memory, addressed as (batch, head, row, column) whatever their layout.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "core/problem.h"

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

TensorLayout make_layout(Layout layout, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                         std::int64_t columns);

// The layouts of one problem's operands. lse is fp32 [batch, heads_q, seqlen_q], contiguous.
struct ProblemLayouts {
  TensorLayout q, k, v, o;
  std::int64_t lse_elements = 0;
};
ProblemLayouts make_layouts(const Problem& problem);

// Owns host memory of one tensor.
struct HostTensor {
  DType dtype = DType::kF32;
  TensorLayout layout;
  std::vector<std::byte> data;

  HostTensor() = default;
  HostTensor(DType element, const TensorLayout& where);
  float at(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t column) const {
    return load_element(dtype, data.data(), layout.offset(b, h, row) + column);
  }
  void set(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t column, float value) {
    store_element(dtype, data.data(), layout.offset(b, h, row) + column, value);
  }
};

}  // namespace flashcore
