#pragma once
// The running GPU: one cluster of CTAs at a time on an operating-system thread, one fiber per GPU thread. A fiber runs
// until it must wait; the scheduler then picks another at random.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/random.h"
#include "device/device.h"
#include "device/emulator/clocks.h"
#include "device/emulator/counters.h"
#include "device/emulator/fiber.h"
#include "device/emulator/global_memory.h"
#include "device/emulator/module.h"
#include "device/emulator/shared_memory.h"

namespace flashcore::emulator {

struct Warp;
struct Cta;
class Cluster;

// What was known of a cluster's threads when one of them released to the whole GPU.
struct GlobalRelease {
  unsigned first_cta = 0, ctas = 0;  // of that cluster
  SharedClocks clocks;

  bool operator==(const GlobalRelease&) const = default;
};
// One that a thread of this cluster has acquired, at its time.
struct GlobalAcquire {
  Agent agent = kNobody;
  std::uint32_t time = 0;
  GlobalRelease release;
};

// Every other launch takes CTAs in order and does asynchronous work as late as possible: the hardest case for a
// missing wait, and the one whose counters compare. The ones between try other orders.
inline bool is_plain_launch(std::uint32_t number) { return number % 2 == 0; }

// What all clusters of one launch share.
struct LaunchState {
  const EmulatorModule& module;
  const LaunchSpec& spec;
  std::vector<std::shared_ptr<Allocation>> allocations;
  const GlobalMemory& memory;
  std::uint32_t number = 0;  // of the device's launches; with the seed it decides every random choice
  std::uint64_t seed = 0;

  bool plain() const { return is_plain_launch(number); }

  std::atomic<bool> failed{false};
  std::mutex mutex{};
  std::string report{};  // of the first fault; guarded by the mutex
  Counters counters{};   // guarded by the mutex
  std::atomic<std::uint64_t> timer_reads{0};
  std::map<const void*, std::vector<GlobalRelease>> releases{};  // by address of the atomic; guarded by the mutex
};

// When asynchronous work is done, within what the program allows.
enum class Lateness { kLatest, kRandom, kAtOnce };

struct PendingCopy {
  unsigned destination;
  const void* source;
  int source_bytes;
  std::uint32_t group;
};

// A tile, or `bytes` of plain memory at `to` if `map` is null.
struct PendingStore {
  const void* map;
  unsigned source;
  int at[4];
  std::uint32_t group;
  const void* site;
  void* to = nullptr;
  unsigned bytes = 0;
};

// Why a thread does not run, for the deadlock report.
struct Waiting {
  std::string (*describe)(const Cta& cta, unsigned object, unsigned phase) = nullptr;
  unsigned object = 0, phase = 0;
  const void* site = nullptr;
};

// The last barrier that a thread came out of, for reports of races.
struct PassedBarrier {
  enum Kind : std::uint8_t { kNone, kNamed, kMBarrier, kCluster } kind = kNone;
  unsigned object = 0;  // number, or address in shared memory
  const void* site = nullptr;
};

struct Thread {
  Cta* cta = nullptr;
  Warp* warp = nullptr;
  int index = 0, lane = 0;  // within the CTA; within the warp
  fc::fcontext_t context = nullptr;
  const void* stack = nullptr;  // its lowest byte
  void* fake_stack = nullptr;   // the sanitizer's
  bool done = false;
  Knowledge knowledge;
  Waiting waiting;
  PassedBarrier passed;

