#pragma once
// What NVML says about a GPU. Only read, never set.

#include <string>

#include "device/cuda/cuda_api.h"
#include "device/device.h"

namespace flashcore::cuda {

// "none", or words joined with '+': "sw_power_cap+sw_thermal".
std::string throttle_words(unsigned long long reasons);

class NvmlReader {
 public:
  // `api` may be null; `pci_bus_id` as the driver gives it: ordinals differ under CUDA_VISIBLE_DEVICES.
  NvmlReader(const NvmlApi* api, const std::string& pci_bus_id);
  // What cannot be read stays zero or empty.
  EnvironmentReading read() const;
  std::string driver_version() const;  // "580.159.03"; empty if not known

 private:
  const NvmlApi* api_;
  NvmlDevice device_ = nullptr;
};

}  // namespace flashcore::cuda
