#pragma once
// How many CTAs an SM holds and how the grid falls into waves: computed from what the compiler said, before anything
// runs.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "device/artifact.h"
#include "device/device.h"

namespace flashcore {

// Registers are given out to a warp in units of 256 on every architecture since sm_50 (CUDA occupancy calculator).
inline constexpr int kRegisterUnit = 256;
inline constexpr int kWarp = 32;

struct Occupancy {
  int ctas_per_sm = 0;
  std::string limited_by;  // "registers" | "shared memory" | "threads" | "32 CTAs"
  double warp_share = 0;   // of the SM's warps, 0 to 1
  std::int64_t ctas = 0;   // of the grid
  double waves = 0;        // ctas / (SMs × ctas_per_sm)
  double last_wave = 0;    // how full the last one is, 0 to 1
};
void to_json(nlohmann::json& json, const Occupancy& occupancy);

// `ctas`: the grid's size. Registers are given out per warp in units of 256, and 1 KB of each CTA's shared memory is
// the system's (CUDA occupancy calculator).
Occupancy occupancy_of(const Artifact& artifact, const DeviceLimits& limits, std::int64_t ctas);

}  // namespace flashcore
