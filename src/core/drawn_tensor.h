#pragma once
// Tensors filled place by place, and quantised where their type has 8 bits or 4.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "core/boundaries.h"
#include "core/data.h"
#include "core/paged.h"
#include "core/parallel.h"
#include "core/pattern_values.h"

namespace flashcore {

// Below this many elements starting a thread costs more than the work.
inline constexpr std::int64_t kFewElements = 1 << 14;

// Calls body(index) for each of `count` places, on all cores where they are many.
template <class Body>
void for_each_index(std::int64_t count, const Body& body) {
  constexpr std::int64_t kPiece = 1 << 16;
  parallel_for((count + kPiece - 1) / kPiece, count < kFewElements ? 1 : 0, [&](std::int64_t piece) {
    const std::int64_t end = std::min(count, (piece + 1) * kPiece);
    for (std::int64_t i = piece * kPiece; i < end; ++i) body(i);
  });
}

// Calls use(first place, values of its columns) for parts of a row, whose values `draw(first place, out)` gives.
template <class Draw, class Use>
void for_each_part(const Place& row, std::int64_t columns, const Draw& draw, const Use& use) {
  constexpr std::int64_t kPart = 256;
  float values[kPart];
  for (Place at = row; at.column < columns; at.column += kPart) {
    const std::span<float> part(values, static_cast<std::size_t>(std::min(kPart, columns - at.column)));
    draw(at, part);
    use(at, std::span<const float>(part));
  }
}

// What draw(first place, out) gives, which is the values of the columns from there on.
template <class Draw>
HostTensor fill(DType dtype, const TensorLayout& layout, const Draw& draw) {
  HostTensor tensor(dtype, layout);
  if (layout.elements() == 0) return tensor;
  const std::int64_t span = layout.span();
  const int threads = span < kFewElements ? 1 : 0;
  if (span != layout.elements())
    for_each_index(span, [&](std::int64_t i) {
      store_element(dtype, tensor.data.data(), i, std::numeric_limits<float>::quiet_NaN());
    });
  constexpr std::int64_t kRows = 32;
  const std::int64_t blocks = (layout.rows + kRows - 1) / kRows;
  parallel_for(layout.batch * layout.heads * blocks, threads, [&](std::int64_t job) {
    const std::int64_t head = job / blocks % layout.heads, batch = job / blocks / layout.heads;
    const std::int64_t end = std::min(layout.rows, (job % blocks + 1) * kRows);
    for (std::int64_t row = job % blocks * kRows; row < end; ++row)
      for_each_part({batch, head, row, 0}, layout.columns, draw, [&](const Place& at, std::span<const float> values) {
        store_elements(dtype, tensor.data.data(), layout.offset(batch, head, row) + at.column, values);
      });
  });
  return tensor;
}

// NaN, in turn of either sign; or of int8 the code of -128 and of int4 two of -8, which no number becomes.
inline std::byte nan_code(DType dtype, std::int64_t index) {
  if (dtype == DType::kInt4) return std::byte{0x88};
  return std::byte{static_cast<unsigned char>(dtype == DType::kInt8 ? 0x80 : index % 2 == 0 ? 0x7f : 0xff)};
}

// What a type of 8 bits or 4 stores of `value`: infinities stay where it has them.
inline void store_quantised(HostTensor& tensor, std::int64_t index, float value) {
  if (tensor.dtype == DType::kInt4 && std::isnan(value)) store_int4_code(tensor.data.data(), index, 8);
  else if (std::isnan(value)) tensor.data[static_cast<std::size_t>(index)] = nan_code(tensor.dtype, index);
  else if (tensor.dtype == DType::kE5M2 && std::isinf(value))
    tensor.data[static_cast<std::size_t>(index)] = std::byte{float_to_e5m2(value, Overflow::kNonFinite)};
  else store_element(tensor.dtype, tensor.data.data(), index, value);
}

// Which batch entry a row belongs to. A ragged batch has one tensor of the rows of all, and a paged one the keys of all
// in pages; nobody's pages count as the first one's.
class BatchOf {
 public:
  BatchOf(const Problem& problem, std::vector<std::int64_t> boundaries, const std::vector<PageOwner>& owners = {})
      : ragged_(problem.ragged()), boundaries_(std::move(boundaries)), owners_(owners) {}
  std::int64_t operator()(std::int64_t batch, std::int64_t row) const {
    if (!owners_.empty()) return std::max<std::int64_t>(0, owners_[static_cast<std::size_t>(batch)].sequence);
    return ragged_ ? sequence_of_row(boundaries_, row) : batch;
  }

