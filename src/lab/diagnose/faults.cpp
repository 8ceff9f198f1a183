// What can be changed in a kernel, its config or its launch: one function for each cause, from hardware's counters
// where they are there, else from what the emulator counted and the compiler said.

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "lab/diagnose/metrics.h"
#include "lab/diagnose/profile.h"
#include "lab/diagnose/targets.h"
#include "lab/record/number_text.h"

namespace flashcore {
namespace {

constexpr std::size_t kHotLines = 3;

std::string percent_text(double share) { return fmt::format("{:.0f}%", 100 * share); }

double share_of(double part, double rest) { return part + rest > 0 ? part / (part + rest) : 0; }

std::string place_of(const std::string& where, const std::string& caller) {
  return where + (caller.empty() ? "" : ", called at " + caller);
}

class FaultFinder {
 public:
  explicit FaultFinder(const ProfileFacts& facts) : facts_(facts) {
    if (facts.counts) cycles_ = cycles_of(*facts.counts, sm_rates(facts.limits, facts.problem));
  }

  std::vector<Bottleneck> find() {
    spills();
    stack();
    low_occupancy();
    grid();
    bank_conflicts();
    uncoalesced();
    no_overlap();
    divergence();
    barriers();
    extra_work();
    busy_machine();
    std::stable_sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) { return a.share > b.share; });
    return found_;
  }

 private:
  void add(Cause cause, double share, std::string sentence, std::vector<std::string> evidence) {
    if (share >= target::kLeastShare)
      found_.push_back({0, cause, std::min(share, 1.0), std::move(sentence), std::move(evidence)});
  }
  std::optional<double> metric(Metric m) const { return value_of(facts_.counters, m); }
  // Only of lines that take more than they need.
  std::vector<std::string> hot_lines(bool global) const {
    std::vector<std::string> lines;
    if (!facts_.counts) return lines;
    for (const CountedLine& line : facts_.counts->lines) {
      if (line.is_global() != global || line.excess_units() <= 0 || lines.size() == kHotLines) continue;
      lines.push_back(fmt::format("{} at {}: {:.1f} {} per request, {:.1f} would do, {:.0f} requests", line.kind,
                                  place_of(line.where, line.caller), line.units_per_request,
                                  global ? "sectors" : "passes", line.least_per_request, line.requests));
    }
    return lines;
  }
  static void append(std::vector<std::string>& to, std::vector<std::string> more) {
    to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }

  void spills() {
    std::vector<std::string> evidence;
    double share = 0;
    const target::SpillBytes spilled = facts_.artifact ? target::spills_of(*facts_.artifact) : target::SpillBytes{};
    if (spilled.sum() > 0) {
      const Artifact& a = *facts_.artifact;
      share = share_of(std::max(spilled.stores, spilled.loads), 4.0 * a.registers);
      evidence.push_back(fmt::format(
          "the compiler for {}: {} registers per thread, {} bytes of spill stores and {} of spill loads{}", a.arch,
          a.registers, spilled.stores, spilled.loads,
          a.more_kernels.empty() ? "" : fmt::format(", summed over {} kernels", 1 + a.more_kernels.size())));
    }
    const auto loads = metric(Metric::kLocalLoads), stores = metric(Metric::kLocalStores),
               all = metric(Metric::kInstructions);
    const bool knows_artifact = facts_.artifact.has_value();
    if (loads && stores && all && *all > 0) {
      const double local = (*loads + *stores) / *all;
      if (local > 0) evidence.push_back(fmt::format("{} of all instructions access local memory", percent_text(local)));
      // An SM issues four instructions in the time of one access. Without spills it is an array: stack().
      if (!knows_artifact || share > 0) share = std::max(share, std::min(1.0, 4 * local));
    }
    if (share <= 0) return;
    add(Cause::kSpills, share,
        "Registers do not hold what a thread needs, so values are written to local memory and read back; use smaller "
        "tiles, fewer CTAs per SM, or more warps per tile.",
        std::move(evidence));
  }

  void stack() {
    if (!facts_.artifact) return;
    const Artifact& a = *facts_.artifact;
    if (a.stack_bytes == 0 || a.spill_store_bytes + a.spill_load_bytes > 0) return;
    add(Cause::kStack, share_of(a.stack_bytes, 4.0 * a.registers),
        "An array that should be registers lies in local memory, since it is indexed at run time; unroll the loop, or "
        "make the index a constant.",
        {fmt::format("the compiler for {}: {} bytes of stack and no spills", a.arch, a.stack_bytes)});
  }

