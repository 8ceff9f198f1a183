// Clusters: their barrier, each other's shared memory, and the launch before this one. PTX ISA, "barrier.cluster",
// "mapa", "st.async", "ld", "st", "griddepcontrol".

#include <cstring>

#include "device/emulator/instructions.h"

namespace flashcore::emulator {
namespace {

// An address of the shared::cluster window: the rank's number, counted from 1, above the CTA's own address.
constexpr unsigned kRankShift = 24;
constexpr std::size_t kAlignedArrive = 16, kAlignedWait = 17;

std::string describe_cluster_barrier(const Cta& cta, unsigned, unsigned) {
  return fmt::format("the cluster's barrier, at which {} of {} threads have arrived", cta.cluster->barrier.arrived,
                     cta.cluster->live());
}

struct Place {
  Cta& cta;
  unsigned address;  // within that CTA
};

// Where a remote access goes. The other CTA must be known to have started, and must not have ended.
Place resolve(Cluster& cluster, unsigned remote, const char* action, const void* site) {
  const Thread& self = cluster.thread();
  const std::size_t rank = (remote >> kRankShift) - 1;
  if (remote >> kRankShift == 0 || rank >= cluster.size())
    cluster.fail(fmt::format("no address of the cluster: {} {} at {:#x}, which mapa has not made",
                             Cluster::name_of(self), action, remote),
                 site);
  Cta& target = cluster.cta(rank);
  check_peer(cluster, target, action, site);
  return {target, remote & ((1u << kRankShift) - 1)};
}

}  // namespace

void check_peer(Cluster& cluster, const Cta& target, const char* action, const void* site) {
  const Thread& self = cluster.thread();
  const unsigned rank = target.rank;
  if (&target != self.cta && !self.knowledge.has_seen(target.started, 1))
    cluster.fail(fmt::format("peer may not have started: {} {} in the shared memory of CTA rank {}, and nothing proves "
                             "that this CTA runs yet\n  Wait for the cluster's barrier first (cluster_wait).",
                             Cluster::name_of(self), action, rank),
                 site);
  if (target.live == 0)
    cluster.fail(
        fmt::format("peer has ended: {} {} in the shared memory of CTA rank {}, all of whose threads have "
                    "returned\n  It must wait, for what it is sent or at the cluster's barrier, before it returns.",
                    Cluster::name_of(self), action, rank),
        site);
}

void remember_remote(Cta& target, const Access& access) {
  for (Access& known : target.remote) {
    if (known.agent != access.agent) continue;
    if (access.time > known.time) known = access;
    return;
  }
  target.remote.push_back(access);
}

int cluster_ctarank() { return static_cast<int>(Cluster::current().thread().cta->rank); }

unsigned mapa(unsigned address, int rank) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  const Cta& own = *cluster.thread().cta;
  if (rank < 0 || static_cast<std::size_t>(rank) >= cluster.size())
    cluster.fail(fmt::format("mapa to rank {} by {}: the cluster has {} CTAs", rank, Cluster::name_of(cluster.thread()),
                             cluster.size()),
                 site);
  if (const auto conflict = own.shared.check_place(address, 1, 1))
    cluster.fail(*conflict, own, "maps an address", site);
  return address | (static_cast<unsigned>(rank) + 1) << kRankShift;
}

void Cluster::complete_barrier() {
  if (barrier.arrived == 0 || barrier.arrived < live_) return;
  ++barrier.phase;
  barrier.arrived = 0;
  barrier.ended = barrier.clocks.take();
  std::vector<Thread*> waiting;
  waiting.swap(barrier.waiting);
  for (Thread* thread : waiting) wake(*thread);
}

