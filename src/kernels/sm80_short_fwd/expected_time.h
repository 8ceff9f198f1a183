#pragma once
// How long sm80_short_fwd should take, to choose among its configs and families: see kernels/expected_time.h.

#include <optional>

#include "core/problem.h"
#include "device/device.h"
#include "kernels/sm80_short_fwd/config.h"

namespace flashcore::sm80_short_fwd {

// In us; none where so many keys fall to a warp that it was not measured.
std::optional<double> expected_us(const Config& config, const Problem& problem, const DeviceLimits& limits);

}  // namespace flashcore::sm80_short_fwd