  void low_occupancy() {
    std::optional<double> warps = metric(Metric::kWarpsPerSm);
    std::vector<std::string> evidence;
    if (warps) evidence.push_back(fmt::format("{:.1f} warps are active on an SM on average", *warps));
    if (facts_.occupancy && facts_.artifact) {
      const Occupancy& o = *facts_.occupancy;
      const double held = target::warps_per_sm(o, *facts_.artifact);
      const int warps_of_cta = (facts_.artifact->threads_per_block + kWarp - 1) / kWarp;
      evidence.push_back(fmt::format("an SM holds {} CTA{} of {} warp{}, limited by {}", o.ctas_per_sm,
                                     o.ctas_per_sm == 1 ? "" : "s", warps_of_cta, warps_of_cta == 1 ? "" : "s",
                                     o.limited_by));
      if (!warps) warps = held;
      // A small grid leaves SMs with fewer warps than they could hold: that is another cause.
      else if (held >= target::kWarpsPerSm) return;
    }
    if (!warps || *warps >= target::kWarpsPerSm) return;
    add(Cause::kLowOccupancy, 1 - *warps / target::kWarpsPerSm,
        fmt::format(
            "An SM has {:.0f} {} where {:.0f} hide each other's waits: two for each of its four schedulers; use "
            "more warps per CTA, or less of what limits the CTAs per SM.",
            *warps, *warps < 1.5 ? "warp" : "warps", target::kWarpsPerSm),
        std::move(evidence));
  }

  void grid() {
    if (!facts_.occupancy || facts_.limits.multiprocessors <= 0) return;
    const Occupancy& o = *facts_.occupancy;
    const double sms = facts_.limits.multiprocessors;
    if (static_cast<double>(o.ctas) < sms) {
      const double idle = 1 - static_cast<double>(o.ctas) / sms;
      if (idle < target::kLostToLastWave) return;
      add(Cause::kSmallGrid, idle,
          fmt::format("The grid has {} and the GPU {:.0f} SMs, so {} of it is idle; use smaller tiles, or split the "
                      "keys among CTAs.",
                      text::plural(static_cast<std::int64_t>(o.ctas), "CTA"), sms, percent_text(idle)),
          {fmt::format("{:.2f} waves", o.waves)});
      return;
    }
    // CTAs that share an SM share its pipes too: what counts is how many an SM gets in all.
    const double mean = static_cast<double>(o.ctas) / sms, most = std::ceil(mean);
    if (1 - mean / most < target::kLostToLastWave) return;
    add(Cause::kLastWave, 1 - mean / most,
        fmt::format(
            "Some SMs get {:.0f} CTAs and the mean is {:.1f}, so SMs are idle at the end; use other tile sizes, or "
            "a persistent grid.",
            most, mean),
        {fmt::format("{} for {:.0f} SMs", text::plural(static_cast<std::int64_t>(o.ctas), "CTA"), sms)});
  }

  void bank_conflicts() {
    const auto conflicts = metric(Metric::kBankConflicts), passes = metric(Metric::kSharedPasses),
               cycles = metric(Metric::kSmCycles);
    std::vector<std::string> evidence;
    double share = 0, excess = 1;
    if (conflicts && passes && *passes > 0) {
      excess = *passes / std::max(*passes - *conflicts, 1.0);
      share = cycles && *cycles > 0 ? *conflicts / *cycles : share_of(*conflicts, *passes);
      evidence.push_back(fmt::format("{:.0f} of {:.0f} passes over the banks are conflicts", *conflicts, *passes));
    } else if (facts_.counts) {
      const CountedTraffic shared = facts_.counts->shared();
      excess = shared.excess();
      share = share_of(shared.units - shared.least_units, cycles_.sum() - (shared.units - shared.least_units));
      evidence.push_back(fmt::format("{:.0f} passes over the banks where {:.0f} would do, {:.2f} times as many",
                                     shared.units, shared.least_units, excess));
    }
    if (excess <= target::kExcess) return;
    append(evidence, hot_lines(false));
    add(Cause::kBankConflicts, share,
        "Lanes of a warp ask the same bank of shared memory for different words and are served one after the other; "
        "pad "
        "the rows, or permute their 16-byte pieces (swizzle).",
        std::move(evidence));
  }

  void uncoalesced() {
    std::vector<std::string> evidence;
    double share = 0, excess = 1;
    const auto use = sector_use(facts_.counters);
    const auto sectors = metric(Metric::kL2Sectors), busy = metric(Metric::kL2);
    if (use && sectors && *sectors > 0 && busy) {
      excess = use->excess();
      const double wasted = std::min((use->touched - use->needed) / *sectors, 1.0);
      share = wasted * *busy / 100;
      evidence = use->words;
      evidence.push_back(fmt::format("what they do not use is {} of all sectors of L2, which is busy {:.0f}%",
                                     percent_text(wasted), *busy));
    } else if (facts_.counts) {
      const CountedTraffic global = facts_.counts->global();
      excess = global.excess();
      const double wasted = (global.units - global.least_units) * 32 / sm_rates(facts_.limits, facts_.problem).l2_bytes;
      share = share_of(wasted, cycles_.sum() - wasted);
      evidence.push_back(fmt::format("{:.0f} sectors of 32 bytes where {:.0f} would do, {:.2f} times as many",
                                     global.units, global.least_units, excess));
    }
    if (excess <= target::kExcess) return;
    append(evidence, hot_lines(true));
    add(Cause::kUncoalesced, share,
        "Lanes of a warp touch more sectors of global memory than their bytes fill; let neighbouring lanes access "
        "neighbouring 16 bytes of a row.",
        std::move(evidence));
  }

