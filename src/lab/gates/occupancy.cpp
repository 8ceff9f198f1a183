#include "lab/gates/occupancy.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace flashcore {
namespace {

constexpr int kSystemSharedBytes = 1024, kMaxCtas = 32;

}  // namespace

void to_json(nlohmann::json& j, const Occupancy& o) {
  j = {{"ctas_per_sm", o.ctas_per_sm},
       {"limited_by", o.limited_by},
       {"warp_share", o.warp_share},
       {"ctas", o.ctas},
       {"waves", o.waves},
       {"last_wave", o.last_wave}};
}

Occupancy occupancy_of(const Artifact& artifact, const DeviceLimits& limits, std::int64_t ctas) {
  const int warps = std::max(1, (artifact.threads_per_block + kWarp - 1) / kWarp);
  const int registers = warps * ((artifact.registers * kWarp + kRegisterUnit - 1) / kRegisterUnit * kRegisterUnit);
  const int shared = artifact.static_shared_bytes + artifact.dynamic_shared_bytes + kSystemSharedBytes;
  const std::pair<int, const char*> bounds[] = {
      {limits.registers_per_multiprocessor / std::max(registers, 1), "registers"},
      {limits.shared_bytes_per_multiprocessor / shared, "shared memory"},
      {limits.max_threads_per_multiprocessor / (warps * kWarp), "threads"},
      {kMaxCtas, "32 CTAs"}};
  const auto& tightest = *std::min_element(std::begin(bounds), std::end(bounds),
                                           [](const auto& a, const auto& b) { return a.first < b.first; });
  Occupancy o;
  o.ctas_per_sm = tightest.first;
  o.limited_by = tightest.second;
  o.ctas = ctas;
  const double max_warps = std::max(1.0, limits.max_threads_per_multiprocessor / static_cast<double>(kWarp));
  o.warp_share = o.ctas_per_sm * warps / max_warps;
  const double wave = static_cast<double>(limits.multiprocessors) * o.ctas_per_sm;
  if (wave > 0) {
    o.waves = static_cast<double>(ctas) / wave;
    const double partial = o.waves - std::floor(o.waves);
    o.last_wave = partial > 0 ? partial : 1;
  }
  return o;
}

}  // namespace flashcore
