#pragma once
// The targets of a profile. A fault is named where its target is missed; docs/profile.md explains each.

#include "device/artifact.h"
#include "lab/gates/occupancy.h"

namespace flashcore::target {

inline constexpr double kSmBusy = 70;           // %, at least (a success criterion of a campaign)
inline constexpr double kTensor = 60;           // %, at least: below, something else holds the kernel up
inline constexpr double kThroughput = 80;       // %, at most: above, that resource is the limit
inline constexpr double kRoof = 0.6;            // of the time, from which on a roof is named as the limit
inline constexpr double kWarpsPerSm = 8;        // at least: two for each of an SM's four schedulers
inline constexpr double kExcess = 1.1;          // at most: sectors, or passes over the banks, over the fewest
inline constexpr double kUnderCopies = 0.5;     // at least: matrix instructions issued while a copy is in flight
inline constexpr double kLanes = 0.75;          // at least: of a warp
inline constexpr double kBarrierShare = 0.15;   // of the time, at most
inline constexpr double kExtraWork = 1.5;       // at most: FLOPs done over those needed
inline constexpr double kLostToLastWave = 0.1;  // at most
inline constexpr double kWaiting =
    0.15;  // of warps' time for memory: 5 to 7% where copies are hidden, 17 to 23% where not (H200)
inline constexpr double kL2Hits = 50;        // %, at least: tiles of one head share its keys
inline constexpr double kLeastShare = 0.02;  // what costs less is not named

// Over all kernels of a module.
struct SpillBytes {
  int stores = 0, loads = 0;
  int sum() const { return stores + loads; }
};
inline SpillBytes spills_of(const Artifact& artifact) {
  SpillBytes all = {artifact.spill_store_bytes, artifact.spill_load_bytes};
  for (const KernelFacts& more : artifact.more_kernels) {
    all.stores += more.spill_store_bytes;
    all.loads += more.spill_load_bytes;
  }
  return all;
}

inline double warps_per_sm(const Occupancy& occupancy, const KernelFacts& kernel) {
  return static_cast<double>(occupancy.ctas_per_sm) * ((kernel.threads_per_block + kWarp - 1) / kWarp);
}

}  // namespace flashcore::target
