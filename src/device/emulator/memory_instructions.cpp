// Plain loads and stores, and cp.async.

#include <algorithm>
#include <atomic>

#include "device/emulator/instructions.h"

namespace flashcore::emulator {
namespace {

void check_global(Cluster& cluster, const void* address, int bytes, int alignment, const char* action, const void* site,
                  Allocation** found) {
  check_launch_before(cluster, site);
  *found = cluster.find(address, static_cast<std::size_t>(bytes));
  if (!*found) {
    cluster.fail(
        fmt::format("global memory out of bounds: {} {} {} bytes at {} ({})", Cluster::name_of(cluster.thread()),
                    action, bytes, address, cluster.launch.memory.describe(address)),
        site);
  }
  if (reinterpret_cast<std::uintptr_t>(address) % static_cast<unsigned>(alignment) != 0) {
    cluster.fail(fmt::format("misaligned global memory access: {} {} {} bytes at {} ({}), which is no multiple of {}",
                             Cluster::name_of(cluster.thread()), action, bytes, address,
                             cluster.launch.memory.describe(address), alignment),
                 site);
  }
}

bool knows(const Knowledge& self, const GlobalAcquire& acquire) {
  return self.agent == acquire.agent ? self.time >= acquire.time : self.has_seen(acquire.agent, acquire.time);
}

// Whether a global access of this launch is ordered before the running thread. Across clusters the end of a launch
// orders everything, and an atomic that releases and acquires what came before it.
bool ordered(Cluster& cluster, const GlobalAccess& before) {
  const Thread& self = cluster.thread();
  if (before.launch != cluster.launch.number) return true;
  const Cta* cta = cluster.cta_of_grid(before.cta);
  if (!cta) {
    return std::any_of(cluster.acquired.begin(), cluster.acquired.end(), [&](const GlobalAcquire& acquire) {
      const GlobalRelease& release = acquire.release;
      if (before.cta < release.first_cta || before.cta >= release.first_cta + release.ctas) return false;
      return knows(self.knowledge, acquire) && Clocks::at(release.clocks->seen, before.agent) >= before.time;
    });
  }
  return self.knowledge.ordered({before.time, before.agent, 0, 0});
}

GlobalAccess global_access(Cluster& cluster, const Access& access, const void* site) {
  const Thread& self = cluster.thread();
  return {
      cluster.launch.number, self.cta->linear, access.time, access.agent, static_cast<std::uint16_t>(self.index), site};
}

void fail_global_race(Cluster& cluster, const GlobalAccess& before, const void* address, const char* action,
                      const char* other_action, const void* site) {
  const Thread& self = cluster.thread();
  const Cta* cta = cluster.cta_of_grid(before.cta);
  // Agents of a cluster count its threads first, then what works beside them.
  const bool asynchronous = before.agent >= cluster.size() * self.cta->threads.size();
  // Nothing but the end of a launch, or an atomic with release and acquire, orders CTAs that share no cluster.
  const std::string advice = asynchronous
                                 ? "\n  A copy did it, which the thread that started it must wait for before a "
                                   "barrier or a release hands that on; for a bulk store bulk_wait, as bulk_wait_read "
                                   "waits for its reads of shared memory alone."
                             : cta ? "\n  A barrier is missing between these two lines, that both threads pass "
                                     "(__syncthreads, a named barrier, an "
                                     "mbarrier)." +
                                         cluster.passed_barriers(&cta->threads[before.thread])
                                   : "\n  No barrier spans CTAs of different clusters: let one CTA write it, or order "
                                     "them by an atomic with release "
                                     "and acquire.";
  std::string stack;
  for (const std::string& line : cluster.launch.module.lines_of(before.address))
    stack += (stack.empty() ? "\n    at " : "\n    by ") + line;
  cluster.fail(
      fmt::format("race: {} of CTA {} {} global memory {} ({}), and nothing orders it after an earlier {}\n  the "
                  "other party: {}thread {} of CTA {}, which {} there{}{}",
                  Cluster::name_of(self), self.cta->linear, action, address, cluster.launch.memory.describe(address),
                  other_action, asynchronous ? "a copy of " : "", before.thread, before.cta,
                  std::string_view(other_action) == "write" ? "wrote" : "read", stack, advice),
      site);
}

// A read, which is remembered before writers are asked: of a read and a write at once, one sees the other.
void check_global_writers(Cluster& cluster, Allocation& allocation, const void* address, int bytes,
                          const Access& access, const void* site) {
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(address) - allocation.data());
  allocation.remember_reader(offset, static_cast<std::size_t>(bytes), global_access(cluster, access, site));
  if (!allocation.written()) return;
  for (std::size_t at = offset; at < offset + static_cast<std::size_t>(bytes); at += Allocation::kCellBytes) {
    const auto before = allocation.writer(at);
    if (before && !ordered(cluster, *before)) fail_global_race(cluster, *before, address, "reads", "write", site);
  }
}

std::string shared_action(const char* verb, int bytes) { return fmt::format("{} {} bytes", verb, bytes); }

void check_shared(Cluster& cluster, Cta& cta, const std::optional<Conflict>& conflict, const char* verb, int bytes,
                  const void* site) {
  if (conflict) cluster.fail(*conflict, cta, shared_action(verb, bytes), site);
}

void complete_copy(const Thread& thread, const PendingCopy& copy) {
  std::byte* to = thread.cta->shared.at(copy.destination);
  std::memcpy(to, copy.source, static_cast<std::size_t>(copy.source_bytes));
  std::memset(to + copy.source_bytes, 0, static_cast<std::size_t>(16 - copy.source_bytes));
}

// Lands the copies of groups up to `group`.
void complete_copy_groups(Thread& thread, std::uint32_t group) {
  std::size_t done = 0;
  while (done < thread.copies.size() && thread.copies[done].group <= group)
    complete_copy(thread, thread.copies[done++]);
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + static_cast<std::ptrdiff_t>(done));
}

}  // namespace