void cluster_arrive(bool release) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Thread& self = cluster.thread();
  Cta& cta = *self.cta;
  if (self.cluster_arrivals != self.cluster_waits)
    cluster.fail(fmt::format("the cluster's barrier arrived at twice: {} has arrived and not waited since",
                             Cluster::name_of(self)),
                 site);
  check_aligned(cluster, kAlignedArrive, "the cluster's barrier", site);
  ++self.cluster_arrivals;
  ClusterBarrier& barrier = cluster.barrier;
  if (release) barrier.clocks.release(self.knowledge);
  // Relaxed: that the CTA runs, and what fence.mbarrier_init has released.
  if (cta.started != kNobody) barrier.clocks.raise(cta.started, 1);
  if (cta.inits != kNobody) barrier.clocks.raise(cta.inits, Clocks::at(self.knowledge.base->seen, cta.inits));
  ++barrier.arrived;
  cluster.complete_barrier();
}

void cluster_wait() {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Thread& self = cluster.thread();
  if (self.cluster_arrivals == self.cluster_waits)
    cluster.fail(fmt::format("the cluster's barrier waited for without an arrival: {} must arrive first",
                             Cluster::name_of(self)),
                 site);
  check_aligned(cluster, kAlignedWait, "the cluster's barrier", site);
  cluster.count_wait(SiteCounters::kBarrierWait, site);
  ++self.cluster_waits;
  ClusterBarrier& barrier = cluster.barrier;
  while (barrier.phase < self.cluster_waits) {
    barrier.waiting.push_back(&self);
    cluster.block({describe_cluster_barrier, 0, 0, site});
  }
  // The next phase cannot have ended: it needs this thread.
  if (barrier.ended) cluster.joiner.acquire(self.knowledge, barrier.ended);
  self.passed = {PassedBarrier::kCluster, 0, site};
}

void st_async(unsigned remote, const void* value, int bytes, unsigned remote_barrier) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Thread& self = cluster.thread();
  constexpr const char* kAction = "stores by st.async";
  const Place to = resolve(cluster, remote, kAction, site);
  const Place signal = resolve(cluster, remote_barrier, "signals", site);
  if (&to.cta != &signal.cta)
    cluster.fail(
        fmt::format("st.async by {} to CTA rank {} signals an mbarrier of CTA rank {}: both must be of one CTA",
                    Cluster::name_of(self), to.cta.rank, signal.cta.rank),
        site);
  Cta& target = to.cta;
  const auto size = static_cast<unsigned>(bytes);
  const auto check = [&](const std::optional<Conflict>& conflict) {
    if (conflict) cluster.fail(*conflict, target, fmt::format("{} {} bytes", kAction, bytes), site);
  };
  check(target.shared.check_place(to.address, size, size));
  MBarrier& barrier = find_mbarrier(cluster, target, signal.address, "signals", site);
  const std::uint32_t phase = barrier.phase + 1;
  const Access access{phase, barrier.agent, static_cast<std::uint16_t>(cluster.site_of(site) & 0xfff), 0};
  check(target.shared.write(to.address, size, self.knowledge, access, Proxy::kGeneric));
  if (&target != self.cta) {
    barrier.remote = true;
    remember_remote(target, access);
    cluster.counters.cluster_bytes += size;
  }
  ++cluster.counters.async_copies;
  ++target.copies_under_way;
  std::array<std::byte, 16> kept{};
  std::memcpy(kept.data(), value, size);
  cluster.defer(
      [&cluster, &target, kept, to_address = to.address, size, barrier_address = signal.address, phase, site] {
        std::memcpy(target.shared.at(to_address), kept.data(), size);
        --target.copies_under_way;
        complete_bytes(cluster, target, barrier_address, static_cast<int>(size), phase, site);
      });
}

