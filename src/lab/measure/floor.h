#pragma once
// The fastest honest time of a problem on a device.

#include "core/problem.h"
#include "device/device.h"

namespace flashcore {

// A time below this share of the floor is an error of measurement, and is rejected (docs/measurement.md).
inline constexpr double kFloorTolerance = 0.97;

// max(FLOPs / measured ceiling, bytes that cannot stay in the last-level cache / measured bandwidth, on a GPU also all
// bytes / the measured bandwidth of L2) + empty launch. A CPU's caches count as infinitely fast.
double floor_us(const Problem& problem, const DeviceInfo& device, const Ceilings& ceilings);

}  // namespace flashcore
