#pragma once
// How long sm90_fwd should take, to choose among its configs: see kernels/expected_time.h.

#include <optional>

#include "core/problem.h"
#include "device/device.h"
#include "kernels/sm90_fwd/config.h"

namespace flashcore::sm90_fwd {

// In us; none where the tile was not measured at such head dims.
std::optional<double> expected_us(const Config& config, const Problem& problem, const DeviceLimits& limits);

}  // namespace flashcore::sm90_fwd
