// Tiles of tensors, and plain lines of bytes, between global and shared memory. PTX ISA, "Tensor Memory Access",
// "cp.async.bulk.tensor" and "cp.async.bulk".

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "device/emulator/instructions.h"

namespace flashcore::emulator {
namespace {

// What encode_tensor_map() writes in place of a CUtensorMap.
struct EncodedMap {
  std::uint64_t magic;
  char* address;
  std::uint64_t extents[4];
  std::uint64_t strides[4];  // bytes; of dimensions 1 to 3 in [1..3]
  std::uint32_t box[4];
  std::uint32_t swizzle;  // bytes; 0: none
  std::uint32_t element_bytes;
  bool is_shifted;  // begins elsewhere than the tensor: TensorMapSpec::offset_bytes
};
static_assert(sizeof(EncodedMap) <= 128);
constexpr std::uint64_t kMagic = 0x70616d2d726f736eull;

const EncodedMap& decode(Cluster& cluster, const void* map, const void* site) {
  const auto& encoded = *static_cast<const EncodedMap*>(map);
  if (encoded.magic != kMagic)
    cluster.fail(fmt::format("no tensor map: {} gives TMA a parameter that the host did not encode",
                             Cluster::name_of(cluster.thread())),
                 site);
  return encoded;
}

unsigned row_bytes(const EncodedMap& map) { return map.box[0] * map.element_bytes; }
unsigned box_bytes(const EncodedMap& map) { return row_bytes(map) * map.box[1] * map.box[2] * map.box[3]; }

// Swizzle of 128, 64 or 32 bytes: the 16-byte chunk's number within that width is exclusive-ored with as many bits of
// the number of its 128-byte line.
unsigned swizzled(const EncodedMap& map, unsigned address) {
  if (map.swizzle == 0) return address;
  return address ^ ((address >> 7 & (map.swizzle / 16 - 1)) << 4);
}

// Calls visit(shared address of a chunk before swizzling, global address or null outside, bytes inside the tensor) for
// each 16-byte chunk of the box at `at`.
template <class Visit>
void for_each_chunk(const EncodedMap& map, unsigned shared, const int (&at)[4], Visit visit) {
  unsigned chunk = shared;
  const unsigned per_chunk = 16 / map.element_bytes;
  for (unsigned i3 = 0; i3 < map.box[3]; ++i3) {
    for (unsigned i2 = 0; i2 < map.box[2]; ++i2) {
      for (unsigned i1 = 0; i1 < map.box[1]; ++i1) {
        const std::int64_t index[4] = {at[0], at[1] + std::int64_t{i1}, at[2] + std::int64_t{i2},
                                       at[3] + std::int64_t{i3}};
        bool inside = true;
        char* row = map.address;
        for (int d = 1; d < 4; ++d) {
          inside &= index[d] >= 0 && index[d] < static_cast<std::int64_t>(map.extents[d]);
          row += index[d] * static_cast<std::int64_t>(map.strides[d]);
        }
        for (unsigned c = 0; c < row_bytes(map) / 16; ++c, chunk += 16) {
          const std::int64_t first = index[0] + c * per_chunk;
          const std::int64_t left = static_cast<std::int64_t>(map.extents[0]) - first;
          // Columns before the tensor: chunks are whole or empty as long as the box starts at a multiple of them.
          const bool some = inside && first >= 0 && left > 0;
          visit(chunk, some ? row + first * map.element_bytes : nullptr,
                some ? static_cast<unsigned>(std::min<std::int64_t>(left, per_chunk)) * map.element_bytes : 0u);
        }
      }
    }
  }
}

void check_coordinates(Cluster& cluster, const EncodedMap& map, const int (&at)[4], const void* site) {
  if (const int multiple = 16 / static_cast<int>(map.element_bytes); at[0] % multiple != 0)
    cluster.fail(fmt::format("TMA box at column {}: the emulator knows multiples of {} only ({})", at[0], multiple,
                             Cluster::name_of(cluster.thread())),
                 site);
}

void check_region(Cluster& cluster, Cta& cta, const EncodedMap& map, unsigned address, const char* action,
                  const void* site) {
  if (const auto conflict = cta.shared.check_place(address, box_bytes(map), 128))
    cluster.fail(*conflict, cta, action, site);
  if (map.swizzle > 0 && row_bytes(map) > map.swizzle)
    cluster.fail(fmt::format("TMA box of {} bytes a row: at most {} with this swizzle", row_bytes(map), map.swizzle),
                 site);
}

// A load of a box that lies wholly outside of its tensor still needs memory: on an H200 those whose map begins before
// the tensor (ragged_map_of) ended with an illegal address, as if the hardware took the coordinates that are outside
// for 0. Where an ordinary map's box lies outside, that is within the tensor, and nothing is asked here: tests take
// away parts of a tensor that no row may see.
void check_wholly_outside(Cluster& cluster, const EncodedMap& map, const int (&at)[4], const void* site) {
  const char* near = map.address;
  for (int d = 1; d < 4; ++d) {
    const bool outside = at[d] < 0 || at[d] >= static_cast<std::int64_t>(map.extents[d]);
    if (!outside) near += at[d] * static_cast<std::int64_t>(map.strides[d]);
  }
  if (!cluster.find(near, 16))
    cluster.fail(
        fmt::format("global memory out of bounds: a TMA load of a box wholly outside of its tensor map, whose "
                    "first elements are no memory ({}), by {}: hardware was seen to fault; load a box that has "
                    "a row of the tensor",
                    cluster.launch.memory.describe(near), Cluster::name_of(cluster.thread())),
        site);
}

void copy_in(Cluster& cluster, Cta& cta, const EncodedMap& map, unsigned destination, const int (&at)[4],
             const void* site) {
  for_each_chunk(map, destination, at, [&](unsigned chunk, const char* from, unsigned bytes) {
    std::byte* to = cta.shared.at(swizzled(map, chunk));
    if (bytes > 0 && !cluster.find(from, bytes))
      cluster.fail(fmt::format("global memory out of bounds: a TMA load reads {} bytes at {} ({}); the tensor map is "
                               "larger than the buffer",
                               bytes, static_cast<const void*>(from), cluster.launch.memory.describe(from)),
                   site);
    if (bytes > 0) std::memcpy(to, from, bytes);
    std::memset(to + bytes, 0, 16 - bytes);
  });
}

void copy_out(Cta& cta, const PendingStore& store) {
  if (!store.map) {
    std::memcpy(store.to, cta.shared.at(store.source), store.bytes);
    return;
  }
  const EncodedMap& map = *static_cast<const EncodedMap*>(store.map);
  for_each_chunk(map, store.source, store.at, [&](unsigned chunk, char* to, unsigned bytes) {
    if (bytes > 0) std::memcpy(to, cta.shared.at(swizzled(map, chunk)), bytes);
  });
}

// Finishes the thread's stores of groups up to `group`.
void finish_stores(Thread& thread, std::uint32_t group) {
  std::size_t done = 0;
  while (done < thread.stores.size() && thread.stores[done].group <= group)
    copy_out(*thread.cta, thread.stores[done++]);
  thread.stores.erase(thread.stores.begin(), thread.stores.begin() + static_cast<std::ptrdiff_t>(done));
}

// Marks `bytes` of the CTA's shared memory as written by a copy of the running thread and has `land` do it later.
// read(access) checks what it reads.
template <class Read, class Land>
void start_load(Cluster& cluster, Cta& cta, unsigned destination, unsigned bytes, unsigned barrier_address,
                const void* site, Read read, Land land) {
  const Thread& self = cluster.thread();
  const auto check = [&](const std::optional<Conflict>& conflict) {
    if (conflict) cluster.fail(*conflict, cta, fmt::format("starts a TMA load of {} bytes that writes", bytes), site);
  };
  const MBarrier& barrier = mbarrier_of_copy(cluster, cta, barrier_address, site);
  check(cta.shared.check_fence(destination, bytes, self.knowledge));
  const std::uint32_t phase = barrier.phase + 1;
  const Access access{phase, barrier.agent, static_cast<std::uint16_t>(cluster.site_of(site) & 0xfff), 0};
  check(cta.shared.write(destination, bytes, self.knowledge, access, Proxy::kAsync));
  read(access);
  if (&cta != self.cta) remember_remote(cta, access);
  ++cluster.counters.async_copies;
  ++cta.copies_under_way;
  cluster.defer([&cluster, &cta, land, barrier_address, bytes, phase, site] {
    land();
    --cta.copies_under_way;
    complete_bytes(cluster, cta, barrier_address, static_cast<int>(bytes), phase, site);
  });
}

void load_tile(Cluster& cluster, Cta& cta, const EncodedMap& map, unsigned destination, unsigned barrier,
               const int (&at)[4], const void* site) {
  check_region(cluster, cta, map, destination, "loads by TMA", site);
  bool any = false;
  for_each_chunk(map, destination, at, [&](unsigned, const char*, unsigned bytes) { any |= bytes > 0; });
  if (!any && map.is_shifted) check_wholly_outside(cluster, map, at, site);
  const std::array<int, 4> where = {at[0], at[1], at[2], at[3]};
  const auto read = [&](const Access& access) {
    for_each_chunk(map, destination, at, [&](unsigned, const char* from, unsigned bytes) {
      // Beyond the buffer it is the landing's to say, which knows that the tensor map is wrong.
      if (bytes > 0 && cluster.find(from, bytes))
        check_global_read(cluster, from, static_cast<int>(bytes), 1, access, site);
    });
  };
  start_load(cluster, cta, destination, box_bytes(map), barrier, site, read,
             [&cluster, &cta, map, destination, where, site] {
               const int coordinates[4] = {where[0], where[1], where[2], where[3]};
               copy_in(cluster, cta, map, destination, coordinates, site);
             });
}

void check_bulk(Cluster& cluster, Cta& cta, unsigned shared, int bytes, const char* action, const void* site) {
  if (bytes <= 0 || bytes % 16 != 0)
    cluster.fail(fmt::format("cp.async.bulk of {} bytes by {}: multiples of 16 are allowed", bytes,
                             Cluster::name_of(cluster.thread())),
                 site);
  if (const auto conflict = cta.shared.check_place(shared, static_cast<unsigned>(bytes), 16))
    cluster.fail(*conflict, cta, fmt::format("{} {} bytes by cp.async.bulk", action, bytes), site);
}

// What a bulk store reads of shared memory (kBulkAgent), or writes to global memory (kBulkWriteAgent).
Access store_access(Cluster& cluster, Thread& self, OwnAgentKind kind, const void* site) {
  return {self.open_bulk_group, cluster.own_agent(self, kind),
          static_cast<std::uint16_t>(cluster.site_of(site) & 0xfff), 0};
}

void wait_for_stores(Thread& self, int pending, OwnAgentKind kind) {
  const std::uint32_t committed = self.open_bulk_group - 1;
  const auto left = static_cast<std::uint32_t>(pending);
  if (committed <= left) return;
  OwnAgent& mine = self.knowledge.own[kind];
  mine.seen = std::max(mine.seen, committed - left);
  finish_stores(self, mine.seen);
}

}  // namespace

void encode_tensor_map(const TensorMapSpec& spec, std::byte* to) {
  // As the driver does (cuTensorMapEncodeTiled).
  const auto unaligned = [](std::uint64_t bytes) { return bytes % 16 != 0; };
  if (unaligned(reinterpret_cast<std::uintptr_t>(spec.first_element())) ||
      std::ranges::any_of(spec.strides_bytes, unaligned))
    throw_internal("encoding a tensor map failed: its address and strides must be multiples of 16 bytes");
  EncodedMap map{kMagic,
                 static_cast<char*>(spec.first_element()),
                 {},
                 {},
                 {},
                 static_cast<std::uint32_t>(spec.swizzle),
                 bytes_of(spec.element),
                 spec.offset_bytes != 0};
  for (int d = 0; d < 4; ++d) {
    map.extents[d] = spec.extents[d];
    map.strides[d] = d == 0 ? map.element_bytes : spec.strides_bytes[d - 1];
    map.box[d] = spec.box[d];
  }
  std::memset(to, 0, 128);
  std::memcpy(to, &map, sizeof map);
}

void tma_prefetch(const void* map) { decode(Cluster::step(), map, FC_EMULATOR_SITE); }

void tma_load(unsigned destination, const void* map_address, unsigned barrier, const int (&at)[4]) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  const EncodedMap map = decode(cluster, map_address, site);
  check_launch_before(cluster, site);
  check_coordinates(cluster, map, at, site);
  load_tile(cluster, *cluster.thread().cta, map, destination, barrier, at, site);
  cluster.counters.tma_bytes += box_bytes(map);
  cluster.count_moved(SiteCounters::kTmaLoad, box_bytes(map), site);
}

