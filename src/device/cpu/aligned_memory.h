#pragma once
// Host memory aligned for the widest vectors and for pages.

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>

#include "core/error.h"

namespace flashcore {

// Uninitialised, 4096-byte aligned. Error kEnvironment if there is not that much memory.
class AlignedMemory {
 public:
  static constexpr std::size_t kAlignment = 4096;

  AlignedMemory() = default;
  explicit AlignedMemory(std::size_t bytes) : size_(bytes) {
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (rounded < bytes) throw_environment("an allocation of {} bytes is beyond any address space", bytes);
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded)));
    if (!data_) throw_environment("no memory for {} bytes: free some, or choose a smaller problem", bytes);
    t_made += rounded;
  }
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_.get(), size_}; }
  // Bytes of all that the calling thread has ever made: the difference around a call is what the call took.
  static std::size_t made_by_this_thread() { return t_made; }

 private:
  static inline thread_local std::size_t t_made = 0;
  struct Free {
    void operator()(std::byte* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::size_t size_ = 0;
};

}  // namespace flashcore
