#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/parallel.h"
#include "device/emulator/instructions.h"

namespace flashcore::emulator {
namespace {

thread_local Cluster* t_current = nullptr;

// Decorrelates neighbouring launches and CTAs.
std::uint64_t mix(std::uint64_t seed, std::uint64_t launch, std::uint64_t cta) {
  SplitMix random(seed * kSplitMixStep + launch);
  return random.next() ^ SplitMix(cta).next();
}

unsigned cluster_size(const LaunchSpec& spec) { return spec.cluster.x * spec.cluster.y * spec.cluster.z; }

}  // namespace

Cluster& Cluster::current() { return *t_current; }
Cluster& Cluster::step() {
  ++t_current->running_->knowledge.steps;
  return *t_current;
}

Cluster::Cluster(LaunchState& shared_launch) : launch(shared_launch) {
  for (unsigned i = 0; i < cluster_size(launch.spec); ++i) ctas_.push_back(std::make_unique<Cta>());
}

void Cluster::run(unsigned first_cta) {
  t_current = this;
  start(first_cta);
  try {
    schedule();
  } catch (const std::exception& e) {  // of deferred work, which runs on no fiber
    note_fault(e.what());
  }
  if (!launch.failed && live_ > 0) note_fault(deadlock_report());
  finish();
  t_current = nullptr;
}

void Cluster::start(unsigned first_cta) {
  acquired.clear();
  const LaunchSpec& spec = launch.spec;
  const unsigned per_cta = spec.block.x * spec.block.y * spec.block.z;
  random = SplitMix(mix(launch.seed, launch.number, first_cta));
  lateness = launch.plain() ? Lateness::kLatest : static_cast<Lateness>(random.below_32(3));
  FC_CHECK(ctas_.size() == 1 || spec.grid.x % ctas_.size() == 0);
  stacks_.reserve(ctas_.size() * per_cta);
  agent_names_.clear();
  ready_.clear();
  deferred_.clear();
  live_ = ctas_.size() * per_cta;
  barrier = {};
  for (unsigned rank = 0; rank < ctas_.size(); ++rank) {
    Cta& cta = *ctas_[rank];
    cta.cluster = this;
    cta.rank = rank;
    cta.linear = first_cta + rank;
    cta.index = {cta.linear % spec.grid.x, cta.linear / spec.grid.x % spec.grid.y,
                 cta.linear / (spec.grid.x * spec.grid.y)};
    cta.shared.reset(spec.shared_bytes);
    for (NamedBarrier& named : cta.barriers) named = {};
    cta.mbarriers.clear();
    cta.copies_under_way = 0;
    cta.live = per_cta;
    cta.started = cta.inits = kNobody;
    cta.init_fences = 0;
    cta.remote.clear();
    cta.seen_at_return = {};
    cta.last_returned = nullptr;
    cta.threads.clear();
    cta.threads.resize(per_cta);
    cta.warps.resize((per_cta + 31) / 32);
    cta.warpgroups.clear();
    cta.warpgroups.resize((per_cta + 127) / 128);
    // What a launch with one CTA per SM gives each thread; ptxas rounds its limit of 255 down as well.
    const int registers = std::min<int>(255, static_cast<int>(65536 / per_cta)) / 8 * 8;
    cta.warp_registers.assign(cta.warps.size(), registers);
    cta.free_registers = 0;
    cta.waiting_for_registers.clear();
    for (unsigned i = 0; i < per_cta; ++i) {
      Thread& thread = cta.threads[i];
      Warp& warp = cta.warps[i / 32];
      if (i % 32 == 0) {
        const auto logs = std::move(warp.logs);  // flushed; only their memory is kept
        warp = Warp{};
        warp.cta = &cta;
        warp.index = static_cast<int>(i / 32);
      }
      thread.cta = &cta;
      thread.warp = &warp;
      thread.index = static_cast<int>(i);
      thread.lane = static_cast<int>(i % 32);
      thread.context = stacks_.make(rank * per_cta + i, fiber_main);
      thread.stack = stacks_.bottom(rank * per_cta + i);
      thread.knowledge.agent = static_cast<Agent>(rank * per_cta + i);
      warp.lanes[i % 32] = &thread;
      warp.full |= 1u << i % 32;
      wake(thread);
    }
  }
  // Agents are numbered behind the threads, so these come once all CTAs have theirs.
  launch_before_ = spec.programmatic ? new_agent("the launch before") : kNobody;
  for (auto& cta : ctas_) {
    auto seen = std::make_shared<Clocks>();
    if (ctas_.size() > 1) {
      cta->started = new_agent(fmt::format("the start of CTA rank {}", cta->rank));
      Clocks::raise(seen->seen, cta->started, 1);
    }
    for (Thread& thread : cta->threads) thread.knowledge.base = seen;
  }
}

void Cluster::finish() {
  if (launch.failed) return;
  for (auto& cta : ctas_) {
    for (Warp& warp : cta->warps) {
      for (std::size_t site = 0; site < warp.logs.size(); ++site)
        warp.logs[site].flush(warp.full, counters_of(static_cast<std::uint16_t>(site)));
    }
  }
  counters.ctas += ctas_.size();
}

void Cluster::fiber_main(fc::transfer_t from) {
  Cluster& cluster = current();
  finish_stack_switch(nullptr, &cluster.scheduler_stack_, &cluster.scheduler_stack_bytes_);
  cluster.scheduler_ = from.fctx;
  Thread& self = cluster.thread();
  try {
    cluster.launch.module.call(cluster.launch.spec.kernel, cluster.launch.spec.params.data());
    thread_returns(self);
    leave_cluster(self);
  } catch (const std::exception& e) {
    cluster.note_fault(e.what());
  }
  self.done = true;
  cluster.counters.steps = std::max(cluster.counters.steps, self.knowledge.steps);
  --cluster.live_;
  cluster.complete_barrier();
  start_stack_switch(nullptr, cluster.scheduler_stack_, cluster.scheduler_stack_bytes_);
  fc::jump_fcontext(cluster.scheduler_, nullptr);
}

void Cluster::resume(Thread& thread) {
  running_ = &thread;
  void* fake = nullptr;
  start_stack_switch(&fake, thread.stack, StackPool::kStackBytes);
  thread.context = fc::jump_fcontext(thread.context, nullptr).fctx;
  finish_stack_switch(fake, nullptr, nullptr);
}

void Cluster::block(const Waiting& why) {
  Thread& self = *running_;
  self.waiting = why;
  start_stack_switch(&self.fake_stack, scheduler_stack_, scheduler_stack_bytes_);
  scheduler_ = fc::jump_fcontext(scheduler_, nullptr).fctx;
  finish_stack_switch(self.fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
}

void Cluster::wake(Thread& thread) {
  thread.waiting = {};
  Warp& warp = *thread.warp;
  warp.runnable |= 1u << thread.lane;
  if (warp.queued) return;
  warp.queued = true;
  ready_.push_back(&warp);
}

void Cluster::schedule() {
  while (!ready_.empty() || run_deferred()) {
    if (ready_.empty()) continue;
    if (lateness == Lateness::kRandom && random.below_32(4) == 0) run_deferred();
    const std::uint32_t at = random.below_32(static_cast<std::uint32_t>(ready_.size()));
    Warp& warp = *ready_[at];
    ready_[at] = ready_.back();
    ready_.pop_back();
    // A warp often stays: every change of warp costs the cache 32 stacks.
    do {
      const std::uint32_t lanes = std::exchange(warp.runnable, 0);
      const int order = static_cast<int>(random.below_32(32));
      for (int i = 0; i < 32; ++i) {
        const int lane = i ^ order;
        if (!(lanes >> lane & 1)) continue;
        resume(*warp.lanes[static_cast<std::size_t>(lane)]);
        if (launch.failed) return;
      }
    } while (warp.runnable != 0 && random.below_32(4) != 0);
    warp.queued = false;
    if (warp.runnable != 0) {
      warp.queued = true;
      ready_.push_back(&warp);
    }
  }
}

void Cluster::note_fault(const std::string& report) {
  const std::lock_guard lock(launch.mutex);
  if (!launch.failed.exchange(true)) launch.report = report;
}

bool Cluster::join(Gathering& gathering, const void* kind, int slot, int expected, void* operands, const void* site) {
  Thread& self = *running_;
  if (gathering.arrived == 0) {
    gathering.site = site;
    gathering.kind = kind;
    gathering.first = &self;
  } else if (gathering.kind != kind || !same_site(gathering.site, site)) {
    fail(fmt::format("divergent collective: {} executes another instruction than the threads it must execute it "
                     "with\n  the other party: {}, which is at\n{}",
                     name_of(self), name_of(*gathering.first), stack_of(gathering.site)),
         site);
  }
  gathering.operands[static_cast<std::size_t>(slot)] = operands;
  if (++gathering.arrived < expected) {
    block(
        {[](const Cta&, unsigned, unsigned) { return std::string("the other threads of a collective"); }, 0, 0, site});
    return false;
  }
  gathering.arrived = 0;
  return true;
}

void Cluster::gather(Execute execute, void* operands, const void* site) {
  Thread& self = *running_;
  Warp& warp = *self.warp;
  if (!join(warp.gathering, reinterpret_cast<const void*>(execute), self.lane, std::popcount(warp.full), operands,
            site))
    return;
  execute(*this, warp, warp.gathering.operands);
  std::uint64_t steps = 0;
  for (const Thread* lane : warp.lanes) {
    if (lane) steps = std::max(steps, lane->knowledge.steps);
  }
  for (Thread* lane : warp.lanes) {
    if (lane) lane->knowledge.steps = steps;
  }
  for (Thread* lane : warp.lanes) {
    if (lane && lane != &self) wake(*lane);
  }
}

void Cluster::gather(ExecuteGroup execute, void* operands, const void* site) {
  Thread& self = *running_;
  Cta& cta = *self.cta;
  const int number = self.index / 128;
  if (static_cast<std::size_t>(number + 1) * 128 > cta.threads.size())
    fail(fmt::format("warpgroup instruction by {}, whose warpgroup is not whole in a CTA of {} threads", name_of(self),
                     cta.threads.size()),
         site);
  Gathering& gathering = cta.warpgroups[static_cast<std::size_t>(number)].gathering;
  if (!join(gathering, reinterpret_cast<const void*>(execute), self.index % 128, 128, operands, site)) return;
  execute(*this, cta, number, gathering.operands);
  std::uint64_t steps = 0;
  for (std::size_t i = 0; i < 128; ++i)
    steps = std::max(steps, cta.threads[static_cast<std::size_t>(number) * 128 + i].knowledge.steps);
  for (int i = 0; i < 128; ++i) {
    Thread& other = cta.threads[static_cast<std::size_t>(number * 128 + i)];
    other.knowledge.steps = steps;
    if (&other != &self) wake(other);
  }
}

void Cluster::defer(std::function<void()> work) {
  if (lateness == Lateness::kAtOnce) work();
  else deferred_.push_back(std::move(work));
}

bool Cluster::run_deferred() {
  if (deferred_.empty()) return false;
  std::swap(deferred_[random.below_32(static_cast<std::uint32_t>(deferred_.size()))], deferred_.back());
  const auto work = std::move(deferred_.back());
  deferred_.pop_back();
  work();
  return true;
}

Agent Cluster::new_agent(std::string name) {
  const std::size_t agent = ctas_.size() * ctas_[0]->threads.size() + agent_names_.size();
  FC_CHECK(agent < kNobody);
  agent_names_.push_back(std::move(name));
  return static_cast<Agent>(agent);
}

Agent Cluster::own_agent(Thread& thread, OwnAgentKind kind) {
  static constexpr const char* kNames[] = {"cp.async of", "bulk copies of", "bulk stores of", "wgmma of"};
  OwnAgent& mine = thread.knowledge.own[kind];
  if (mine.agent == kNobody) mine.agent = new_agent(fmt::format("{} {}", kNames[kind], name_of(thread)));
  return mine.agent;
}

void Cluster::count(const Thread& thread, SiteCounters::Kind kind, std::uint64_t address, int bytes, const void* site) {
  const std::uint16_t number = sites_.of(site);
  Warp& warp = *thread.warp;
  if (warp.logs.size() <= number) warp.logs.resize(number + std::size_t{1});
  SiteCounters& counter = counters_of(number);
  counter.kind = kind;
  counter.bytes = bytes;
  warp.logs[number].add(thread.lane, address, warp.full, counter);
}

void Cluster::count_wait(SiteCounters::Kind kind, const void* site) {
  ++(kind == SiteCounters::kCopyWait ? counters.copy_waits : counters.barrier_waits);
  SiteCounters& counter = counters_of(sites_.of(site));
  counter.kind = kind;
  ++counter.requests;
}

Allocation* Cluster::find(const void* address, std::size_t bytes) {
  for (Allocation* recent : last_found_) {
    if (recent && recent->contains(address, bytes)) return recent;
  }
  for (const auto& allocation : launch.allocations) {
    if (!allocation->contains(address, bytes)) continue;
    last_found_[1] = last_found_[0];
    last_found_[0] = allocation.get();
    return allocation.get();
  }
  return nullptr;
}

void Cluster::publish_counters() {
  for (std::size_t site = 0; site < site_counters_.size(); ++site) {
    if (site_counters_[site].kind != SiteCounters::kNone)
      counters.sites[sites_.address(static_cast<std::uint16_t>(site))].add(site_counters_[site]);
  }
  const std::lock_guard lock(launch.mutex);
  launch.counters.add(counters);
}

void run_launch(LaunchState& launch, int threads) {
  const LaunchSpec& spec = launch.spec;
  const unsigned size = cluster_size(spec);
  const std::uint64_t ctas = std::uint64_t{spec.grid.x} * spec.grid.y * spec.grid.z;
  if (spec.cluster.y * spec.cluster.z != 1)
    throw_internal("the emulator knows clusters along x only, not ({}, {}, {})", spec.cluster.x, spec.cluster.y,
                   spec.cluster.z);
  if (ctas == 0 || spec.grid.x % size != 0 || spec.block.x * spec.block.y * spec.block.z == 0 || ctas % size != 0)
    throw_internal("a launch of {} CTAs in clusters of {} is empty or not divided", ctas, size);
  if (const std::size_t taken = launch.module.param_bytes(spec.kernel); spec.params.size() != taken)
    throw_internal("the launch gives {} bytes of parameters and the kernel takes {}", spec.params.size(), taken);
  std::vector<unsigned> order(ctas / size);
  for (unsigned i = 0; i < order.size(); ++i) order[i] = i * size;
  if (!launch.plain()) {
    SplitMix random(mix(launch.seed, launch.number, ~0ull));
    for (std::size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[random.below_32(static_cast<std::uint32_t>(i))]);
  }
  const auto workers =
      static_cast<std::int64_t>(std::min<std::size_t>(static_cast<std::size_t>(threads), order.size()));
  std::atomic<std::size_t> next{0};
  parallel_for(workers, static_cast<int>(workers), [&](std::int64_t) {
    Cluster cluster(launch);
    for (std::size_t i = next++; i < order.size() && !launch.failed; i = next++) cluster.run(order[i]);
    cluster.publish_counters();
  });
  if (launch.failed) throw DeviceFault(launch.report);
}

}  // namespace flashcore::emulator
