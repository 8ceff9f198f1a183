#include "api/allocations.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <shared_mutex>
#include <tuple>

#include "core/error.h"

namespace flashcore::api {

void Allocations::add(const void* address, std::size_t bytes) {
  const std::unique_lock lock(mutex_);
  bytes_[reinterpret_cast<std::uintptr_t>(address)] = bytes;
  count_ = bytes_.size();
}

void Allocations::remove(const void* address) {
  const std::unique_lock lock(mutex_);
  bytes_.erase(reinterpret_cast<std::uintptr_t>(address));
  count_ = bytes_.size();
}

bool Allocations::check(const char* what, const void* at, std::int64_t low, std::int64_t high) const {
  if (count_ == 0 || low == high) return false;
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const std::uintptr_t before = low < 0 ? -static_cast<std::uintptr_t>(low) : 0;
  const std::uintptr_t after = high > 0 ? static_cast<std::uintptr_t>(high) : 0;
  const std::uintptr_t first = before < address ? address - before : 0;
  const std::uintptr_t end = after < UINTPTR_MAX - address ? address + after : UINTPTR_MAX;
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  {
    const std::shared_lock lock(mutex_);
    auto block = bytes_.upper_bound(first);  // the one before it may reach into the range
    if (block != bytes_.begin()) {
      const auto earlier = std::prev(block);
      if (first - earlier->first < std::max<std::size_t>(earlier->second, 1)) block = earlier;
    }
    if (block == bytes_.end() || block->first >= end) return false;
    std::tie(begin, bytes) = *block;
  }
  if (first >= begin && end - begin <= bytes) return true;
  const auto offset = static_cast<std::int64_t>(address - begin);
  throw_bad_input(
      "{} at {} would touch bytes {} to {} of an allocation of {} bytes; fc_memory_allocate more, or give a smaller "
      "size",
      what, at, offset + low, offset + high, bytes);
}

Allocations& allocations() {
  static auto* table = new Allocations;  // never destroyed: at exit, threads of the caller may still be at work
  return *table;
}

}  // namespace flashcore::api