  void no_overlap() {
    if (const auto tensor = metric(Metric::kTensor)) {
      const auto stalls = stalls_of(facts_.counters);
      const auto longest =
          std::find_if(stalls.begin(), stalls.end(), [](const auto& stall) { return stall.first.for_others; });
      if (longest == stalls.end() || longest->first.name != "long_scoreboard") return;
      const double waiting = longest->second / 100;
      // Memory that nobody measured may be what holds the kernel up.
      if (!metric(Metric::kDram) || !metric(Metric::kL2)) return;
      const double memory = std::max(*metric(Metric::kDram), *metric(Metric::kL2));
      if (waiting < target::kWaiting || *tensor >= target::kTensor || memory >= target::kThroughput) return;
      return add(Cause::kNoOverlap, waiting, no_overlap_sentence(),
                 {fmt::format("warps wait for {} {} of their time", longest->first.words, percent_text(waiting)),
                  fmt::format("the tensor cores are busy {:.0f}% and memory {:.0f}%", *tensor, memory)});
    }
    if (!facts_.counts) return;
    const EmulatorCounts& c = *facts_.counts;
    if (!c.knows_overlap() || c.mma_under_copies >= target::kUnderCopies) return;
    std::vector<std::string> evidence = {
        fmt::format("{} of the {:.0f} matrix instructions are issued while a copy is in flight",
                    percent_text(c.mma_under_copies), c.mma_instructions)};
    std::size_t shown = 0;
    for (const CountedWait& wait : c.waits) {
      if (wait.kind == "barrier wait" || shown++ >= kHotLines) continue;
      evidence.push_back(
          fmt::format("{} at {}: {:.0f} threads", wait.kind, place_of(wait.where, wait.caller), wait.threads));
    }
    // Other CTAs of the SM compute meanwhile.
    const double ctas = facts_.occupancy ? std::max(facts_.occupancy->ctas_per_sm, 1) : 1;
    add(Cause::kNoOverlap, (1 - c.mma_under_copies) * share_of(cycles_.l2, cycles_.sum() - cycles_.l2) / ctas,
        no_overlap_sentence(), std::move(evidence));
  }
  static std::string no_overlap_sentence() {
    return "Copies are waited for before anything else is done, so the tensor cores idle while they run; start the "
           "copy of the next block before computing on this one (more stages, a later wait).";
  }

  void divergence() {
    std::vector<std::string> evidence;
    double share = 0, lanes = 1;
    const auto active = metric(Metric::kLanesPerIssue), issued = metric(Metric::kIssueSlots);
    if (active && issued) {
      lanes = *active / kWarp;
      share = (1 - lanes) * *issued / 100;
      evidence.push_back(fmt::format("{:.1f} of 32 lanes take part in an instruction on average", *active));
    } else if (facts_.counts) {
      const CountedTraffic global = facts_.counts->global(), shared = facts_.counts->shared();
      const double possible = global.possible_lanes + shared.possible_lanes;
      if (possible <= 0) return;
      lanes = (global.lanes + shared.lanes) / possible;
      const double requests = global.requests + shared.requests;
      share = share_of((1 - lanes) * requests, cycles_.sum());
      evidence.push_back(fmt::format("{} of the lanes take part in a memory request on average", percent_text(lanes)));
    }
    if (lanes >= target::kLanes) return;
    add(Cause::kDivergence, share,
        "Lanes of a warp take different paths, so that instructions run with a part of the lanes; make conditions the "
        "same for a warp.",
        std::move(evidence));
  }