  std::vector<PendingCopy> copies;  // not landed yet, oldest first
  std::uint32_t open_group = 1;     // cp.async group being filled
  std::vector<std::uint32_t> copies_in_group;
  std::vector<PendingStore> stores;  // TMA stores, oldest first
  std::uint32_t open_bulk_group = 1;
  std::uint16_t at_barriers = 0;  // named barriers it has arrived at and that are not complete
  std::uint32_t cluster_arrivals = 0, cluster_waits = 0;
};

// A collective that is gathering its threads: of a warp, or of a warpgroup.
using Operands = std::array<void*, 128>;
template <class Mine>
Mine& operands_of(const Operands& all, int thread) {
  return *static_cast<Mine*>(all[static_cast<std::size_t>(thread)]);
}
struct Gathering {
  const void* site = nullptr;
  const void* kind = nullptr;  // address of the function that executes it
  const Thread* first = nullptr;
  int arrived = 0;
  Operands operands{};
};

struct Warp {
  Cta* cta = nullptr;
  int index = 0;
  std::uint32_t full = 0;      // lanes that exist
  std::uint32_t runnable = 0;  // lanes that are not waiting
  bool queued = false;
  std::array<Thread*, 32> lanes{};
  Gathering gathering;
  std::vector<RequestLog> logs;  // by site
  // Lanes that have come to an .aligned barrier at one site; the others must come to the same.
  struct Aligned {
    const void* site = nullptr;
    int count = 0;
  };
  std::array<Aligned, 18> aligned{};  // sixteen named barriers, the cluster's arrive, the cluster's wait
};

struct NamedBarrier {
  unsigned expected = 0, arrived = 0;  // threads
  std::vector<Thread*> waiting;
  std::vector<std::pair<Thread*, const void*>> arrivals;
  HandOver clocks;
};

// The barrier of a cluster: of all its threads that have not returned.
struct ClusterBarrier {
  std::uint32_t phase = 0;  // how many have ended
  std::size_t arrived = 0;
  HandOver clocks;
  SharedClocks ended;
  std::vector<Thread*> waiting;
};

// A barrier in shared memory. `phase`: how many have ended; the current one ends when both pending counts are zero.
struct MBarrier {
  int arrivals = 0, pending_arrivals = 0;
  std::int64_t pending_bytes = 0;
  std::uint32_t phase = 0;
  bool fenced = false;           // its init is visible to the asynchronous proxy, and releases may hand it on
  std::uint32_t init_fence = 0;  // which of the CTA's fences that was
  bool remote = false, ended_remote = false;  // other CTAs wrote for the current phase, for the last one
  const Thread* owner = nullptr;              // who initialised it
  Agent agent = kNobody;  // of the copies that complete on it; time: the phase they end, counted from 1
  HandOver clocks;
  SharedClocks ended;  // what the last ended phase hands over
  std::vector<Thread*> waiting;
};

// One matrix multiply that a warpgroup has issued and not waited for.
struct PendingWgmma {
  WgmmaOperands operands;                             // of the warpgroup's first thread
  std::array<const unsigned*, 128> a{};               // registers of operand A, per thread
  std::array<std::array<unsigned, 4>, 128> a_values;  // what they held at the issue
  std::uint32_t group = 0;
  const void* site = nullptr;
};

// An accumulator that pending multiplies work on; meanwhile the kernel's own copy holds a poison.
struct Accumulator {
  std::array<float*, 128> registers{};
  int n = 0;
  std::vector<float> value;  // 64 rows of n
  std::uint32_t last_group = 0;
};

struct Warpgroup {
  Gathering gathering;
  Agent agent = kNobody;
  std::uint32_t open_group = 1, completed = 0;
  bool fenced = false;  // a wgmma.fence since registers could last be touched
  std::vector<PendingWgmma> pending;
  std::map<const float*, Accumulator> accumulators;  // by the first thread's registers
};

struct Cta {
  Cluster* cluster = nullptr;
  unsigned rank = 0;    // within the cluster
  unsigned linear = 0;  // within the grid
  Dim3 index;
  SharedMemory shared;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  std::array<NamedBarrier, 16> barriers;
  std::map<unsigned, MBarrier> mbarriers;  // by address
  std::uint64_t copies_under_way = 0;
  std::size_t live = 0;  // threads that have not returned
  // In a cluster. `started`: whoever has seen its time 1 knows that this CTA runs. `inits`: times of fences after
  // mbarrier.init, which even a relaxed arrival hands on.
  Agent started = kNobody, inits = kNobody;
  std::uint32_t init_fences = 0;
  std::vector<Access> remote;  // accesses to this CTA's shared memory by others: the latest of each agent
  Clocks seen_at_return;       // by the threads that have returned, together
  SharedClocks last_returned;
  // setmaxnreg: registers of each warp, and those that nobody holds, per lane.
  std::vector<int> warp_registers;
  int free_registers = 0;
  std::vector<Thread*> waiting_for_registers;
};

class Cluster {
 public:
  // Runs the clusters of a launch one after the other, keeping stacks and shadow memory between them.
  explicit Cluster(LaunchState& launch);
  void run(unsigned first_cta);
  // Adds what was counted to the launch; once, after the last run().
  void publish_counters();

  // --- for the instructions, called on a fiber ---
  static Cluster& current();
  // The same, by an instruction: it is the running thread's next step.
  static Cluster& step();
  Thread& thread() { return *running_; }
  // Waits until wake(); `why` is for the deadlock report.
  void block(const Waiting& why);
  void wake(Thread& thread);
  // Ends the launch with a report: throws DeviceFault, which unwinds the fiber through the kernel's frames.
  [[noreturn]] void fail(const std::string& what, const void* site);
  [[noreturn]] void fail(const Conflict& conflict, const Cta& cta, const std::string& action, const void* site);

