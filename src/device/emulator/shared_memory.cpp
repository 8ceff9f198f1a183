#include "device/emulator/shared_memory.h"

#include <algorithm>

namespace flashcore::emulator {

void SharedMemory::reset(unsigned bytes) {
  size_ = bytes;
  bytes_.assign(bytes, std::byte{kPoison});
  cells_.assign((bytes + 3) / 4, Cell{});
  more_.resize(1);
  free_more_.clear();
}

unsigned SharedMemory::byte_mask(unsigned address, unsigned bytes, unsigned cell_address) {
  const unsigned first = std::max(address, cell_address) - cell_address;
  const unsigned last = std::min(address + bytes, cell_address + 4) - cell_address;
  return ((1u << last) - 1) & ~((1u << first) - 1);
}

std::optional<Conflict> SharedMemory::read(unsigned address, unsigned bytes, const Knowledge& reader, Access access) {
  for (unsigned at = address & ~3u; at < address + bytes; at += 4) {
    Cell& cell = cells_[(at - kBase) / 4];
    const unsigned mask = byte_mask(address, bytes, at);
    if ((cell.initialised & mask) != mask) return Conflict{Conflict::kUninitialised, std::max(at, address), {}};
    if ((cell.write.mask & mask) && !reader.ordered(cell.write))
      return Conflict{Conflict::kUnorderedWrite, std::max(at, address), cell.write};
    access.mask = mask & 15;
    remember_reader(cell, reader, access);
  }
  return std::nullopt;
}

std::optional<Conflict> SharedMemory::write(unsigned address, unsigned bytes, const Knowledge& writer, Access access,
                                            Proxy proxy) {
  for (unsigned at = address & ~3u; at < address + bytes; at += 4) {
    Cell& cell = cells_[(at - kBase) / 4];
    const unsigned mask = byte_mask(address, bytes, at);
    if (cell.barrier_object) return Conflict{Conflict::kBarrierObject, at, {}};
    const bool ordered = cell.write.mask == 0 || writer.ordered(cell.write);
    if ((cell.write.mask & mask) && !ordered)
      return Conflict{Conflict::kUnorderedWrite, std::max(at, address), cell.write};
    if (const Access* other = unordered_reader(cell, writer, mask))
      return Conflict{Conflict::kUnorderedRead, std::max(at, address), *other};
    drop_readers(cell);
    // Of two unordered writers to different bytes of one cell only the later is remembered.
    access.mask = (ordered ? mask : cell.write.mask | mask) & 15;
    cell.write = access;
    cell.initialised |= static_cast<std::uint8_t>(mask);
    cell.proxy = proxy;
    cell.atomic = false;
  }
  return std::nullopt;
}

std::optional<Conflict> SharedMemory::atomic(unsigned address, const Knowledge& writer, Access access) {
  Cell& cell = cells_[(address - kBase) / 4];
  if (cell.barrier_object) return Conflict{Conflict::kBarrierObject, address, {}};
  if (cell.initialised != 15) return Conflict{Conflict::kUninitialised, address, {}};
  if (!cell.atomic && !writer.ordered(cell.write)) return Conflict{Conflict::kUnorderedWrite, address, cell.write};
  if (const Access* other = unordered_reader(cell, writer, 15))
    return Conflict{Conflict::kUnorderedRead, address, *other};
  drop_readers(cell);
  access.mask = 15;
  cell.write = access;
  cell.proxy = Proxy::kGeneric;
  cell.atomic = true;
  return std::nullopt;
}

std::optional<Conflict> SharedMemory::check_ordered(unsigned address, unsigned bytes, const Knowledge& reader) const {
  for (unsigned at = address & ~3u; at < address + bytes; at += 4) {
    const Cell& cell = cells_[(at - kBase) / 4];
    const unsigned mask = byte_mask(address, bytes, at);
    if ((cell.initialised & mask) != mask) return Conflict{Conflict::kUninitialised, std::max(at, address), {}};
    if ((cell.write.mask & mask) && !reader.ordered(cell.write))
      return Conflict{Conflict::kUnorderedWrite, std::max(at, address), cell.write};
  }
  return std::nullopt;
}

void SharedMemory::set_barrier_object(unsigned address, unsigned bytes, bool is_one) {
  for (unsigned at = address & ~3u; at < address + bytes; at += 4) cells_[(at - kBase) / 4].barrier_object = is_one;
}

std::optional<Conflict> SharedMemory::check_fence(unsigned address, unsigned bytes, const Knowledge& issuer) const {
  for (unsigned at = address & ~3u; at < address + bytes; at += 4) {
    const Cell& cell = cells_[(at - kBase) / 4];
    if (cell.proxy != Proxy::kGeneric || cell.write.mask == 0) continue;
    if (cell.write.time > Clocks::at(issuer.base->fenced, cell.write.agent))
      return Conflict{Conflict::kMissingFence, at, cell.write};
  }
  return std::nullopt;
}

// A reader that the new one is ordered after is dropped: whoever is ordered after the new one is so after the old one.
void SharedMemory::remember_reader(Cell& cell, const Knowledge& reader, Access access) {
  int kept = 0;
  for (int i = 0; i < cell.reader_count; ++i) {
    const Access& old = cell.readers[i];
    if (old.agent == access.agent) access.mask |= old.mask;
    else if (!reader.ordered(old) || (old.mask & ~access.mask)) cell.readers[kept++] = old;
  }
  cell.reader_count = static_cast<std::uint8_t>(kept);
  if (kept < kInlineReaders) {
    cell.readers[cell.reader_count++] = access;
    return;
  }
  if (cell.more_readers == 0) {
    if (free_more_.empty()) {
      free_more_.push_back(static_cast<std::uint32_t>(more_.size()));
      more_.emplace_back();
    }
    cell.more_readers = free_more_.back();
    free_more_.pop_back();
  }
  MoreReaders& more = more_[cell.more_readers];
  if (more.all.size() >= more.drop_at) drop_covered(more, reader, access);
  more.all.push_back(access);
}

// Those that the new one stands for, and of each agent those that its own later ones stand for.
void SharedMemory::drop_covered(MoreReaders& more, const Knowledge& reader, Access access) {
  std::erase_if(more.all, [&](const Access& old) {
    return (old.agent == access.agent || reader.ordered(old)) && !(old.mask & ~access.mask);
  });
  // Stable: an agent's accesses stay in the order of its time.
  std::stable_sort(more.all.begin(), more.all.end(),
                   [](const Access& a, const Access& b) { return a.agent < b.agent; });
  std::vector<Access> kept;
  for (auto old = more.all.rbegin(); old != more.all.rend(); ++old) {
    unsigned later = 0;  // bytes that the agent's later ones have read
    for (auto of = kept.rbegin(); of != kept.rend() && of->agent == old->agent; ++of) later |= of->mask;
    if (old->mask & ~later) kept.push_back(*old);
  }
  more.all.assign(kept.rbegin(), kept.rend());
  more.drop_at = std::max(kLeastToDrop, 2 * more.all.size());
}

const Access* SharedMemory::unordered_reader(const Cell& cell, const Knowledge& writer, unsigned mask) const {
  for (int i = 0; i < cell.reader_count; ++i) {
    if ((cell.readers[i].mask & mask) && !writer.ordered(cell.readers[i])) return &cell.readers[i];
  }
  if (cell.more_readers != 0) {
    for (const Access& reader : more_[cell.more_readers].all) {
      if ((reader.mask & mask) && !writer.ordered(reader)) return &reader;
    }
  }
  return nullptr;
}

void SharedMemory::drop_readers(Cell& cell) {
  cell.reader_count = 0;
  if (cell.more_readers == 0) return;
  more_[cell.more_readers].all.clear(), more_[cell.more_readers].drop_at = kLeastToDrop;
  free_more_.push_back(cell.more_readers);
  cell.more_readers = 0;
}

}  // namespace flashcore::emulator
