#pragma once
// How long sm90_short_fwd should take, to choose among its configs: see kernels/expected_time.h.

#include <optional>

#include "core/problem.h"
#include "device/device.h"
#include "kernels/sm90_short_fwd/config.h"

namespace flashcore::sm90_short_fwd {

// In us; none for several row groups, which were not measured.
std::optional<double> expected_us(const Config& config, const Problem& problem, const DeviceLimits& limits,
                                  double share_of_bound = 1);

}  // namespace flashcore::sm90_short_fwd