void load_global(const void* address, void* value, int bytes) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Allocation* allocation = nullptr;
  check_global(cluster, address, bytes, bytes, "reads", site, &allocation);
  check_global_writers(cluster, *allocation, address, bytes, cluster.access_of(cluster.thread(), site), site);
  std::memcpy(value, address, static_cast<std::size_t>(bytes));
  cluster.count(cluster.thread(), SiteCounters::kGlobalLoad, reinterpret_cast<std::uintptr_t>(address), bytes, site);
}

void check_global_read(Cluster& cluster, const void* address, int bytes, int alignment, const Access& access,
                       const void* site) {
  Allocation* allocation = nullptr;
  check_global(cluster, address, bytes, alignment, "copies", site, &allocation);
  check_global_writers(cluster, *allocation, address, bytes, access, site);
}

void check_global_store(Cluster& cluster, void* address, int bytes, const Access& access, const void* site) {
  Allocation* allocation = nullptr;
  check_global(cluster, address, bytes, std::min(bytes, 16), "writes", site, &allocation);
  const GlobalAccess writer = global_access(cluster, access, site);
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(address) - allocation->data());
  for (std::size_t at = offset; at < offset + static_cast<std::size_t>(bytes); at += Allocation::kCellBytes) {
    const auto before = allocation->exchange_writer(at, writer);
    if (before && !ordered(cluster, *before)) fail_global_race(cluster, *before, address, "writes", "write", site);
  }
  for (const GlobalAccess& reader :
       allocation->readers(offset, static_cast<std::size_t>(bytes), cluster.launch.number)) {
    if (!ordered(cluster, reader)) fail_global_race(cluster, reader, address, "writes", "read", site);
  }
}