 private:
  bool ragged_;
  std::vector<std::int64_t> boundaries_;
  std::vector<PageOwner> owners_;
};

// Raises `largest` to `value`: of numbers that are not negative, whose order is that of their bits.
inline void raise_to(float& largest, float value) {
  std::atomic_ref<float> shared(largest);
  float seen = shared.load(std::memory_order_relaxed);
  while (value > seen && !shared.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

// Calls body(batch, head, row) for each row of a tensor, on all cores where there are many elements.
template <class Body>
void for_each_row(const TensorLayout& layout, const Body& body) {
  parallel_for(layout.batch * layout.heads, layout.elements() < kFewElements ? 1 : 0, [&](std::int64_t at) {
    for (std::int64_t row = 0; row < layout.rows; ++row) body(at / layout.heads, at % layout.heads, row);
  });
}

template <class Draw>
float largest_of_row(const TensorLayout& layout, std::int64_t batch, std::int64_t head, std::int64_t row,
                     const Draw& draw) {
  float largest = 0;
  for_each_part({batch, head, row, 0}, layout.columns, draw, [&](const Place&, std::span<const float> values) {
    for (const float value : values)
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  });
  return largest;
}

// Of a row of zeros, as those have it who divide by no 0.
inline constexpr float kLeastMagnitude = 0x1p-20f;

// Of each row its own. Rows of nobody's pages have NaN: what the pool of an engine holds there may be anything.
template <class Draw>
std::vector<float> factors_of_rows(DType dtype, const TensorLayout& layout, const Draw& draw) {
  std::vector<float> factors(static_cast<std::size_t>(layout.batch * layout.heads * layout.rows));
  const auto largest = static_cast<float>(precision_of(dtype).largest);
  for_each_row(layout, [&](std::int64_t batch, std::int64_t head, std::int64_t row) {
    float& factor = factors[static_cast<std::size_t>((batch * layout.heads + head) * layout.rows + row)];
    const float magnitude = largest_of_row(layout, batch, head, row, draw);
    float first = 0;
    if (magnitude == 0 && layout.columns > 0) draw(Place{batch, head, row, 0}, std::span(&first, 1));
    const bool is_nobodys = std::isnan(first);
    factor =
        is_nobodys ? std::numeric_limits<float>::quiet_NaN() : (magnitude > 0 ? magnitude : kLeastMagnitude) / largest;
  });
  return factors;
}

// The factors that make the largest finite magnitude of each group of heads the largest number of the type. `group`:
// heads that share one with Scaling::kHead.
template <class Draw>
std::vector<float> factors_of(const Problem& problem, Scaling scaling, DType dtype, const TensorLayout& layout,
                              std::int64_t group, const BatchOf& batch_of, const Draw& draw) {
  if (scaling == Scaling::kNone) return {};
  std::vector<float> factors(
      static_cast<std::size_t>(scaling == Scaling::kTensor ? 1 : problem.batch * problem.heads_kv), 0.0f);
  std::vector<float> heads(static_cast<std::size_t>(problem.batch * layout.heads), 0.0f);
  for_each_row(layout, [&](std::int64_t batch, std::int64_t head, std::int64_t row) {
    // Pages of one sequence are rows of several entries.
    raise_to(heads[static_cast<std::size_t>(batch_of(batch, row) * layout.heads + head)],
             largest_of_row(layout, batch, head, row, draw));
  });
  for (std::size_t head = 0; head < heads.size(); ++head) {
    float& factor = factors[scaling == Scaling::kTensor ? 0 : head / static_cast<std::size_t>(group)];
    factor = std::max(factor, heads[head]);
  }
  const auto largest = static_cast<float>(precision_of(dtype).largest);
  for (float& factor : factors) factor = factor > 0 ? factor / largest : 1;
  return factors;
}

// What `draw` gives of every row as `dtype`, and the factors where that has 8 bits or 4. Values are drawn twice then: a
// cache of a gigabyte took longer to keep in fp32 than to draw again.
template <class Draw>
HostTensor draw_tensor(const Problem& problem, Scaling scaling, DType dtype, const TensorLayout& layout,
                       std::int64_t group, const BatchOf& batch_of, std::vector<float>& factors, const Draw& draw) {
  if (bits_of(dtype) > 8) return fill(dtype, layout, draw);
  factors = scaling == Scaling::kToken ? factors_of_rows(dtype, layout, draw)
                                       : factors_of(problem, scaling, dtype, layout, group, batch_of, draw);
  const auto factor_of = [&](std::int64_t batch, std::int64_t head, std::int64_t row) -> float {
    std::int64_t at = 0;
    switch (scaling) {
      case Scaling::kNone: return 1;
      case Scaling::kTensor: break;
      case Scaling::kHead: at = batch_of(batch, row) * problem.heads_kv + head / group; break;
      case Scaling::kToken: at = (batch * layout.heads + head) * layout.rows + row; break;
    }
    return factors[static_cast<std::size_t>(at)];
  };
  HostTensor tensor(dtype, layout);
  if (layout.span() != layout.elements())  // which stays between the rows
    for_each_index(static_cast<std::int64_t>(tensor.data.size()),
                   [&](std::int64_t i) { tensor.data[static_cast<std::size_t>(i)] = nan_code(dtype, i); });
  for_each_row(layout, [&](std::int64_t batch, std::int64_t head, std::int64_t row) {
    const float factor = factor_of(batch, head, row);
    const std::int64_t first = layout.offset(batch, head, row);
    for_each_part({batch, head, row, 0}, layout.columns, draw, [&](const Place& at, std::span<const float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        store_quantised(tensor, first + at.column + static_cast<std::int64_t>(i), values[i] / factor);
    });
  });
  return tensor;
}

}  // namespace flashcore