void tma_load_multicast(unsigned destination, const void* map_address, unsigned barrier, const int (&at)[4],
                        unsigned ctas) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  const EncodedMap map = decode(cluster, map_address, site);
  check_launch_before(cluster, site);
  check_coordinates(cluster, map, at, site);
  if (ctas == 0 || ctas >> cluster.size() != 0)
    cluster.fail(fmt::format("TMA multicast to the ranks of mask {:#x} by {}: the cluster has ranks 0 to {}", ctas,
                             Cluster::name_of(cluster.thread()), cluster.size() - 1),
                 site);
  for (unsigned rank = 0; rank < cluster.size(); ++rank) {
    if (!(ctas >> rank & 1)) continue;
    check_peer(cluster, cluster.cta(rank), "loads by TMA multicast", site);
    load_tile(cluster, cluster.cta(rank), map, destination, barrier, at, site);
  }
  // Read once, however many receive it.
  cluster.counters.tma_bytes += box_bytes(map);
  cluster.count_moved(SiteCounters::kTmaLoad, box_bytes(map), site);
}

void bulk_load(unsigned destination, const void* source, int bytes, unsigned barrier) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Cta& cta = *cluster.thread().cta;
  check_bulk(cluster, cta, destination, bytes, "loads", site);
  const auto size = static_cast<unsigned>(bytes);
  start_load(
      cluster, cta, destination, size, barrier, site,
      [&](const Access& access) { check_global_read(cluster, source, bytes, 16, access, site); },
      [&cta, destination, source, size] { std::memcpy(cta.shared.at(destination), source, size); });
  cluster.counters.tma_bytes += size;
  cluster.count_moved(SiteCounters::kTmaLoad, size, site);
}

