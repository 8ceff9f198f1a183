#include "kernels/fitted_device.h"

#include <cmath>

namespace flashcore {
namespace {

constexpr double kOtherArchitecture = 1000;  // farther than any two of the same one
// Clocks as drivers tell them differ a little between two of a kind: less than a model errs by.
constexpr double kSame = 1.02;

// 1 where either is not known.
double ratio(double own, double fitted) {
  if (own <= 0 || fitted <= 0) return 1;
  const double value = own / fitted;
  return value < kSame && value > 1 / kSame ? 1 : value;
}

}  // namespace

double distance_to(const FittedDevice& fitted, const DeviceLimits& limits) {
  return (fitted.arch == limits.arch ? 0 : kOtherArchitecture) +
         std::abs(std::log2(ratio(limits.multiprocessors, fitted.multiprocessors))) +
         std::abs(std::log2(ratio(limits.clock_mhz, fitted.clock_mhz))) +
         std::abs(std::log2(ratio(limits.dram_peak_gbps, fitted.dram_peak_gbps)));
}

CarriedOver carry_over(const FittedDevice& fitted, const DeviceLimits& limits) {
  CarriedOver over;
  over.clock_factor = 1 / ratio(limits.clock_mhz, fitted.clock_mhz);
  over.sms_factor = static_cast<double>(limits.multiprocessors) / fitted.multiprocessors;
  over.dram_bytes_per_us = fitted.dram_gbps * 1000 * ratio(limits.dram_peak_gbps, fitted.dram_peak_gbps);
  return over;
}

}  // namespace flashcore
