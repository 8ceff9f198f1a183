// Barriers in shared memory, and the fences between the two proxies.

#include "device/emulator/instructions.h"

namespace flashcore::emulator {
namespace {

std::string describe_mbarrier(const Cta& cta, unsigned address, unsigned parity) {
  const MBarrier& barrier = cta.mbarriers.at(address);
  return fmt::format(
      "parity {} of the mbarrier at {:#x} (offset {}); it is in phase {} (parity {}), which lacks {} of {} arrivals "
      "and "
      "{} bytes",
      parity, address, address - SharedMemory::kBase, barrier.phase, barrier.phase % 2, barrier.pending_arrivals,
      barrier.arrivals, barrier.pending_bytes);
}

void end_phase_if_complete(Cluster& cluster, MBarrier& barrier) {
  if (barrier.pending_arrivals > 0 || barrier.pending_bytes != 0) return;
  ++barrier.phase;
  barrier.ended_remote = std::exchange(barrier.remote, false);
  barrier.pending_arrivals = barrier.arrivals;
  barrier.clocks.raise(barrier.agent, barrier.phase);
  barrier.ended = barrier.clocks.take();
  std::vector<Thread*> waiting;
  waiting.swap(barrier.waiting);
  for (Thread* thread : waiting) cluster.wake(*thread);
}

bool has_ended(const MBarrier& barrier, int parity) { return static_cast<int>(barrier.phase % 2) != (parity & 1); }

void acquire(Cluster& cluster, const MBarrier& barrier, bool cluster_scope, const void* site) {
  if (barrier.ended_remote && !cluster_scope)
    cluster.fail(fmt::format("wrong scope: {} waits with mbarrier_wait (.cta) for what another CTA has written; only "
                             "mbarrier_wait_cluster acquires that",
                             Cluster::name_of(cluster.thread())),
                 site);
  if (barrier.ended) cluster.joiner.acquire(cluster.thread().knowledge, barrier.ended);
}

}  // namespace

MBarrier& find_mbarrier(Cluster& cluster, Cta& cta, unsigned address, const char* action, const void* site) {
  Thread& self = cluster.thread();
  if (const auto conflict = cta.shared.check_place(address, 8, 8)) cluster.fail(*conflict, cta, action, site);
  const auto found = cta.mbarriers.find(address);
  if (found == cta.mbarriers.end())
    cluster.fail(fmt::format("no mbarrier: {} {} at shared memory {:#x} (offset {}), where none was initialised",
                             Cluster::name_of(self), action, address, address - SharedMemory::kBase),
                 site);
  const MBarrier& barrier = found->second;
  // What a fence after the init has released, a relaxed arrival hands on.
  const bool fenced = barrier.fenced && self.knowledge.has_seen(cta.inits, barrier.init_fence);
  const auto conflict = fenced ? std::nullopt : cta.shared.check_ordered(address, 8, self.knowledge);
  if (conflict) cluster.fail(*conflict, cta, action, site);
  return found->second;
}

namespace {

void wait(unsigned address, int parity, bool cluster_scope, const void* site) {
  Cluster& cluster = Cluster::step();
  Thread& self = cluster.thread();
  MBarrier& barrier = find_mbarrier(cluster, *self.cta, address, "waits", site);
  cluster.count_wait(SiteCounters::kPhaseWait, site);
  while (!has_ended(barrier, parity)) {
    barrier.waiting.push_back(&self);
    cluster.block({describe_mbarrier, address, static_cast<unsigned>(parity), site});
  }
  acquire(cluster, barrier, cluster_scope, site);
  self.passed = {PassedBarrier::kMBarrier, address, site};
}

}  // namespace

void mbarrier_init(unsigned address, int arrivals) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Thread& self = cluster.thread();
  Cta& cta = *self.cta;
  const auto check = [&](const std::optional<Conflict>& conflict) {
    if (conflict) cluster.fail(*conflict, cta, "initialises an mbarrier", site);
  };
  if (arrivals < 1 || arrivals >= 1 << 20)
    cluster.fail(
        fmt::format("an mbarrier for {} arrivals: 1 to 1048575 are allowed ({})", arrivals, Cluster::name_of(self)),
        site);
  check(cta.shared.check_place(address, 8, 8));
  cta.shared.set_barrier_object(address, 8, false);
  check(cta.shared.write(address, 8, self.knowledge, cluster.access_of(self, site), Proxy::kGeneric));
  cta.shared.set_barrier_object(address, 8, true);
  MBarrier& barrier = cta.mbarriers[address];
  const Agent agent = barrier.agent;
  barrier = MBarrier{};
  barrier.arrivals = barrier.pending_arrivals = arrivals;
  barrier.owner = &self;
  barrier.agent = agent != kNobody
                      ? agent
                      : cluster.new_agent(fmt::format("a TMA load that completes on the mbarrier at offset {}",
                                                      address - SharedMemory::kBase));
}