void bulk_store(void* destination, unsigned source, int bytes) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Thread& self = cluster.thread();
  Cta& cta = *self.cta;
  check_bulk(cluster, cta, source, bytes, "stores", site);
  const auto size = static_cast<unsigned>(bytes);
  const auto check = [&](const std::optional<Conflict>& conflict) {
    if (conflict) cluster.fail(*conflict, cta, fmt::format("starts a bulk store of {} bytes that reads", bytes), site);
  };
  check(cta.shared.read(source, size, self.knowledge, store_access(cluster, self, kBulkAgent, site)));
  check(cta.shared.check_fence(source, size, self.knowledge));
  check_global_store(cluster, destination, bytes, store_access(cluster, self, kBulkWriteAgent, site), site);
  cluster.counters.tma_stored_bytes += size;
  cluster.count_moved(SiteCounters::kTmaStore, size, site);
  self.stores.push_back({nullptr, source, {}, self.open_bulk_group, site, destination, size});
}

void tma_store(const void* map_address, unsigned source, const int (&at)[4]) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Thread& self = cluster.thread();
  Cta& cta = *self.cta;
  const EncodedMap& map = decode(cluster, map_address, site);
  check_coordinates(cluster, map, at, site);
  check_region(cluster, cta, map, source, "stores by TMA", site);
  const unsigned bytes = box_bytes(map);
  const auto check = [&](const std::optional<Conflict>& conflict) {
    if (conflict) cluster.fail(*conflict, cta, fmt::format("starts a TMA store of {} bytes that reads", bytes), site);
  };
  const Access access = store_access(cluster, self, kBulkAgent, site);
  const Access written = store_access(cluster, self, kBulkWriteAgent, site);
  std::uint64_t stored = 0;
  // Bytes that go nowhere need not hold anything.
  for_each_chunk(map, source, at, [&](unsigned chunk, char* to, unsigned used) {
    if (used == 0) return;
    const unsigned address = swizzled(map, chunk);
    check(cta.shared.read(address, used, self.knowledge, access));
    check(cta.shared.check_fence(address, used, self.knowledge));
    check_global_store(cluster, to, static_cast<int>(used), written, site);
    stored += used;
  });
  cluster.counters.tma_stored_bytes += stored;
  cluster.count_moved(SiteCounters::kTmaStore, stored, site);
  self.stores.push_back({map_address, source, {at[0], at[1], at[2], at[3]}, self.open_bulk_group, site});
}

void bulk_commit() { ++Cluster::step().thread().open_bulk_group; }

void bulk_wait_read(int pending) { wait_for_stores(Cluster::step().thread(), pending, kBulkAgent); }

void bulk_wait(int pending) {
  bulk_wait_read(pending);
  wait_for_stores(Cluster::step().thread(), pending, kBulkWriteAgent);
}

void thread_returns(Thread& thread) {
  if (thread.stores.empty()) return;
  Cluster& cluster = Cluster::step();
  cluster.fail(
      fmt::format("unfinished store: {} returns while a TMA store that it started may still read shared memory; "
                  "it must wait (bulk_wait_read)",
                  Cluster::name_of(thread)),
      thread.stores.front().site);
}

}  // namespace flashcore::emulator
