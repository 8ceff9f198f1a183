#include "device/emulator/global_memory.h"

#include <sys/mman.h>

#include <algorithm>

#include "core/error.h"

namespace flashcore::emulator {
namespace {

constexpr std::size_t kAlignment = 256, kPageBytes = 65536;

// Buffers lie where no other process of ours has anything, so that one that runs others' kernels can have them at the
// same addresses. Far from what the loader and the sanitizers use.
std::atomic<char*> g_next_place{reinterpret_cast<char*>(std::uintptr_t{0x200000000000})};

std::size_t mapped_bytes(std::size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

char red_zone_byte(std::size_t index) { return static_cast<char>(0x5A ^ (index * 0x47)); }

}  // namespace

Allocation::Allocation(std::size_t bytes, std::size_t red_zone, char* at)
    : front_((std::max(red_zone, kAlignment) + kAlignment - 1) / kAlignment * kAlignment), size_(bytes) {
  char* wanted = at ? at : g_next_place.fetch_add(mapped_bytes(placed_bytes()) + kPageBytes);
  // Without `at` the place is a wish: any other serves this process as well, though not one that runs others' kernels.
  void* memory = mmap(wanted, placed_bytes(), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0), -1, 0);
  if (memory == MAP_FAILED || (at && memory != at))
    throw_environment("no memory for a buffer of {} bytes on the emulated GPU; try a smaller problem", bytes);
  data_ = static_cast<char*>(memory) + front_;
  std::fill(data_, data_ + size_, static_cast<char>(0xff));
  for (std::size_t i = 0; i < front_; ++i)
    data_[static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(front_)] = data_[size_ + i] = red_zone_byte(i);
}

Allocation::~Allocation() { munmap(place(), placed_bytes()); }

bool Allocation::red_zones_intact() const {
  for (std::size_t i = 0; i < front_; ++i) {
    if (data_[static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(front_)] != red_zone_byte(i) ||
        data_[size_ + i] != red_zone_byte(i))
      return false;
  }
  return true;
}

std::optional<GlobalAccess> Allocation::exchange_writer(std::size_t offset, const GlobalAccess& writer) {
  std::call_once(shadow_once_, [this] {
    cells_.resize((size_ + kCellBytes - 1) / kCellBytes);
    shadow_.store(cells_.data(), std::memory_order_release);
  });
  const std::size_t cell = offset / kCellBytes;
  const std::lock_guard lock(lock_of(cell));
  Cell& at = cells_[cell];
  const auto before = at.written ? std::optional(at.access) : std::nullopt;
  at = {writer, true};
  return before;
}

std::optional<GlobalAccess> Allocation::writer(std::size_t offset) const {
  const Cell* cells = shadow_.load(std::memory_order_acquire);
  if (!cells) return std::nullopt;
  const std::size_t cell = offset / kCellBytes;
  const std::lock_guard lock(lock_of(cell));
  return cells[cell].written ? std::optional(cells[cell].access) : std::nullopt;
}

namespace {

// Of cell `cell`, the bytes of [offset, offset + bytes), a bit for each.
std::uint16_t bytes_in_cell(std::size_t cell, std::size_t cell_bytes, std::size_t offset, std::size_t bytes) {
  const std::size_t first = std::max(offset, cell * cell_bytes) - cell * cell_bytes;
  const std::size_t end = std::min(offset + bytes, (cell + 1) * cell_bytes) - cell * cell_bytes;
  return static_cast<std::uint16_t>((1u << end) - (1u << first));
}

}  // namespace

void Allocation::remember_reader(std::size_t offset, std::size_t bytes, const GlobalAccess& reader) {
  std::call_once(readers_once_, [this] {
    read_cells_.resize((size_ + kReadCellBytes - 1) / kReadCellBytes);
    readers_.store(read_cells_.data(), std::memory_order_release);
  });
  for (std::size_t cell = offset / kReadCellBytes; cell * kReadCellBytes < offset + bytes; ++cell) {
    const std::uint16_t touched = bytes_in_cell(cell, kReadCellBytes, offset, bytes);
    const std::lock_guard lock(lock_of(cell));
    ReadCell& at = read_cells_[cell];
    const auto is_free = [&](int i) { return at.bytes[i] == 0 || at.access[i].launch != reader.launch; };
    // A later read by the same agent stands for its earlier one of no other bytes.
    const auto is_covered = [&](int i) {
      return at.access[i].cta == reader.cta && at.access[i].agent == reader.agent && (at.bytes[i] & ~touched) == 0;
    };
    const int slot = is_free(0) || is_covered(0) ? 0 : 1;
    at.access[slot] = reader, at.bytes[slot] = touched;
  }
}

std::vector<GlobalAccess> Allocation::readers(std::size_t offset, std::size_t bytes, std::uint32_t launch) const {
  std::vector<GlobalAccess> found;
  const ReadCell* cells = readers_.load(std::memory_order_acquire);
  if (!cells) return found;
  for (std::size_t cell = offset / kReadCellBytes; cell * kReadCellBytes < offset + bytes; ++cell) {
    const std::lock_guard lock(lock_of(cell));
    for (int i = 0; i < 2; ++i) {
      const bool overlaps = (cells[cell].bytes[i] & bytes_in_cell(cell, kReadCellBytes, offset, bytes)) != 0;
      if (overlaps && cells[cell].access[i].launch == launch) found.push_back(cells[cell].access[i]);
    }
  }
  return found;
}

std::shared_ptr<Allocation> GlobalMemory::allocate(std::size_t bytes, std::size_t red_zone) {
  auto fresh = std::make_shared<Allocation>(bytes, red_zone);
  std::erase_if(allocations_, [](const auto& old) { return old.expired(); });
  allocations_.push_back(fresh);
  return fresh;
}

std::vector<std::shared_ptr<Allocation>> GlobalMemory::all() const {
  std::vector<std::shared_ptr<Allocation>> alive;
  for (const auto& weak : allocations_) {
    if (auto allocation = weak.lock()) alive.push_back(std::move(allocation));
  }
  return alive;
}

std::string GlobalMemory::describe(const void* address) const {
  const auto* at = static_cast<const char*>(address);
  std::shared_ptr<Allocation> nearest;
  std::ptrdiff_t distance = 0;
  for (const auto& weak : allocations_) {
    const auto allocation = weak.lock();
    if (!allocation) continue;
    const char* begin = allocation->data();
    const char* end = begin + allocation->size();
    const std::ptrdiff_t here = at < begin ? begin - at : at >= end ? at - end + 1 : 0;
    if (!nearest || here < distance) nearest = allocation, distance = here;
  }
  if (!nearest) return "no device memory is allocated";
  const std::string name = nearest->label.name.empty() ? fmt::format("the buffer of {} bytes at {}", nearest->size(),
                                                                     static_cast<void*>(nearest->data()))
                                                       : nearest->label.name;
  constexpr std::ptrdiff_t kFar = 16 << 20;
  if (distance > kFar) return fmt::format("{} is far from every device buffer", address);
  if (at < nearest->data()) return fmt::format("{} bytes before the start of {}", nearest->data() - at, name);
  if (at >= nearest->data() + nearest->size())
    return fmt::format("{} bytes past the end of {}",
                       at - nearest->data() - static_cast<std::ptrdiff_t>(nearest->size()), name);
  const std::ptrdiff_t offset = at - nearest->data();
  if (!nearest->label.layout) return fmt::format("{} + {}", name, offset);
  const TensorLayout& l = *nearest->label.layout;
  std::int64_t rest = offset * 8 / bits_of(nearest->label.dtype);  // of int4 the first one of the byte
  // From the largest stride to the smallest, whatever the layout.
  struct Axis {
    const char* letter;
    std::int64_t stride, index = 0;
  } axes[3] = {{"batch", l.stride_batch}, {"head", l.stride_head}, {"row", l.stride_row}};
  Axis* order[3] = {&axes[0], &axes[1], &axes[2]};
  std::sort(std::begin(order), std::end(order), [](const Axis* a, const Axis* b) { return a->stride > b->stride; });
  for (Axis* axis : order) {
    if (axis->stride <= 0) continue;
    axis->index = rest / axis->stride;
    rest %= axis->stride;
  }
  return fmt::format("{}[batch {}, head {}, row {}, column {}]", name, axes[0].index, axes[1].index, axes[2].index,
                     rest);
}

}  // namespace flashcore::emulator
