#pragma once
// Device memory of the emulated GPU: host memory with a register of what was allocated, what it is called, and who
// wrote it in the current launch.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/emulator/clocks.h"

namespace flashcore::emulator {

// Who did a global access, as the shadow remembers it.
struct GlobalAccess {
  std::uint32_t launch = 0;
  std::uint32_t cta = 0;
  std::uint32_t time = 0;         // of the agent, as in clocks.h
  Agent agent = kNobody;          // of the cluster: the thread, or a copy that it started
  std::uint16_t thread = 0;       // within the CTA
  const void* address = nullptr;  // of the code
};

class Allocation {
 public:
  // `at`: where its first byte must lie, a place() of another process; null: anywhere. Error kEnvironment if there is
  // no memory.
  Allocation(std::size_t bytes, std::size_t red_zone, char* at = nullptr);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  char* data() const { return data_; }
  std::size_t size() const { return size_; }
  // The data with the red zones before and after it.
  char* place() const { return data_ - front_; }
  std::size_t placed_bytes() const { return front_ + size_ + front_; }
  std::size_t red_zone() const { return front_; }
  bool contains(const void* address, std::size_t bytes) const {
    const auto* at = static_cast<const char*>(address);
    return at >= data_ && bytes <= size_ && at <= data_ + (size_ - bytes);
  }
  bool red_zones_intact() const;
  // Writers are remembered for cells of this size, the smallest that kernels write.
  static constexpr std::size_t kCellBytes = 1;
  // Whether a kernel ever wrote here.
  bool written() const { return shadow_.load(std::memory_order_acquire) != nullptr; }
  // The last writer of the cell at `offset`, replaced by another or asked for; none if nobody wrote. Thread-safe.
  std::optional<GlobalAccess> exchange_writer(std::size_t offset, const GlobalAccess& writer);
  std::optional<GlobalAccess> writer(std::size_t offset) const;
  // Readers are remembered for cells of 16 bytes, most of what copies read, with the bytes that each has read: of each
  // cell two, the first and the last one of the launch.
  void remember_reader(std::size_t offset, std::size_t bytes, const GlobalAccess& reader);
  // Those of that launch that have read one of these bytes. Thread-safe.
  std::vector<GlobalAccess> readers(std::size_t offset, std::size_t bytes, std::uint32_t launch) const;

  BufferLabel label;

 private:
  struct Cell {
    GlobalAccess access;
    bool written = false;
  };
  static constexpr std::size_t kReadCellBytes = 16;
  struct ReadCell {
    GlobalAccess access[2];
    std::uint16_t bytes[2] = {};  // a bit for each
  };
  static constexpr std::size_t kLocks = 64;
  std::mutex& lock_of(std::size_t cell) const { return locks_[cell / 64 % kLocks]; }

  std::size_t front_, size_;
  char* data_;
  mutable std::mutex locks_[kLocks];
  std::once_flag shadow_once_;
  std::atomic<Cell*> shadow_{nullptr};
  std::vector<Cell> cells_;
  std::once_flag readers_once_;
  std::atomic<ReadCell*> readers_{nullptr};
  std::vector<ReadCell> read_cells_;
};

class GlobalMemory {
 public:
  std::shared_ptr<Allocation> allocate(std::size_t bytes, std::size_t red_zone);
  std::vector<std::shared_ptr<Allocation>> all() const;
  void adopt(const std::shared_ptr<Allocation>& allocation) { allocations_.push_back(allocation); }
  // Where an address is, in words: "o[b=0, h=1, row=64, column=0]", "64 bytes past the end of k".
  std::string describe(const void* address) const;

 private:
  std::vector<std::weak_ptr<Allocation>> allocations_;
};

}  // namespace flashcore::emulator
