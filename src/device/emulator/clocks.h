#pragma once
// Happens-before. An agent is a GPU thread, or something that works beside one: the cp.async copies of a thread, the
// phases of an mbarrier, the groups of a warpgroup. An agent's time counts its releases (for a copy: its group). An
// access is ordered before a thread exactly if the thread has seen the agent at that time or later.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace flashcore::emulator {

using Agent = std::uint16_t;
inline constexpr Agent kNobody = 0xffff;

// One access as the shadow memory remembers it.
struct Access {
  std::uint32_t time = 0;
  Agent agent = kNobody;
  std::uint16_t site : 12 = 0;  // index into SiteTable
  std::uint16_t mask : 4 = 0;   // the bytes of the cell that it touched
};
inline constexpr std::size_t kMaxSites = 4096;

// What a thread has seen of every agent; immutable once shared. `fenced`: the same, as far as a proxy fence has made
// generic writes visible to the asynchronous proxy (PTX ISA, "Proxies").
struct Clocks {
  std::vector<std::uint32_t> seen, fenced;
  std::uint64_t steps = 0;  // the most of whoever released

  static std::uint32_t at(const std::vector<std::uint32_t>& times, Agent agent) {
    return agent < times.size() ? times[agent] : 0;
  }
  static void raise(std::vector<std::uint32_t>& times, Agent agent, std::uint32_t time);
  void join(const Clocks& other);
};
using SharedClocks = std::shared_ptr<const Clocks>;

// A thread's own asynchronous agent and how much of it the thread has waited for.
struct OwnAgent {
  Agent agent = kNobody;
  std::uint32_t seen = 0;
};

// Of a thread's bulk stores, kBulkAgent is what they read of shared memory, which bulk_wait_read waits for, and
// kBulkWriteAgent what they write to global memory, which only bulk_wait does.
enum OwnAgentKind { kCopyAgent, kBulkAgent, kBulkWriteAgent, kWgmmaAgent, kOwnAgents };

// The knowledge of one thread.
struct Knowledge {
  Agent agent = 0;
  std::uint32_t time = 1;
  SharedClocks base;
  OwnAgent own[kOwnAgents];
  // The thread's clock: its instructions so far, and where it waited for others' at least as many as they had. So what
  // waits for nobody runs side by side, in whatever order the fibers take turns; a copy takes no step.
  std::uint64_t steps = 0;

  bool has_seen(Agent other, std::uint32_t time_of_other) const {
    return Clocks::at(base->seen, other) >= time_of_other;
  }
  // All that is known of others from now on.
  void take(const SharedClocks& known) {
    base = known;
    steps = std::max(steps, known->steps);
  }
  // Sees the agent at that time, as if it had been handed over.
  void see(Agent other, std::uint32_t time_of_other);
  bool ordered(const Access& access) const {
    if (access.agent == agent) return true;
    for (const OwnAgent& mine : own) {
      if (access.agent == mine.agent) return access.time <= mine.seen;
    }
    return access.time <= Clocks::at(base->seen, access.agent);
  }
};

// Where knowledge is handed over: a barrier of any kind. Threads release into it, and later acquire what it holds.
class HandOver {
 public:
  // Adds what `from` knows and has done; its later accesses are of a new time.
  void release(Knowledge& from);
  // Adds an agent's time, as when an asynchronous copy completes.
  void raise(Agent agent, std::uint32_t time) { Clocks::raise(gathered_.seen, agent, time); }
  // What was gathered, to be acquired; the hand-over is empty afterwards.
  SharedClocks take();
  bool empty() const { return gathered_.seen.empty(); }

 private:
  Clocks gathered_;
  std::vector<SharedClocks> joined_;  // already in gathered_: most threads bring the clocks of the last barrier
};

// Many threads join the same two clocks one after the other: the last results are kept.
class ClockJoiner {
 public:
  void acquire(Knowledge& to, const SharedClocks& from);

 private:
  struct Entry {
    SharedClocks a, b, joined;
  };
  Entry recent_[8];
  unsigned next_ = 0;
};

}  // namespace flashcore::emulator
