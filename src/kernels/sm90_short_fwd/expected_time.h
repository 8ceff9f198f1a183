#pragma once
// How long sm90_short_fwd should take, to choose among its configs: see kernels/expected_time.h.

#include <optional>

#include "core/problem.h"
#include "device/device.h"
#include "kernels/sm90_short_fwd/config.h"

namespace flashcore::sm90_short_fwd {

// In us; none for several row groups, which were not measured. `share_of_bound`: the mean length of a ragged batch's
// sequences, of which one is as long as the bound.
std::optional<double> expected_us(const Config& config, const Problem& problem, const DeviceLimits& limits,
                                  double share_of_bound = 1);

// What a kernel should take that deals out the keys of a paged batch to all SMs (sm80_decode_fwd), all lengths being
// the bound.
double dealt_out_us(const Problem& problem, const DeviceLimits& limits);

// Of a paged batch in which one sequence has nearly all keys: how many times as long the config takes as such a kernel.
double loss_of_one_long_sequence(const Config& config, const Problem& problem, const DeviceLimits& limits);
// How much longer it takes then, in us.
double one_long_sequence_longer_us(const Config& config, const Problem& problem, const DeviceLimits& limits);

}  // namespace flashcore::sm90_short_fwd
