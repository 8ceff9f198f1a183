// What a fault says: what happened, where, who, the other party, and how to see it again.

#include "core/error.h"
#include "device/emulator/execution.h"

namespace flashcore::emulator {

std::string Cluster::name_of(const Thread& thread) {
  const Cta& cta = *thread.cta;
  std::string name = fmt::format("thread {} (warp {}, lane {})", thread.index, thread.warp->index, thread.lane);
  if (cta.cluster->ctas_.size() > 1) name += fmt::format(" of CTA rank {}", cta.rank);
  return name;
}

std::string Cluster::name_of(Agent agent) const {
  const std::size_t per_cta = ctas_[0]->threads.size();
  if (agent < per_cta * ctas_.size()) return name_of(ctas_[agent / per_cta]->threads[agent % per_cta]);
  return agent_names_[agent - per_cta * ctas_.size()];
}

const Thread* Cluster::thread_of(Agent agent) const {
  const std::size_t per_cta = ctas_[0]->threads.size();
  return agent < per_cta * ctas_.size() ? &ctas_[agent / per_cta]->threads[agent % per_cta] : nullptr;
}

std::string Cluster::passed_barriers(const Thread* other) const {
  const auto line = [&](const Thread& thread) {
    const PassedBarrier& p = thread.passed;
    const std::string what = p.kind == PassedBarrier::kNone    ? "none yet"
                             : p.kind == PassedBarrier::kNamed ? fmt::format("barrier {}", p.object)
                             : p.kind == PassedBarrier::kCluster
                                 ? "the cluster's barrier"
                                 : fmt::format("the mbarrier at offset {}", p.object - SharedMemory::kBase);
    return fmt::format("\n  last barrier passed by {}: {}{}", name_of(thread), what,
                       p.site == nullptr ? "" : "\n" + stack_of(p.site));
  };
  return line(*running_) + (other == nullptr || other == running_ ? "" : line(*other));
}

std::string Cluster::stack_of(const void* site) const {
  std::string text;
  for (const std::string& line : launch.module.lines_of(site)) text += (text.empty() ? "    at " : "\n    by ") + line;
  return text;
}

bool Cluster::same_site(const void* a, const void* b) const {
  // The host compiler may have copied one source line into two places.
  return a == b || launch.module.lines_of(a) == launch.module.lines_of(b);
}

std::string Cluster::context_of(const Cta& cta) const {
  const LaunchSpec& spec = launch.spec;
  return fmt::format(
      "  CTA ({}, {}, {}) of grid ({}, {}, {}), {} threads, {} bytes of shared memory; launch {} with "
      "FLASHCORE_EMULATOR_SEED={}",
      cta.index.x, cta.index.y, cta.index.z, spec.grid.x, spec.grid.y, spec.grid.z, cta.threads.size(),
      spec.shared_bytes, launch.number, launch.seed);
}

void Cluster::fail(const std::string& what, const void* site) {
  const std::size_t line = what.find('\n');
  throw DeviceFault(fmt::format("{}\n{}{}\n{}", what.substr(0, line), stack_of(site),
                                line == std::string::npos ? "" : what.substr(line), context_of(*running_->cta)));
}

void Cluster::fail(const Conflict& conflict, const Cta& cta, const std::string& action, const void* site) {
  const std::string whose = &cta == running_->cta ? "" : fmt::format(" of CTA rank {}", cta.rank);
  const std::string place =
      fmt::format("shared memory {:#x} (offset {} of {}){}", conflict.address,
                  static_cast<int>(conflict.address - SharedMemory::kBase), cta.shared.size(), whose);
  const std::string self = fmt::format("{} {}", name_of(*running_), action);
  const auto other = [&](const char* verb) {
    return fmt::format("\n  the other party: {}, which {} there\n{}", name_of(conflict.other.agent), verb,
                       stack_of(sites_.address(conflict.other.site)));
  };
  switch (conflict.kind) {
    case Conflict::kOutOfBounds: fail(fmt::format("shared memory out of bounds: {} at {}", self, place), site);
    case Conflict::kMisaligned: fail(fmt::format("misaligned shared memory access: {} at {}", self, place), site);
    case Conflict::kUninitialised:
      fail(fmt::format("uninitialised shared memory: {} at {}, which nobody has written\n  If another thread is to "
                       "write it, a barrier is missing between that write and this line.{}",
                       self, place, passed_barriers(nullptr)),
           site);
    case Conflict::kBarrierObject:
      fail(fmt::format("barrier overwritten: {} at {}, which is part of an mbarrier", self, place), site);
    case Conflict::kMissingFence:
      fail(fmt::format("missing proxy fence: {} at {} through the asynchronous proxy, and no fence.proxy.async follows "
                       "the ordinary write{}",
                       self, place, other("wrote")),
           site);
    case Conflict::kUnorderedRead:
      fail(fmt::format("race: {} at {}, and no barrier orders it after an earlier read{}\n  A barrier is missing "
                       "between these two lines: the reader must arrive at one that the writer waits for "
                       "(__syncthreads, a named barrier, an mbarrier).{}",
                       self, place, other("read"), passed_barriers(thread_of(conflict.other.agent))),
           site);
    case Conflict::kUnorderedWrite: break;
  }
  const bool asynchronous = conflict.other.agent >= ctas_.size() * ctas_[0]->threads.size();
  const char* advice =
      "A barrier is missing between these two lines: the writer must arrive at one that this thread waits for "
      "(__syncthreads, a named barrier, an mbarrier).";
  if (asynchronous) {
    advice =
        was_waited_for(conflict.other)
            ? "That copy has been waited for, but by other threads: a barrier is needed between their wait and this."
            : "Nobody has waited for that yet: the thread that started it must wait, and others need a barrier after "
              "that.";
  }
  fail(fmt::format("race: {} at {}, and nothing orders it after an earlier write{}\n  {}{}", self, place,
                   other("wrote"), advice, passed_barriers(thread_of(conflict.other.agent))),
       site);
}

bool Cluster::was_waited_for(const Access& access) const {
  for (const auto& cta : ctas_) {
    for (const Thread& thread : cta->threads) {
      if (thread.knowledge.ordered(access)) return true;
    }
  }
  return false;
}

std::string Cluster::deadlock_report() const {
  std::string text = "deadlock: every thread that has not returned waits";
  std::size_t returned = 0;
  for (const auto& cta : ctas_) {
    // Neighbours that wait for the same thing at the same place share a line.
    for (std::size_t i = 0; i < cta->threads.size();) {
      const Thread& first = cta->threads[i];
      std::size_t end = i + 1;
      const auto alike = [&](const Thread& t) {
        return t.done == first.done && t.waiting.site == first.waiting.site &&
               t.waiting.object == first.waiting.object && t.waiting.phase == first.waiting.phase;
      };
      while (end < cta->threads.size() && alike(cta->threads[end])) ++end;
      const std::string who = end == i + 1 ? fmt::format("thread {}", i) : fmt::format("threads {} to {}", i, end - 1);
      const std::string where = ctas_.size() > 1 ? fmt::format(" of CTA rank {}", cta->rank) : "";
      if (first.done) returned += end - i, text += fmt::format("\n  {}{}: returned", who, where);
      else
        text += fmt::format("\n  {}{}: waits for {}\n{}", who, where,
                            first.waiting.describe(*cta, first.waiting.object, first.waiting.phase),
                            stack_of(first.waiting.site));
      i = end;
    }
  }
  if (returned > 0) text += "\n  A thread that has returned arrives at no barrier.";
  return text + "\n" + context_of(*ctas_[0]);
}

}  // namespace flashcore::emulator