void load_cluster(unsigned remote, void* value, int bytes) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Thread& self = cluster.thread();
  const Place from = resolve(cluster, remote, "reads", site);
  const auto size = static_cast<unsigned>(bytes);
  const Access access = cluster.access_of(self, site);
  const auto check = [&](const std::optional<Conflict>& conflict) {
    if (conflict) cluster.fail(*conflict, from.cta, fmt::format("reads {} bytes", bytes), site);
  };
  check(from.cta.shared.check_place(from.address, size, size));
  check(from.cta.shared.read(from.address, size, self.knowledge, access));
  std::memcpy(value, from.cta.shared.at(from.address), size);
  if (&from.cta == self.cta) return;
  remember_remote(from.cta, access);
  cluster.counters.cluster_bytes += size;
}

void store_cluster(unsigned remote, const void* value, int bytes) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Thread& self = cluster.thread();
  const Place to = resolve(cluster, remote, "writes", site);
  const auto size = static_cast<unsigned>(bytes);
  const Access access = cluster.access_of(self, site);
  const auto check = [&](const std::optional<Conflict>& conflict) {
    if (conflict) cluster.fail(*conflict, to.cta, fmt::format("writes {} bytes", bytes), site);
  };
  check(to.cta.shared.check_place(to.address, size, size));
  check(to.cta.shared.write(to.address, size, self.knowledge, access, Proxy::kGeneric));
  std::memcpy(to.cta.shared.at(to.address), value, size);
  if (&to.cta == self.cta) return;
  remember_remote(to.cta, access);
  cluster.counters.cluster_bytes += size;
}

namespace {

void arrive_remotely(unsigned remote_barrier, bool releases, const void* site) {
  Cluster& cluster = Cluster::step();
  const Place at = resolve(cluster, remote_barrier, "arrives", site);
  if (&at.cta != cluster.thread().cta) remember_remote(at.cta, cluster.access_of(cluster.thread(), site));
  arrive_at(cluster, at.cta, at.address, 0, site, releases);
}

}  // namespace

void mbarrier_arrive_cluster(unsigned remote_barrier) { arrive_remotely(remote_barrier, true, FC_EMULATOR_SITE); }
// Hands on what the thread knows, as a releasing one does: that it has read, which is what it is for. A write that
// is published so goes unnoticed.
void mbarrier_arrive_cluster_relaxed(unsigned remote_barrier) {
  arrive_remotely(remote_barrier, false, FC_EMULATOR_SITE);
}

void leave_cluster(Thread& thread) {
  Cta& cta = *thread.cta;
  Cluster& cluster = *cta.cluster;
  if (thread.cluster_arrivals == cluster.barrier.phase + 1) --cluster.barrier.arrived;
  --cta.live;
  if (cluster.size() == 1) return;
  if (thread.knowledge.base != cta.last_returned) {
    cta.last_returned = thread.knowledge.base;
    cta.seen_at_return.join(*thread.knowledge.base);
  }
  if (cta.live > 0) return;
  for (const Access& access : cta.remote) {
    if (Clocks::at(cta.seen_at_return.seen, access.agent) >= access.time) continue;
    cluster.fail(
        fmt::format("CTA ends too early: {} is the last of its CTA to return, and nothing orders that after {}, "
                    "which accesses its shared memory\n  It must wait, for what it is sent or at the cluster's "
                    "barrier, before it returns. The access is made or started",
                    Cluster::name_of(thread), cluster.name_of(access.agent)),
        cluster.site_address(access.site));
  }
}

void griddepcontrol_wait() {
  Cluster& cluster = Cluster::step();
  if (cluster.launch_before() != kNobody) cluster.thread().knowledge.see(cluster.launch_before(), 1);
}

void griddepcontrol_launch_dependents() {}

void check_launch_before(Cluster& cluster, const void* site) {
  const Agent before = cluster.launch_before();
  if (before == kNobody || cluster.thread().knowledge.has_seen(before, 1)) return;
  cluster.fail(
      fmt::format("global memory before griddepcontrol.wait: {} of a programmatic launch may run under the end of "
                  "the launch before, and neither it nor a thread that a barrier orders before it has waited",
                  Cluster::name_of(cluster.thread())),
      site);
}

}  // namespace flashcore::emulator