void mbarrier_arrive(unsigned address, int expect_bytes) {
  Cluster& cluster = Cluster::step();
  arrive_at(cluster, *cluster.thread().cta, address, expect_bytes, FC_EMULATOR_SITE);
}

void arrive_at(Cluster& cluster, Cta& cta, unsigned address, int expect_bytes, const void* site, bool releases) {
  Thread& self = cluster.thread();
  MBarrier& barrier = find_mbarrier(cluster, cta, address, "arrives", site);
  if (barrier.pending_arrivals == 0)
    cluster.fail(
        fmt::format("too many arrivals: {} arrives at the mbarrier at {:#x} (offset {}), whose phase {} has all "
                    "of its {} arrivals and lacks {} bytes",
                    Cluster::name_of(self), address, address - SharedMemory::kBase, barrier.phase, barrier.arrivals,
                    barrier.pending_bytes),
        site);
  if (expect_bytes < 0 || expect_bytes >= 1 << 20)
    cluster.fail(
        fmt::format("expect_tx of {} bytes: 0 to 1048575 are allowed ({})", expect_bytes, Cluster::name_of(self)),
        site);
  if (releases && &cta != self.cta) barrier.remote = true;
  barrier.pending_bytes += expect_bytes;
  barrier.clocks.release(self.knowledge);
  --barrier.pending_arrivals;
  end_phase_if_complete(cluster, barrier);
}

void mbarrier_wait(unsigned address, int parity) { wait(address, parity, false, FC_EMULATOR_SITE); }
void mbarrier_wait_cluster(unsigned address, int parity) { wait(address, parity, true, FC_EMULATOR_SITE); }

// The hardware's try_wait gives up after a time of its own choosing; here sometimes at once.
bool mbarrier_try_wait(unsigned address, int parity) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Thread& self = cluster.thread();
  MBarrier& barrier = find_mbarrier(cluster, *self.cta, address, "waits", site);
  if (!has_ended(barrier, parity)) {
    if (cluster.random.below_32(4) == 0) return false;
    barrier.waiting.push_back(&self);
    cluster.block({describe_mbarrier, address, static_cast<unsigned>(parity), site});
    if (!has_ended(barrier, parity)) return false;
  }
  acquire(cluster, barrier, false, site);
  self.passed = {PassedBarrier::kMBarrier, address, site};
  return true;
}

void fence_mbarrier_init() {
  Cluster& cluster = Cluster::step();
  Thread& self = cluster.thread();
  Cta& cta = *self.cta;
  if (cta.inits == kNobody) cta.inits = cluster.new_agent("fence.mbarrier_init");
  ++cta.init_fences;
  for (auto& [address, barrier] : cta.mbarriers) {
    if (barrier.owner != &self || barrier.fenced) continue;
    barrier.fenced = true;
    barrier.init_fence = cta.init_fences;
  }
  self.knowledge.see(cta.inits, cta.init_fences);
}

// All that the thread has done or seen so far is visible to asynchronous accesses that come after it.
void fence_proxy_async() {
  Thread& self = Cluster::step().thread();
  Knowledge& knowledge = self.knowledge;
  HandOver all;
  all.release(knowledge);
  auto known = std::make_shared<Clocks>(*all.take());
  known->fenced = known->seen;
  knowledge.base = std::move(known);
  for (auto& [address, barrier] : self.cta->mbarriers) {
    if (barrier.owner == &self && !barrier.fenced) {
      fence_mbarrier_init();
      return;
    }
  }
}

MBarrier& mbarrier_of_copy(Cluster& cluster, Cta& cta, unsigned address, const void* site) {
  MBarrier& barrier = find_mbarrier(cluster, cta, address, "starts a copy that completes", site);
  if (!barrier.fenced)
    cluster.fail(fmt::format("missing fence: {} starts a copy on the mbarrier at offset {}, and {}, which initialised "
                             "it, has not executed fence.mbarrier_init (or fence.proxy.async) since",
                             Cluster::name_of(cluster.thread()), address - SharedMemory::kBase,
                             Cluster::name_of(*barrier.owner)),
                 site);
  return barrier;
}

void complete_bytes(Cluster& cluster, Cta& cta, unsigned address, int bytes, std::uint32_t phase, const void* site) {
  MBarrier& barrier = cta.mbarriers.at(address);
  if (barrier.phase + 1 != phase)
    cluster.fail(
        fmt::format("wrong expect_tx: a copy of {} bytes lands on the mbarrier at offset {} after its phase {} "
                    "had ended: that phase expected fewer bytes than were copied\n  the copy was started",
                    bytes, address - SharedMemory::kBase, phase - 1),
        site);
  barrier.pending_bytes -= bytes;
  end_phase_if_complete(cluster, barrier);
}

}  // namespace flashcore::emulator
