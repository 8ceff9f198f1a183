#pragma once
// How to measure: what every command, request and option that times something has in common.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "device/device.h"

namespace flashcore {

struct MeasurementSpec {
  Regime regime = Regime::kGraph;
  Condition condition = Condition::kBurst;
  std::uint64_t seed = 1;  // of the data; what else is drawn by chance follows from it
  double margin = 0.03;    // a smaller difference of speed is none
  double max_seconds = 0;  // of timing; 0: whoever measures has a default

  // Of what is made from it: options.spec() = other.spec().
  MeasurementSpec& spec() { return *this; }
  const MeasurementSpec& spec() const { return *this; }
};
void to_json(nlohmann::json& json, const MeasurementSpec& spec);
void from_json(const nlohmann::json& json, MeasurementSpec& spec);

// Other inputs and another order in each of several processes.
constexpr std::uint64_t seed_of_process(std::uint64_t seed, int process) {
  return seed + static_cast<std::uint64_t>(process) * 0x9e3779b9;
}

}  // namespace flashcore
