#pragma once
// What a candidate should take, and whose constants say so.

#include <optional>
#include <string>

#include "kernels/family.h"
#include "kernels/fitted_device.h"

namespace flashcore {

// Whose constants a family's model uses on such a device; null if the family has no expected_time.json.
const FittedDevice* fitted_device(std::string_view family, const DeviceLimits& limits);

struct ModelledTime {
  double us = 0;                         // Family::expected_us
  const FittedDevice* fitted = nullptr;  // null: a family that keeps its constants elsewhere

  // To be compared with another family's.
  double cautious_us() const { return fitted ? us * fitted->model_uncertainty : us; }
};
// None where the family has no model, or the model does not know such a candidate.
std::optional<ModelledTime> modelled_time(const Candidate& candidate, const Problem& problem,
                                          const DeviceLimits& limits);

// Whose constants they are, if not the device's own.
std::optional<std::string> carried_over_from(const ModelledTime& modelled, const DeviceInfo& device);
// "its model, fitted on h200", or "its model, carried over from h200".
std::string name_model(const ModelledTime& modelled, const DeviceInfo& device);
// With what it was carried over to: " to 114 SMs, 1755 MHz, 2039 GB/s of DRAM".
std::string describe_model(const ModelledTime& modelled, const DeviceInfo& device);

}  // namespace flashcore
