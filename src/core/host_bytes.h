#pragma once
// Memory of tensors, which may have gigabytes: new pages cost more than what is written to them, so nothing is written
// twice, pages are large, and all cores write.

#include <cstddef>
#include <memory>
#include <span>

namespace flashcore {

class HostBytes {
 public:
  HostBytes() = default;
  // Of any content. Throws std::bad_alloc.
  explicit HostBytes(std::size_t size);
  static HostBytes zeros(std::size_t size);
  static HostBytes copy_of(std::span<const std::byte> from);

  HostBytes(const HostBytes& other) : HostBytes(copy_of(other)) {}
  HostBytes& operator=(const HostBytes& other);  // in place where the sizes are equal
  HostBytes(HostBytes&& other) noexcept;
  HostBytes& operator=(HostBytes&& other) noexcept;
  ~HostBytes() = default;

  std::byte* data() { return memory_.get(); }
  const std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::byte* begin() { return data(); }
  std::byte* end() { return data() + size_; }
  const std::byte* begin() const { return data(); }
  const std::byte* end() const { return data() + size_; }
  std::byte& operator[](std::size_t at) { return memory_[at]; }
  const std::byte& operator[](std::size_t at) const { return memory_[at]; }
  bool operator==(const HostBytes& other) const;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace flashcore
