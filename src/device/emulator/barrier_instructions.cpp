// bar.sync and bar.arrive: sixteen named barriers of a CTA, which count threads and order their memory accesses.

#include <algorithm>
#include <bit>

#include "device/emulator/instructions.h"

namespace flashcore::emulator {
namespace {

std::string describe_barrier(const Cta& cta, unsigned id, unsigned) {
  const NamedBarrier& barrier = cta.barriers[id];
  return fmt::format("barrier {}, at which {} of {} threads have arrived", id, barrier.arrived, barrier.expected);
}

NamedBarrier& arrive(Cluster& cluster, int id, int threads, const void* site) {
  Thread& self = cluster.thread();
  Cta& cta = *self.cta;
  if (id < 0 || id > 15)
    cluster.fail(fmt::format("barrier {} does not exist: a CTA has barriers 0 to 15 ({})", id, Cluster::name_of(self)),
                 site);
  const unsigned expected = threads > 0 ? static_cast<unsigned>(threads) : static_cast<unsigned>(cta.threads.size());
  if (expected % 32 != 0 && threads > 0)
    cluster.fail(fmt::format("barrier {} for {} threads: the count must be a multiple of 32 ({})", id, threads,
                             Cluster::name_of(self)),
                 site);
  NamedBarrier& barrier = cta.barriers[static_cast<std::size_t>(id)];
  if (barrier.arrivals.empty()) barrier.expected = expected;
  if (barrier.expected != expected) {
    cluster.fail(fmt::format("barrier {} counts mismatch: {} arrives for {} threads\n  the other party: {}, which "
                             "arrived for {}\n    at {}",
                             id, Cluster::name_of(self), expected, Cluster::name_of(*barrier.arrivals.front().first),
                             barrier.expected, cluster.launch.module.line_of(barrier.arrivals.front().second)),
                 site);
  }
  const auto bit = static_cast<std::uint16_t>(1u << id);
  if (self.at_barriers & bit) {
    const auto first = std::find_if(barrier.arrivals.begin(), barrier.arrivals.end(),
                                    [&](const auto& arrival) { return arrival.first == &self; });
    cluster.fail(fmt::format("barrier {} arrived at twice: {} has arrived before and the barrier is not complete ({} "
                             "of {} threads); the first time\n    at {}",
                             id, Cluster::name_of(self), barrier.arrived, expected,
                             cluster.launch.module.line_of(first->second)),
                 site);
  }
  self.at_barriers |= bit;
  check_aligned(cluster, static_cast<std::size_t>(id), fmt::format("barrier {}", id), site);
  barrier.arrivals.emplace_back(&self, site);
  barrier.clocks.release(self.knowledge);
  ++barrier.arrived;
  return barrier;
}

// Everybody who waits, and `last` if it does, knows what all have done.
void complete(Cluster& cluster, int id, NamedBarrier& barrier, Thread* last) {
  const SharedClocks known = barrier.clocks.take();
  for (Thread* thread : barrier.waiting) {
    thread->knowledge.take(known);
    thread->passed = {PassedBarrier::kNamed, static_cast<unsigned>(id), thread->waiting.site};
    cluster.wake(*thread);
  }
  if (last) last->knowledge.take(known);
  for (const auto& [thread, site] : barrier.arrivals) thread->at_barriers &= static_cast<std::uint16_t>(~(1u << id));
  barrier.waiting.clear();
  barrier.arrivals.clear();
  barrier.arrived = 0;
}

}  // namespace

void check_aligned(Cluster& cluster, std::size_t slot, const std::string& name, const void* site) {
  Warp& warp = *cluster.thread().warp;
  Warp::Aligned& aligned = warp.aligned[slot];
  if (aligned.count == 0) aligned.site = site;
  else if (!cluster.same_site(aligned.site, site)) {
    cluster.fail(
        fmt::format("divergent barrier: lanes of warp {} arrive at {} from different places; the other is\n    at {}",
                    warp.index, name, cluster.launch.module.line_of(aligned.site)),
        site);
  }
  if (++aligned.count == std::popcount(warp.full)) aligned.count = 0;
}

void bar_sync(int id, int threads) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Thread& self = cluster.thread();
  cluster.count_wait(SiteCounters::kBarrierWait, site);
  NamedBarrier& barrier = arrive(cluster, id, threads, site);
  if (barrier.arrived == barrier.expected) {
    complete(cluster, id, barrier, &self);
    self.passed = {PassedBarrier::kNamed, static_cast<unsigned>(id), site};
    return;
  }
  barrier.waiting.push_back(&self);
  cluster.block({describe_barrier, static_cast<unsigned>(id), 0, site});
}

void bar_arrive(int id, int threads) {
  Cluster& cluster = Cluster::step();
  NamedBarrier& barrier = arrive(cluster, id, threads, FC_EMULATOR_SITE);
  if (barrier.arrived == barrier.expected) complete(cluster, id, barrier, nullptr);
}

}  // namespace flashcore::emulator
