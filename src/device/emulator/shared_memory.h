#pragma once
// The shared memory of one CTA: its bytes, and for each four of them who wrote and who has read since.

#include <cstdint>
#include <optional>
#include <vector>

#include "device/emulator/clocks.h"

namespace flashcore::emulator {

// What is wrong with one access; the caller knows who it is and writes the report.
struct Conflict {
  enum Kind {
    kOutOfBounds,
    kMisaligned,
    kUninitialised,
    kUnorderedWrite,
    kUnorderedRead,
    kMissingFence,
    kBarrierObject
  } kind;
  unsigned address = 0;  // of the first bad bytes
  Access other;          // of the last three kinds: the earlier access it is not ordered after
};

// PTX ISA, "Proxies": how an access reaches memory. Ordering across the two takes a proxy fence.
enum class Proxy : std::uint8_t { kGeneric, kAsync };

class SharedMemory {
 public:
  // Dynamic shared memory starts here: address 0 is nobody's, and the alignment is what kernels may count on.
  static constexpr unsigned kBase = 1024;
  // Every byte of fresh shared memory: NaN in fp32, fp16 and bf16.
  static constexpr unsigned char kPoison = 0xff;

  void reset(unsigned bytes);
  unsigned size() const { return size_; }
  std::byte* at(unsigned address) { return bytes_.data() + (address - kBase); }

  std::optional<Conflict> check_place(unsigned address, unsigned bytes, unsigned alignment) const {
    if (address < kBase || address - kBase > size_ || bytes > size_ - (address - kBase))
      return Conflict{Conflict::kOutOfBounds, address, {}};
    if (address % alignment != 0) return Conflict{Conflict::kMisaligned, address, {}};
    return std::nullopt;
  }
  // The place must be good. `access` is how the read is remembered; `reader` is whose knowledge orders it.
  std::optional<Conflict> read(unsigned address, unsigned bytes, const Knowledge& reader, Access access);
  std::optional<Conflict> write(unsigned address, unsigned bytes, const Knowledge& writer, Access access, Proxy proxy);
  // Four bytes read and written at once: ordered as a write is, except among themselves. Of several only the last is
  // remembered.
  std::optional<Conflict> atomic(unsigned address, const Knowledge& writer, Access access);
  // As read(), without remembering the reader.
  std::optional<Conflict> check_ordered(unsigned address, unsigned bytes, const Knowledge& reader) const;
  // The bytes are a barrier object (or no longer): ordinary writes to them are a fault.
  void set_barrier_object(unsigned address, unsigned bytes, bool is_one);
  // Asynchronous-proxy accesses also need a proxy fence between a generic write and themselves.
  std::optional<Conflict> check_fence(unsigned address, unsigned bytes, const Knowledge& issuer) const;

 private:
  static constexpr int kInlineReaders = 3;
  struct Cell {
    Access write;
    Access readers[kInlineReaders];
    std::uint32_t more_readers = 0;               // index into more_, 0: none
    std::uint8_t reader_count = 0;                // of the inline ones
    std::uint8_t initialised = 0;                 // a bit per byte
    Proxy proxy = Proxy::kGeneric;                // of the last write
    bool barrier_object = false, atomic = false;  // the last write was one
  };
  // Readers beyond the inline ones. Those that a later one stands for are dropped when there are twice as many as were
  // left the last time: looking at all of them for each read took two thirds of the time of kernels whose CTAs read a
  // table together.
  struct MoreReaders {
    std::vector<Access> all;
    std::size_t drop_at = kLeastToDrop;
  };
  static constexpr std::size_t kLeastToDrop = 16;
  static void drop_covered(MoreReaders& more, const Knowledge& reader, Access access);
  static unsigned byte_mask(unsigned address, unsigned bytes, unsigned cell_address);
  void remember_reader(Cell& cell, const Knowledge& reader, Access access);
  const Access* unordered_reader(const Cell& cell, const Knowledge& writer, unsigned mask) const;
  void drop_readers(Cell& cell);

  unsigned size_ = 0;
  std::vector<std::byte> bytes_;
  std::vector<Cell> cells_;
  std::vector<MoreReaders> more_ = std::vector<MoreReaders>(1);
  std::vector<std::uint32_t> free_more_;
};

}  // namespace flashcore::emulator
