// The roofs of a problem on a machine, and which of them bounds a candidate.

#include <algorithm>

#include "core/error.h"
#include "lab/diagnose/metrics.h"
#include "lab/diagnose/profile.h"
#include "lab/diagnose/targets.h"

namespace flashcore {
namespace {

struct LimitWords {
  const char* subject;
  const char* advice;
};

// No default: the compiler names a cause that is new and has no words here.
LimitWords words_of_limit(Cause cause) {
  switch (cause) {
    case Cause::kTensorCores:
      return {"The tensor cores are", "fewer multiplies (tiles that fit the mask) or narrower types are what is left"};
    case Cause::kSpecialFunctions:
      return {"The exponentials are", "fewer exponentials, or a part of them on the FMA units, are what is left"};
    case Cause::kFmaUnits: return {"The FMA units are", "fewer multiplies and additions on them are what is left"};
    case Cause::kSharedMemory:
      return {"Shared memory is", "warps that own more rows let a fragment of K or V feed more multiplies"};
    case Cause::kL2: return {"L2 is", "larger tiles of rows read K and V less often"};
    case Cause::kDram: return {"DRAM is", "moving fewer bytes (narrower types, shared key heads) is what is left"};
    case Cause::kSpills:
    case Cause::kStack:
    case Cause::kLowOccupancy:
    case Cause::kSmallGrid:
    case Cause::kLastWave:
    case Cause::kBankConflicts:
    case Cause::kUncoalesced:
    case Cause::kNoOverlap:
    case Cause::kDivergence:
    case Cause::kBarriers:
    case Cause::kExtraWork:
    case Cause::kBusyMachine:
    case Cause::kLatency: break;  // no resource
  }
  throw_internal("'{}' is no resource that could be the limit", cause);
}

Bottleneck limit(Cause cause, double share, std::vector<std::string> evidence) {
  const LimitWords words = words_of_limit(cause);
  return {0, cause, std::min(share, 1.0), fmt::format("{} the limit: {}.", words.subject, words.advice),
          std::move(evidence)};
}

// `highest`: of the resources, with its share of the roof.
Bottleneck no_roof_reached(const ProfileFacts& facts, double share, Cause highest, double of_roof,
                           std::vector<std::string> evidence) {
  const bool has_timeline = facts.limits.kind == DeviceKind::kCuda;
  return {
      0, Cause::kLatency, share,
      fmt::format("Nothing reaches {:.0f}% of its roof; the highest is {} with {:.0f}%: what is left is waiting "
                  "for one step after another{}.",
                  100 * target::kRoof, highest, 100 * of_roof, has_timeline ? " (`flashcore timeline` shows it)" : ""),
      std::move(evidence)};
}

std::optional<Bottleneck> limit_by_counters(const ProfileFacts& facts) {
  const std::pair<Metric, Cause> throughputs[] = {{Metric::kTensor, Cause::kTensorCores},
                                                  {Metric::kSpecial, Cause::kSpecialFunctions},
                                                  {Metric::kFma, Cause::kFmaUnits},
                                                  {Metric::kL2, Cause::kL2},
                                                  {Metric::kDram, Cause::kDram}};
  std::optional<Bottleneck> highest;
  std::optional<std::pair<Cause, double>> most;
  std::string all, missing;
  for (const auto& [metric, cause] : throughputs) {
    const auto value = value_of(facts.counters, metric);
    if (!value) {
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", cause);
      continue;
    }
    if (!most || *value > most->second) most = {cause, *value};
    all += fmt::format("{}{} {:.0f}%", all.empty() ? "" : ", ", cause, *value);
    if (*value >= 100 * target::kRoof && (!highest || *value / 100 > highest->share))
      highest = limit(cause, *value / 100, {});
  }
  if (!most) return std::nullopt;
  if (highest) highest->share_of = "its peak";
  else highest = no_roof_reached(facts, 0, most->first, most->second / 100, {});
  highest->evidence.push_back("hardware counters: " + all);
  if (!missing.empty()) highest->evidence.push_back("nobody measured, and any of them may be the limit: " + missing);
  return highest;
}

std::optional<Bottleneck> limit_by_time(const ProfileFacts& facts, const std::vector<Roof>& roofs) {
  if (!facts.time_us || *facts.time_us <= 0 || roofs.empty()) return std::nullopt;
  const Roof& highest = roofs.front();
  const double share = highest.least_us / *facts.time_us;
  const std::string evidence = fmt::format("{:.2f} us ({}); the roof of {} is {:.2f} us, {:.0f}% of it", *facts.time_us,
                                           facts.time_from, highest.cause, highest.least_us, 100 * share);
  if (share >= target::kRoof) return limit(highest.cause, share, {evidence});
  return no_roof_reached(facts, 1 - share, highest.cause, share, {evidence});
}

std::optional<Bottleneck> limit_by_counts(const ProfileFacts& facts) {
  if (!facts.counts) return std::nullopt;
  const PipeCycles cycles = cycles_of(*facts.counts, sm_rates(facts.limits, facts.problem));
  if (cycles.sum() <= 0) return std::nullopt;
  const std::pair<Cause, double> pipes[] = {{Cause::kTensorCores, cycles.tensor},
                                            {Cause::kFmaUnits, cycles.fma},
                                            {Cause::kSpecialFunctions, cycles.special},
                                            {Cause::kSharedMemory, cycles.shared},
                                            {Cause::kL2, cycles.l2}};
  const auto& most = *std::max_element(std::begin(pipes), std::end(pipes),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
  std::string all;
  for (const auto& [cause, of_pipe] : pipes)
    all += fmt::format("{}{} {:.0f}%", all.empty() ? "" : ", ", cause, 100 * of_pipe / cycles.sum());
  Bottleneck found = limit(most.first, most.second / cycles.sum(),
                           {fmt::format("of the cycles that its pipes need by the model of counts: {}", all)});
  const LimitWords words = words_of_limit(most.first);
  found.sentence =
      fmt::format("{} what has the most to do, as counted; whether it bounds the time shows on hardware: {}.",
                  words.subject, words.advice);
  found.share_of = "the counted cycles";
  return found;
}

}  // namespace

std::vector<Roof> roofs_of(const ProfileFacts& facts) {
  std::vector<Roof> roofs;
  const Problem& problem = facts.problem;
  const DeviceLimits& limits = facts.limits;
  const bool gpu = limits.kind == DeviceKind::kCuda;
  const auto add = [&](Cause cause, double units, double per_us, std::string basis) {
    if (units > 0 && per_us > 0) roofs.push_back({cause, units / per_us, std::move(basis)});
  };
  if (gpu && limits.clock_mhz > 0)
    add(Cause::kSpecialFunctions, exponentials_of(problem),
        sm_rates(limits, problem).special * limits.multiprocessors * limits.clock_mhz,
        fmt::format("{} SMs at {:.0f} MHz, 16 a cycle", limits.multiprocessors, limits.clock_mhz));
  if (facts.ceilings) {
    const Ceilings& c = *facts.ceilings;
    const bool tensor =
        c.matmul_tflops_16bit > 0 && (gpu ? problem.dtype != DType::kF32 : problem.dtype == DType::kBF16);
    const bool doubled = problem.is_8bit() && has_fp8_tensor_cores(limits);
    if (tensor)
      add(gpu ? Cause::kTensorCores : Cause::kFmaUnits, problem.flops(),
          c.matmul_tflops_16bit * (doubled ? 2 : 1) * 1e6,
          doubled ? fmt::format("twice that of 16 bits, which is a {}", facts.ceilings_from) : facts.ceilings_from);
    else add(Cause::kFmaUnits, problem.flops(), c.fma_tflops_fp32 * 1e6, facts.ceilings_from);
    if (gpu) add(Cause::kL2, problem.bytes(), c.cache_read_gbps * 1e3, facts.ceilings_from);
    // What the last-level cache holds need not move again.
    add(Cause::kDram, problem.bytes() - static_cast<double>(limits.l2_bytes), c.read_gbps * 1e3, facts.ceilings_from);
  }
  std::stable_sort(roofs.begin(), roofs.end(), [](const Roof& a, const Roof& b) { return a.least_us > b.least_us; });
  return roofs;
}

std::vector<Bottleneck> limits_of_profile(const ProfileFacts& facts, const std::vector<Roof>& roofs) {
  if (auto found = limit_by_counters(facts)) return {*found};
  if (auto found = limit_by_time(facts, roofs)) return {*found};
  if (auto found = limit_by_counts(facts)) return {*found};
  return {};
}

}  // namespace flashcore
