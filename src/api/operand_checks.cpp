#include "api/operand_checks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "api/allocations.h"

namespace flashcore::api {
namespace {

void check_reach(const char* name, const TensorLayout& l) {
  constexpr std::int64_t kMost = OperandChecks::kMostReach;
  const std::int64_t extents[] = {l.batch, l.heads, l.rows}, strides[] = {l.stride_batch, l.stride_head, l.stride_row};
  for (int i = 0; i < 3; ++i)
    if (extents[i] > 1 && (strides[i] > kMost / extents[i] || strides[i] < -kMost / extents[i]))
      throw_bad_input("{} has {} times a stride of {} elements; at most 2^56 elements are allowed", name, extents[i],
                      strides[i]);
}

// Two rows in one place would be one's data in another's. Of strides as slices and permutations make them, each steps
// over all that the smaller ones reach; others are refused.
void check_distinct(const char* name, const TensorLayout& l) {
  std::array<std::pair<std::int64_t, std::int64_t>, 3> axes = {
      {{std::abs(l.stride_batch), l.batch}, {std::abs(l.stride_head), l.heads}, {std::abs(l.stride_row), l.rows}}};
  std::sort(axes.begin(), axes.end());
  std::int64_t reach = l.columns;
  for (const auto& [stride, extent] : axes) {
    if (extent == 1) continue;
    if (stride < reach)
      throw_bad_input(
          "{} has strides ({}, {}, {}) of batch, head and row: its rows of {} elements share memory, and one's new "
          "numbers would overwrite another's; give a tensor with memory of its own",
          name, l.stride_batch, l.stride_head, l.stride_row, l.columns);
    reach += stride * (extent - 1);
  }
}

}  // namespace

std::int64_t OperandChecks::within(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) throw_bad_input("{} is {}; {} to {} are allowed", name, value, least, most);
  return value;
}

int OperandChecks::whole(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  return static_cast<int>(within(name, value, least, most));
}

void OperandChecks::check_address(const char* name, const void* at, std::int64_t alignment) const {
  if (!at) throw_bad_input("{} is null; give its address on {}", name, context_.info().id);
  if (reinterpret_cast<std::uintptr_t>(at) % static_cast<std::uintptr_t>(alignment) != 0)
    throw_bad_input("{} is at {}, which is no multiple of its {}-byte elements; copy it", name, at, alignment);
}

void OperandChecks::tensor(const char* name, const void* at, const TensorLayout& layout, DType dtype, bool written) {
  if (layout.batch == 0 || layout.heads == 0 || layout.rows == 0) return;
  check_reach(name, layout);
  check_address(name, at, static_cast<std::int64_t>(least_bytes(dtype)));
  const Footprint footprint = Footprint::of(layout, dtype);
  if (!context_.on_cpu() && footprint.low < 0)
    throw_bad_input("{} has a negative stride, and only the CPU's loops take those; copy the tensor", name);
  if (written) check_distinct(name, layout);
  memory(name, at, footprint, written);
}

void OperandChecks::array(const char* name, const void* at, std::int64_t count, std::int64_t element_bytes,
                          bool written) {
  if (count == 0) return;
  check_address(name, at, element_bytes);
  const std::int64_t bytes = count * element_bytes;
  memory(name, at, Footprint({1, 1, 1, bytes, bytes, bytes, bytes}, 1), written);
}

unsigned* OperandChecks::counts(const char* name, std::uint64_t* at, std::int64_t count, bool wanted) {
  if (!wanted) {
    if (at) throw_bad_input("{} is given, and this handle was made with counts_saturated 0; give null", name);
    return nullptr;
  }
  array(name, at, count, sizeof(std::uint64_t), true);
  return reinterpret_cast<unsigned*>(at);
}

void OperandChecks::memory(const char* name, const void* at, const Footprint& footprint, bool written) {
  allocations().check(name, at, footprint.low, footprint.high);
  FC_CHECK(count_ < tensors_.size());
  tensors_[count_++] = {name, at, footprint, written};
}

void OperandChecks::check_apart() const {
  for (std::size_t i = 0; i < count_; ++i)
    for (std::size_t j = 0; j < count_; ++j) {
      const Tensor &out = tensors_[i], &other = tensors_[j];
      if (i == j || !out.written || !overlap(out.footprint, out.at, other.footprint, other.at)) continue;
      throw_bad_input("{} at {} overlaps {} at {}; give an output memory of its own", out.name, out.at, other.name,
                      other.at);
    }
}

}  // namespace flashcore::api
