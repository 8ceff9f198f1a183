#pragma once
// The fastest honest time of a problem on a device.

#include "core/problem.h"
#include "device/device.h"

namespace flashcore {

// max(FLOPs / measured ceiling, bytes that cannot stay in cache / measured bandwidth) + empty launch.
double floor_us(const Problem& problem, const DeviceInfo& device, const Ceilings& ceilings);

}  // namespace flashcore
