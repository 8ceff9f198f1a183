#include "api/overlap.h"

#include <algorithm>
#include <cstddef>

namespace flashcore::api {
namespace {

constexpr int kMaxSteps = 20000;  // about 100 us

std::int64_t floor_divide(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && a < 0); }
std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return -floor_divide(-a, b); }

// Rows of a lie at a_at + i * strides, those of b at b_at + j * strides. Two of them share a byte if the difference of
// their starts is above -a.row_bytes and below b.row_bytes: a sum of (stride, bounded integer) products.
class Search {
 public:
  Search(const Footprint& a, const Footprint& b) : above_(-a.row_bytes), below_(b.row_bytes) {
    for (const Footprint::Axis& axis : a.axes) add(axis.stride, axis.extent - 1);
    for (const Footprint::Axis& axis : b.axes) add(-axis.stride, axis.extent - 1);
    std::sort(terms_.begin(), terms_.begin() + count_,
              [](const Term& x, const Term& y) { return x.stride > y.stride; });
    for (int i = count_ - 1; i >= 0; --i) {
      const Term& term = terms_[static_cast<std::size_t>(i)];
      rest_low_[static_cast<std::size_t>(i)] = rest_low_[static_cast<std::size_t>(i) + 1] + term.stride * term.least;
      rest_high_[static_cast<std::size_t>(i)] = rest_high_[static_cast<std::size_t>(i) + 1] + term.stride * term.most;
    }
  }

  // Whether `sum` and a choice of the terms from `at` on lie between the bounds; true when it takes too long to tell.
  bool reaches_between_bounds(std::int64_t sum, std::size_t at = 0) {
    if (++steps_ > kMaxSteps) return true;
    if (sum + rest_high_[at] <= above_ || sum + rest_low_[at] >= below_) return false;
    if (at == static_cast<std::size_t>(count_)) return true;
    const Term& term = terms_[at];
    const std::int64_t first = ceil_divide(above_ + 1 - sum - rest_high_[at + 1], term.stride);
    const std::int64_t last = floor_divide(below_ - 1 - sum - rest_low_[at + 1], term.stride);
    for (std::int64_t n = std::max(first, term.least); n <= std::min(last, term.most); ++n)
      if (reaches_between_bounds(sum + n * term.stride, at + 1)) return true;
    return false;
  }

 private:
  struct Term {
    std::int64_t stride, least, most;  // n * stride for every n from least to most
  };

  // Equal strides of both tensors, the usual case, become one term: without it the search would be exponential.
  void add(std::int64_t stride, std::int64_t most) {
    if (stride == 0 || most == 0) return;
    const Term given = stride > 0 ? Term{stride, 0, most} : Term{-stride, -most, 0};
    for (int i = 0; i < count_; ++i) {
      Term& term = terms_[static_cast<std::size_t>(i)];
      if (term.stride != given.stride) continue;
      term.least += given.least;
      term.most += given.most;
      return;
    }
    terms_[static_cast<std::size_t>(count_++)] = given;
  }

  std::array<Term, 6> terms_{};
  std::array<std::int64_t, 7> rest_low_{}, rest_high_{};
  int count_ = 0, steps_ = 0;
  std::int64_t above_, below_;
};

}  // namespace

Footprint::Footprint(const TensorLayout& layout, std::int64_t element_bytes) {
  if (layout.elements() == 0) return;
  axes = {Axis{layout.batch, layout.stride_batch * element_bytes},
          Axis{layout.heads, layout.stride_head * element_bytes}, Axis{layout.rows, layout.stride_row * element_bytes}};
  row_bytes = high = layout.columns * element_bytes;
  for (const Axis& axis : axes) {
    const std::int64_t reach = (axis.extent - 1) * axis.stride;
    (reach < 0 ? low : high) += reach;
  }
}

Footprint Footprint::of(const TensorLayout& l, DType dtype) {
  const auto bytes = [&](std::int64_t elements) { return bytes_of(dtype, elements); };
  return Footprint(
      {l.batch, l.heads, l.rows, bytes(l.columns), bytes(l.stride_batch), bytes(l.stride_head), bytes(l.stride_row)},
      1);
}

bool overlap(const Footprint& a, const void* a_at, const Footprint& b, const void* b_at) {
  if (a.empty() || b.empty()) return false;
  // Tensors span at most 2^40 elements an axis: further apart than this they cannot meet, and nearer nothing overflows.
  constexpr std::uintptr_t kFar = std::uintptr_t{1} << 60;
  const auto from = reinterpret_cast<std::uintptr_t>(b_at), to = reinterpret_cast<std::uintptr_t>(a_at);
  if ((to > from ? to - from : from - to) > kFar) return false;
  const auto apart = static_cast<std::int64_t>(to - from);
  if (apart + a.high <= b.low || apart + a.low >= b.high) return false;
  return Search(a, b).reaches_between_bounds(apart);
}

}  // namespace flashcore::api
