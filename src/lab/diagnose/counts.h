#pragma once
// What the emulator counted in one launch, read from its JSON, and what an SM would need for it: a model of pipes that
// each do one thing per cycle, to weigh one count against another.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/problem.h"
#include "device/device.h"

namespace flashcore {

// Accesses of one kind, over all lines. `units`: sectors of 32 bytes (global) or passes over the banks (shared).
struct CountedTraffic {
  double bytes = 0, requests = 0, units = 0, least_units = 0, lanes = 0, possible_lanes = 0;
  double excess() const { return least_units > 0 ? units / least_units : 1; }
};

// A source line, innermost place first. `kind`: "global load", "shared store", ...; "TMA load" or "wgmma operands"
// where one instruction moves a tile, always in as few units as there can be.
struct CountedLine {
  std::string where, caller, kind;
  double requests = 0, units_per_request = 0, least_per_request = 0;
  double excess_units() const { return (units_per_request - least_per_request) * requests; }
  bool is_global() const { return kind.starts_with("global"); }
  bool in_sectors() const { return is_global() || kind.starts_with("TMA"); }
};
struct CountedWait {
  std::string where, caller, kind;  // "barrier wait", "mbarrier wait", "copy wait"
  double threads = 0;
};

struct EmulatorCounts {
  std::string problem;         // id of what ran
  double flops = 0, exps = 0;  // that it needs
  int threads_per_cta = 0;
  double ctas = 0, mma_flops = 0, mma_instructions = 0, ex2 = 0, async_copies = 0;
  double mma_under_copies = 0;  // share of the matrix instructions issued while a copy was in flight
  double tma_bytes = 0, tma_stored_bytes = 0;
  double barrier_waits = 0, copy_waits = 0;  // threads
  CountedTraffic global_load, global_store, shared_load, shared_store;
  std::vector<CountedLine> lines;  // the one with the most units beyond the least first
  std::vector<CountedWait> waits;  // the one with the most threads first

  // Loads into registers are in flight too, which the emulator does not see.
  bool knows_overlap() const { return mma_instructions > 0 && async_copies > 0; }
  CountedTraffic global() const;
  CountedTraffic shared() const;
};

// `counters`: Device::counters() of the emulator, of one launch on `problem`. Error kBadInput naming what is missing.
EmulatorCounts read_counts(const nlohmann::json& counters, const Problem& problem, int threads_per_cta);

// exp2 of every unmasked pair of every query head.
double exponentials_of(const Problem& problem);

// What one SM does per cycle.
struct SmRates {
  double tensor_flops = 0;     // dense, of the problem's types, fp32 accumulation (NVIDIA's data sheets)
  double fma_flops = 256;      // of fp32, outside of the tensor cores
  double special = 16;         // special functions (CUDA C++ Programming Guide, arithmetic throughput)
  double shared_passes = 1;    // of 32 banks of 4 bytes
  double l2_bytes = 64;        // from L2
  double barrier_cycles = 30;  // that a barrier costs a CTA, about
};
SmRates sm_rates(const DeviceLimits& limits, const Problem& problem);
// Twice as fast as for 16 bits. Others multiply 8 bits as 16.
inline bool has_fp8_tensor_cores(const DeviceLimits& limits) { return limits.arch >= 89; }

// Cycles that one SM would be busy with all that was counted, pipe by pipe. `fma`: of a kernel without matrix
// instructions, the multiplies that the problem needs, which nobody counts.
struct PipeCycles {
  double tensor = 0, fma = 0, special = 0, shared = 0, l2 = 0;
  double sum() const { return tensor + fma + special + shared + l2; }
};
PipeCycles cycles_of(const EmulatorCounts& counts, const SmRates& rates);

}  // namespace flashcore
