#include "device/cuda/nvml.h"

#include <array>
#include <utility>

namespace flashcore::cuda {
namespace {

// nvmlClocksEventReasons of nvml.h.
constexpr std::array<std::pair<unsigned long long, const char*>, 11> kReasons = {{{0x001, "idle"},
                                                                                  {0x002, "application_clocks"},
                                                                                  {0x004, "sw_power_cap"},
                                                                                  {0x008, "hw_slowdown"},
                                                                                  {0x010, "sync_boost"},
                                                                                  {0x020, "sw_thermal"},
                                                                                  {0x040, "hw_thermal"},
                                                                                  {0x080, "hw_power_brake"},
                                                                                  {0x100, "display_clocks"},
                                                                                  {0x200, "board_limit"},
                                                                                  {0x400, "reliability"}}};

}  // namespace

std::string throttle_words(unsigned long long reasons) {
  std::string words;
  for (const auto& [bit, word] : kReasons) {
    if (reasons & bit) words += (words.empty() ? "" : "+") + std::string(word);
    reasons &= ~bit;
  }
  if (reasons) words += (words.empty() ? "" : "+") + fmt::format("0x{:x}", reasons);
  return words.empty() ? "none" : words;
}

NvmlReader::NvmlReader(const NvmlApi* api, const std::string& pci_bus_id) : api_(api) {
  if (api_ && api_->device_by_pci_bus_id(pci_bus_id.c_str(), &device_) != kNvmlSuccess) device_ = nullptr;
}

EnvironmentReading NvmlReader::read() const {
  EnvironmentReading reading;
  if (!device_) return reading;
  unsigned value = 0;
  if (api_->clock_mhz(device_, kNvmlClockSm, &value) == kNvmlSuccess) reading.clock_sm_mhz = value;
  if (api_->clock_mhz(device_, kNvmlClockMemory, &value) == kNvmlSuccess) reading.clock_memory_mhz = value;
  if (api_->power_mw(device_, &value) == kNvmlSuccess) reading.power_w = value / 1e3;
  if (api_->temperature_c && api_->temperature_c(device_, kNvmlTemperatureGpu, &value) == kNvmlSuccess)
    reading.temperature_c = value;
  unsigned long long reasons = 0;
  if (api_->throttle_reasons && api_->throttle_reasons(device_, &reasons) == kNvmlSuccess)
    reading.throttle_reasons = throttle_words(reasons);
  return reading;
}

std::string NvmlReader::driver_version() const {
  std::array<char, 96> text{};
  if (!api_ || api_->driver_version(text.data(), text.size()) != kNvmlSuccess) return {};
  return text.data();
}

}  // namespace flashcore::cuda