void store_global(void* address, const void* value, int bytes) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  check_global_store(cluster, address, bytes, cluster.access_of(cluster.thread(), site), site);
  std::memcpy(address, value, static_cast<std::size_t>(bytes));
  cluster.count(cluster.thread(), SiteCounters::kGlobalStore, reinterpret_cast<std::uintptr_t>(address), bytes, site);
}

// Relaxed: hands out numbers and orders nothing. Atomic on the host too, where CTAs run on several cores.
unsigned atomic_add_global(unsigned* address, unsigned value) {
  Cluster& cluster = Cluster::step();
  Allocation* allocation = nullptr;
  check_global(cluster, address, 4, 4, "adds to", FC_EMULATOR_SITE, &allocation);
  return std::atomic_ref(*address).fetch_add(value, std::memory_order_relaxed);
}

unsigned atomic_add_global_acq_rel(unsigned* address, unsigned value) {
  Cluster& cluster = Cluster::step();
  Allocation* allocation = nullptr;
  check_global(cluster, address, 4, 4, "adds to", FC_EMULATOR_SITE, &allocation);
  Knowledge& known = cluster.thread().knowledge;
  HandOver clocks;
  clocks.release(known);
  GlobalRelease mine{cluster.cta(0).linear, static_cast<unsigned>(cluster.size()), clocks.take()};
  const std::lock_guard lock(cluster.launch.mutex);
  std::vector<GlobalRelease>& earlier = cluster.launch.releases[address];
  // Each once: what went from one counter to another and back again would double every time.
  const std::vector<GlobalRelease> found = earlier;
  for (const GlobalAcquire& acquire : cluster.acquired) {
    if (knows(known, acquire) && std::ranges::find(earlier, acquire.release) == earlier.end())
      earlier.push_back(acquire.release);
  }
  for (const GlobalRelease& release : found) {
    const auto is_it = [&](const GlobalAcquire& acquire) {
      return acquire.agent == known.agent && acquire.release == release;
    };
    if (std::ranges::none_of(cluster.acquired, is_it)) cluster.acquired.push_back({known.agent, known.time, release});
  }
  earlier.push_back(std::move(mine));
  return std::atomic_ref(*address).fetch_add(value, std::memory_order_acq_rel);
}

float atomic_add_global_f32(float* address, float value) {
  Cluster& cluster = Cluster::step();
  Allocation* allocation = nullptr;
  check_global(cluster, address, 4, 4, "adds to", FC_EMULATOR_SITE, &allocation);
  return std::atomic_ref(*address).fetch_add(value, std::memory_order_relaxed);
}

unsigned atomic_max_global(unsigned* address, unsigned value) {
  Cluster& cluster = Cluster::step();
  Allocation* allocation = nullptr;
  check_global(cluster, address, 4, 4, "raises", FC_EMULATOR_SITE, &allocation);
  const std::atomic_ref<unsigned> place(*address);
  unsigned old = place.load(std::memory_order_relaxed);
  while (old < value && !place.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
  return old;
}

namespace {

template <class Value>
Value atomic_add_shared(unsigned address, Value value, const void* site) {
  Cluster& cluster = Cluster::step();
  Thread& self = cluster.thread();
  SharedMemory& shared = self.cta->shared;
  check_shared(cluster, *self.cta, shared.check_place(address, 4, 4), "adds to", 4, site);
  check_shared(cluster, *self.cta, shared.atomic(address, self.knowledge, cluster.access_of(self, site)), "adds to", 4,
               site);
  Value old;
  std::memcpy(&old, shared.at(address), 4);
  const Value sum = old + value;
  std::memcpy(shared.at(address), &sum, 4);
  cluster.count(self, SiteCounters::kSharedStore, address, 4, site);
  return old;
}

}  // namespace

unsigned atomic_add_shared_u32(unsigned address, unsigned value) {
  return atomic_add_shared(address, value, FC_EMULATOR_SITE);
}
float atomic_add_shared_f32(unsigned address, float value) {
  return atomic_add_shared(address, value, FC_EMULATOR_SITE);
}

unsigned shared_base() { return SharedMemory::kBase; }

void load_shared(unsigned address, void* value, int bytes) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Thread& self = cluster.thread();
  SharedMemory& shared = self.cta->shared;
  const auto size = static_cast<unsigned>(bytes);
  check_shared(cluster, *self.cta, shared.check_place(address, size, size), "reads", bytes, site);
  check_shared(cluster, *self.cta, shared.read(address, size, self.knowledge, cluster.access_of(self, site)), "reads",
               bytes, site);
  std::memcpy(value, shared.at(address), size);
  cluster.count(self, SiteCounters::kSharedLoad, address, bytes, site);
}