  void barriers() {
    const auto stalls = stalls_of(facts_.counters);
    const auto at = std::find_if(stalls.begin(), stalls.end(), [](const auto& s) { return s.first.name == "barrier"; });
    std::vector<std::string> evidence;
    double share = 0;
    if (at != stalls.end()) {
      // Other warps' multiplies cover these waits, as they do those for copies.
      if (metric(Metric::kTensor).value_or(0) >= target::kTensor) return;
      // Named barriers, by which roles take turns: who waits for its turn has nothing else to do, and the counter does
      // not tell it from who waits in vain. A timeline does.
      if (facts_.artifact && facts_.artifact->barriers > 1) return;
      share = at->second / 100;
      evidence.push_back(fmt::format("warps wait at CTA barriers {} of their time", percent_text(share)));
    } else if (facts_.counts && facts_.counts->threads_per_cta > 0 && facts_.counts->ctas > 0) {
      const EmulatorCounts& c = *facts_.counts;
      double threads = 0;
      for (const CountedWait& wait : c.waits) threads += wait.kind == "barrier wait" ? wait.threads : 0;
      const double rounds = threads / c.threads_per_cta;
      share = share_of(rounds * sm_rates(facts_.limits, facts_.problem).barrier_cycles, cycles_.sum());
      evidence.push_back(fmt::format("each thread waits at {:.1f} barriers of its CTA", rounds / c.ctas));
      for (const CountedWait& wait : c.waits)
        if (wait.kind == "barrier wait" && evidence.size() <= kHotLines)
          evidence.push_back(fmt::format("{}: {:.0f} threads", place_of(wait.where, wait.caller), wait.threads));
    }
    if (share < target::kBarrierShare) return;
    add(Cause::kBarriers, share,
        "Threads wait for each other at barriers of the CTA; leave out those that order nothing, or let warps that "
        "share data meet alone (named barriers, mbarriers).",
        std::move(evidence));
  }

  // Padding of tiles and blocks that a mask hides. A small problem is padded more than the one that was asked about.
  void extra_work() {
    if (!facts_.counts || facts_.counts->flops <= 0 || facts_.counts->problem != facts_.problem.id()) return;
    const double done = facts_.counts->mma_flops / facts_.counts->flops;
    if (done <= target::kExtraWork) return;
    add(Cause::kExtraWork, share_of(cycles_.tensor * (1 - 1 / done), cycles_.sum() - cycles_.tensor * (1 - 1 / done)),
        fmt::format("{:.1f} times the multiplies that the problem needs are done, since tiles reach past the ends of "
                    "sequences or into what the mask hides; use smaller tiles.",
                    done),
        {fmt::format("{:.3g} FLOPs done, {:.3g} needed", facts_.counts->mma_flops, facts_.counts->flops)});
  }

  void busy_machine() {
    const MachineReading& m = facts_.machine;
    if (!facts_.time_us || m.others_busy < kBusyCores || m.cores <= 0) return;
    add(Cause::kBusyMachine, m.others_busy / m.cores,
        "Other programs used the cores while it was timed; profile again on a quiet machine.", {load_words({m})});
  }

  const ProfileFacts& facts_;
  PipeCycles cycles_;
  std::vector<Bottleneck> found_;
};

}  // namespace

std::vector<Bottleneck> faults_of(const ProfileFacts& facts) { return FaultFinder(facts).find(); }

bool could_show(Cause fault, const ProfileFacts& facts) {
  const auto has = [&](Metric m) { return value_of(facts.counters, m).has_value(); };
  const bool counts = facts.counts.has_value(), artifact = facts.artifact.has_value();
  switch (fault) {
    case Cause::kSpills:
      return artifact || (has(Metric::kLocalLoads) && has(Metric::kLocalStores) && has(Metric::kInstructions));
    case Cause::kStack: return artifact;
    case Cause::kLowOccupancy: return (artifact && facts.occupancy) || has(Metric::kWarpsPerSm);
    case Cause::kSmallGrid:
    case Cause::kLastWave: return facts.occupancy.has_value();
    case Cause::kBankConflicts: return counts || (has(Metric::kBankConflicts) && has(Metric::kSharedPasses));
    case Cause::kUncoalesced:
      return counts || (sector_use(facts.counters) && has(Metric::kL2Sectors) && has(Metric::kL2));
    case Cause::kNoOverlap:
      return has(Metric::kTensor) ? has(Metric::kDram) && has(Metric::kL2) && !stalls_of(facts.counters).empty()
                                  : counts;
    case Cause::kDivergence: return counts || (has(Metric::kLanesPerIssue) && has(Metric::kIssueSlots));
    case Cause::kBarriers: return counts || facts.counters.contains(stall_metric("barrier"));
    case Cause::kExtraWork: return counts && facts.counts->problem == facts.problem.id();
    case Cause::kBusyMachine: return facts.time_us && facts.machine.cores > 0;
    // Limits are no faults. There is no default, so that the compiler names a fault that is new.
    case Cause::kTensorCores:
    case Cause::kSpecialFunctions:
    case Cause::kFmaUnits:
    case Cause::kSharedMemory:
    case Cause::kL2:
    case Cause::kDram:
    case Cause::kLatency: return false;
  }
  throw_internal("no bottleneck has the number {}", static_cast<int>(fault));
}

}  // namespace flashcore
