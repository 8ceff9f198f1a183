#include "core/host_bytes.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "core/parallel.h"

namespace flashcore {
namespace {

constexpr std::size_t kLargePage = std::size_t{2} << 20, kLarge = 4 * kLargePage;

// body(first, count) for pieces of `bytes`.
template <class Body>
void for_each_piece(std::size_t bytes, const Body& body) {
  constexpr std::size_t kPiece = kLargePage;
  const std::size_t pieces = (bytes + kPiece - 1) / kPiece;
  parallel_for(static_cast<std::int64_t>(pieces), bytes < kLarge ? 1 : 0, [&](std::int64_t piece) {
    const std::size_t first = static_cast<std::size_t>(piece) * kPiece;
    body(first, std::min(kPiece, bytes - first));
  });
}

void copy_pieces(std::span<const std::byte> from, std::byte* to) {
  for_each_piece(from.size(),
                 [&](std::size_t first, std::size_t count) { std::memcpy(to + first, from.data() + first, count); });
}

std::byte* allocate(std::size_t bytes) {
  const bool large = bytes >= kLarge;
  // aligned_alloc wants a multiple of the alignment.
  void* memory = large ? std::aligned_alloc(kLargePage, (bytes + kLargePage - 1) / kLargePage * kLargePage)
                       : std::malloc(std::max<std::size_t>(bytes, 1));
  if (!memory) throw std::bad_alloc();
  if (large) (void)madvise(memory, bytes, MADV_HUGEPAGE);  // where the kernel has none, small ones do
  return static_cast<std::byte*>(memory);
}

}  // namespace

void HostBytes::Free::operator()(std::byte* memory) const { std::free(memory); }

HostBytes::HostBytes(std::size_t size) : memory_(allocate(size)), size_(size) {}

HostBytes& HostBytes::operator=(const HostBytes& other) {
  if (this == &other) return *this;
  if (size_ != other.size_) return *this = copy_of(other);
  copy_pieces(other, data());
  return *this;
}

HostBytes::HostBytes(HostBytes&& other) noexcept
    : memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}

HostBytes& HostBytes::operator=(HostBytes&& other) noexcept {
  memory_ = std::move(other.memory_);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

HostBytes HostBytes::zeros(std::size_t size) {
  HostBytes bytes(size);
  for_each_piece(size, [&](std::size_t first, std::size_t count) { std::memset(bytes.data() + first, 0, count); });
  return bytes;
}

HostBytes HostBytes::copy_of(std::span<const std::byte> from) {
  HostBytes bytes(from.size());
  copy_pieces(from, bytes.data());
  return bytes;
}

bool HostBytes::operator==(const HostBytes& other) const {
  if (size_ != other.size_) return false;
  std::atomic<bool> equal = true;
  for_each_piece(size_, [&](std::size_t first, std::size_t count) {
    if (std::memcmp(data() + first, other.data() + first, count) != 0) equal = false;
  });
  return equal;
}

}  // namespace flashcore
