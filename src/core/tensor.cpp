#include "core/tensor.h"

namespace flashcore {
std::int64_t TensorLayout::span() const {
  if (elements() == 0) return 0;
  return offset(batch - 1, heads - 1, rows - 1) + columns;
}

HostTensor::HostTensor(DType element, const TensorLayout& where)
    : dtype(element), layout(where), data(static_cast<std::size_t>(where.span()) * size_of(element)) {}

}  // namespace flashcore