void store_shared(unsigned address, const void* value, int bytes) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Thread& self = cluster.thread();
  SharedMemory& shared = self.cta->shared;
  const auto size = static_cast<unsigned>(bytes);
  check_shared(cluster, *self.cta, shared.check_place(address, size, size), "writes", bytes, site);
  check_shared(cluster, *self.cta,
               shared.write(address, size, self.knowledge, cluster.access_of(self, site), Proxy::kGeneric), "writes",
               bytes, site);
  std::memcpy(shared.at(address), value, size);
  cluster.count(self, SiteCounters::kSharedStore, address, bytes, site);
}

void cp_async(unsigned destination, const void* source, int source_bytes) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Thread& self = cluster.thread();
  SharedMemory& shared = self.cta->shared;
  if (source_bytes < 0 || source_bytes > 16)
    cluster.fail(fmt::format("cp.async of {} bytes by {}: 0 to 16 are allowed", source_bytes, Cluster::name_of(self)),
                 site);
  Allocation* allocation = nullptr;
  const Access access{self.open_group, cluster.own_agent(self, kCopyAgent),
                      static_cast<std::uint16_t>(cluster.site_of(site) & 0xfff), 0};
  if (source_bytes > 0) {
    check_global(cluster, source, 16, 16, "copies", site, &allocation);
    check_global_writers(cluster, *allocation, source, source_bytes, access, site);
    cluster.count(self, SiteCounters::kGlobalLoad, reinterpret_cast<std::uintptr_t>(source), 16, site);
  }
  check_shared(cluster, *self.cta, shared.check_place(destination, 16, 16), "copies (cp.async)", 16, site);
  check_shared(cluster, *self.cta, shared.write(destination, 16, self.knowledge, access, Proxy::kGeneric),
               "copies (cp.async)", 16, site);
  const PendingCopy copy{destination, source, source_bytes, self.open_group};
  ++cluster.counters.async_copies;
  self.copies_in_group.resize(self.open_group + std::size_t{1});
  ++self.copies_in_group[self.open_group];
  ++self.cta->copies_under_way;
  if (cluster.lateness == Lateness::kAtOnce ||
      (cluster.lateness == Lateness::kRandom && cluster.random.below_32(2) == 0))
    complete_copy(self, copy);
  else self.copies.push_back(copy);
}

void cp_async_commit() { ++Cluster::step().thread().open_group; }

void cp_async_wait(int pending) {
  Cluster& cluster = Cluster::step();
  Thread& self = cluster.thread();
  cluster.count_wait(SiteCounters::kCopyWait, FC_EMULATOR_SITE);
  const std::uint32_t committed = self.open_group - 1;
  const auto left = static_cast<std::uint32_t>(pending);
  if (committed <= left) return;
  OwnAgent& mine = self.knowledge.own[kCopyAgent];
  for (; mine.seen < committed - left; ++mine.seen) {
    if (mine.seen + 1 < self.copies_in_group.size()) self.cta->copies_under_way -= self.copies_in_group[mine.seen + 1];
  }
  complete_copy_groups(self, mine.seen);
}

}  // namespace flashcore::emulator
