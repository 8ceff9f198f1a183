#include "kernels/modelled_time.h"

#include <fmt/ranges.h>

#include "kernels/fitted_constants.h"

namespace flashcore {

const FittedDevice* fitted_device(std::string_view family, const DeviceLimits& limits) {
  using Fits = FittedConstants<UnreadConstants>;
  static const std::map<std::string, Fits, std::less<>> all = [] {
    std::map<std::string, Fits, std::less<>> read;
    for (const auto& [path, text] : embedded_expected_times())
      read.emplace(path.substr(0, path.find('/')), Fits(text, "src/kernels/" + std::string(path)));
    return read;
  }();
  const auto found = all.find(family);
  return found == all.end() ? nullptr : &found->second.nearest(limits).device;
}

std::optional<ModelledTime> modelled_time(const Candidate& candidate, const Problem& problem,
                                          const DeviceLimits& limits) {
  const auto us = candidate.family->expected_us(candidate.config, problem, limits);
  if (!us) return std::nullopt;
  return ModelledTime{*us, fitted_device(candidate.family->name(), limits)};
}

std::optional<std::string> carried_over_from(const ModelledTime& modelled, const DeviceInfo& device) {
  if (!modelled.fitted || modelled.fitted->key == device.key) return std::nullopt;
  return modelled.fitted->key;
}

std::string name_model(const ModelledTime& modelled, const DeviceInfo& device) {
  const auto from = carried_over_from(modelled, device);
  return from ? "its model, carried over from " + *from : "its model, fitted on " + device.key;
}

std::string describe_model(const ModelledTime& modelled, const DeviceInfo& device) {
  if (!carried_over_from(modelled, device)) return name_model(modelled, device);
  const DeviceLimits& limits = device.limits;
  std::vector<std::string> own = {fmt::format("{} SMs", limits.multiprocessors)}, unknown;
  if (limits.clock_mhz > 0) own.push_back(fmt::format("{:.0f} MHz", limits.clock_mhz));
  else unknown.emplace_back("clock");
  if (limits.dram_peak_gbps > 0) own.push_back(fmt::format("{:.0f} GB/s of DRAM", limits.dram_peak_gbps));
  else unknown.emplace_back("DRAM bandwidth");
  std::string text = fmt::format("{} to {}", name_model(modelled, device), fmt::join(own, ", "));
  if (!unknown.empty())
    text += fmt::format("; {} are not known, and taken to be the same", fmt::join(unknown, " and "));
  return text;
}

}  // namespace flashcore
