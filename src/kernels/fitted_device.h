#pragma once
// Whose times the models of Family::expected_us were fitted to, and what that says of another device. The constants are
// data: src/kernels/<family>/expected_time.json, by the device's key, built in (kernels/fitted_constants.h reads them).

#include <map>
#include <string>
#include <string_view>

#include "device/device.h"

namespace flashcore {

// "sm90_fwd/expected_time.json" -> text. Made by cmake/embed.cmake.
const std::map<std::string_view, std::string_view>& embedded_expected_times();

// The device that constants were fitted on, as its entry says.
struct FittedDevice {
  std::string key;  // "h200"
  int arch = 0, multiprocessors = 0;
  double clock_mhz = 0, dram_peak_gbps = 0;  // as DeviceLimits
  double dram_gbps = 0;                      // what attention reaches of the peak
  // What dispatch multiplies an expected time with to compare families: more than 1 where the model errs by more than
  // others', for the least of a few uncertain numbers is too low.
  double model_uncertainty = 1;

  template <class Visit>
  static void fields(Visit&& visit) {
    visit("arch", &FittedDevice::arch);
    visit("multiprocessors", &FittedDevice::multiprocessors);
    visit("clock_mhz", &FittedDevice::clock_mhz);
    visit("dram_peak_gbps", &FittedDevice::dram_peak_gbps);
    visit("dram_gbps", &FittedDevice::dram_gbps);
  }
};

// How far a device is from the fitted one. The nearest one's constants are carried over to it: of the same
// architecture if there is one, then with the least difference of SMs, clock and peak DRAM bandwidth, each in log2.
// What is not known of the device counts nothing.
double distance_to(const FittedDevice& fitted, const DeviceLimits& limits);

// What carries constants over. The device's SMs are counted by the model itself; here is what they and DRAM do in a
// time. All factors are exactly 1 on the fitted device, and for what is not known of another one.
struct CarriedOver {
  double clock_factor = 1;  // of times at the SMs' clock: the fitted device's clock over this one's
  double sms_factor = 1;    // of rates of all SMs together
  double dram_bytes_per_us = 0;
};
CarriedOver carry_over(const FittedDevice& fitted, const DeviceLimits& limits);

}  // namespace flashcore