  // Gathers the warp's lanes at `site`; the last to come calls execute(warp, operands) for all. Lanes at different
  // places are a fault.
  using Execute = void (*)(Cluster&, Warp&, Operands& operands);
  void gather(Execute execute, void* operands, const void* site);
  // The same for the 128 threads of a warpgroup.
  using ExecuteGroup = void (*)(Cluster&, Cta&, int warpgroup, Operands& operands);
  void gather(ExecuteGroup execute, void* operands, const void* site);
  // Work that may be done at any time from now on; done at the latest when nothing else can run.
  void defer(std::function<void()> work);
  bool same_site(const void* a, const void* b) const;

  Access access_of(const Thread& thread, const void* site) {
    return {thread.knowledge.time, thread.knowledge.agent, static_cast<std::uint16_t>(sites_.of(site) & 0xfff), 0};
  }
  // The agent of a thread's asynchronous work, made on first use.
  Agent own_agent(Thread& thread, OwnAgentKind kind);
  Agent new_agent(std::string name);
  std::string name_of(Agent agent) const;
  // Lines for a race of the running thread with another (null: asynchronous work): which barrier each has passed last.
  std::string passed_barriers(const Thread* other) const;
  static std::string name_of(const Thread& thread);

  void count(const Thread& thread, SiteCounters::Kind kind, std::uint64_t address, int bytes, const void* site);
  void count_wait(SiteCounters::Kind kind, const void* site);  // of the running thread
  void count_moved(SiteCounters::Kind kind, std::uint64_t bytes, const void* site) {
    count_tile(kind, bytes, counters_of(sites_.of(site)));
  }
  SiteCounters& counters_of(std::uint16_t site) {
    if (site_counters_.size() <= site) site_counters_.resize(site + std::size_t{1});
    return site_counters_[site];
  }
  std::uint16_t site_of(const void* address) { return sites_.of(address); }
  const void* site_address(std::uint16_t site) const { return sites_.address(site); }

  Allocation* find(const void* address, std::size_t bytes);

  std::size_t size() const { return ctas_.size(); }
  Cta& cta(std::size_t rank) { return *ctas_[rank]; }
  // The CTA of a number in the grid, if it is of this cluster.
  const Cta* cta_of_grid(unsigned linear) const {
    const unsigned rank = linear - ctas_[0]->linear;
    return rank < ctas_.size() ? ctas_[rank].get() : nullptr;
  }
  std::size_t live() const { return live_; }
  // Ends the phase of the cluster's barrier if all that live have arrived.
  void complete_barrier();
  // Whoever has seen time 1 of it may touch global memory. kNobody unless the launch is programmatic.
  Agent launch_before() const { return launch_before_; }

  LaunchState& launch;
  std::vector<GlobalAcquire> acquired;  // from other clusters
  SplitMix random;
  Lateness lateness = Lateness::kLatest;
  ClockJoiner joiner;
  Counters counters;
  ClusterBarrier barrier;

 private:
  // True if the caller is the last to come; else it has waited until that one was done.
  bool join(Gathering& gathering, const void* kind, int slot, int expected, void* operands, const void* site);
  bool run_deferred();
  static void fiber_main(fc::transfer_t from);
  void start(unsigned first_cta);
  void finish();
  void schedule();
  void resume(Thread& thread);
  void note_fault(const std::string& report);
  std::string deadlock_report() const;
  bool was_waited_for(const Access& access) const;
  std::string context_of(const Cta& cta) const;
  std::string stack_of(const void* site) const;
  const Thread* thread_of(Agent agent) const;  // null for asynchronous work

  StackPool stacks_;
  std::vector<std::unique_ptr<Cta>> ctas_;
  std::vector<Warp*> ready_;
  std::vector<std::function<void()>> deferred_;
  std::size_t live_ = 0;
  Agent launch_before_ = kNobody;
  Thread* running_ = nullptr;
  fc::fcontext_t scheduler_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
  SiteTable sites_;
  std::vector<SiteCounters> site_counters_;
  std::vector<std::string> agent_names_;  // of agents beyond the threads
  Allocation* last_found_[2] = {};
};

// Instructions name their line by where they return to. Every service is one call deep, so this is the kernel's.
#define FC_EMULATOR_SITE __builtin_return_address(0)

// Runs all CTAs of a launch on the cores of this machine. Throws DeviceFault with the report.
void run_launch(LaunchState& launch, int threads);

}  // namespace flashcore::emulator
