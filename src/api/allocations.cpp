#include "api/allocations.h"

#include <algorithm>
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

void Allocations::check(const char* what, const void* at, std::int64_t low, std::int64_t high) const {
  if (count_ == 0 || low == high) return;
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  {
    const std::shared_lock lock(mutex_);
    auto next = bytes_.upper_bound(reinterpret_cast<std::uintptr_t>(at));
    if (next == bytes_.begin()) return;
    std::tie(begin, bytes) = *--next;
  }
  const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(at) - begin;
  if (offset >= std::max<std::size_t>(bytes, 1)) return;  // beyond it: somebody else's
  const std::uintptr_t before = low < 0 ? -static_cast<std::uintptr_t>(low) : 0;
  const std::uintptr_t after = high > 0 ? static_cast<std::uintptr_t>(high) : 0;
  if (before <= offset && after <= bytes - offset) return;
  throw_bad_input(
      "{} at {} would touch bytes {} to {} of an allocation of {} bytes; fc_memory_allocate more, or give a smaller "
      "size",
      what, at, static_cast<std::int64_t>(offset) + low, static_cast<std::int64_t>(offset) + high, bytes);
}

Allocations& allocations() {
  static auto* table = new Allocations;  // never destroyed: at exit, threads of the caller may still be at work
  return *table;
}

}  // namespace flashcore::api
