#include "core/tensor.h"

#include <cstring>

namespace flashcore {
std::int64_t TensorLayout::span() const {
  if (elements() == 0) return 0;
  return offset(batch - 1, heads - 1, rows - 1) + columns;
}

HostTensor::HostTensor(DType element, const TensorLayout& where)
    : dtype(element),
      layout(where),
      data(HostBytes::zeros(static_cast<std::size_t>(bytes_of(element, where.span())))) {}

void copy_row(HostTensor& to, std::int64_t to_offset, const HostTensor& from, std::int64_t from_offset) {
  if (from.row_bytes() > 0) std::memcpy(to.address(to_offset), from.address(from_offset), from.row_bytes());
}

}  // namespace flashcore
