#pragma once
// One sample of a long time out of many short ones: the sustained condition, one party at a time.

#include "device/device.h"

namespace flashcore {

// Samples back to back for `warm_up_ms`, which nobody sees, then for `measure_ms`: their mean, and the mean clock. The
// first of those `measure_ms` is always taken, so 0 and 0 are one sample.
Sample sample_for(const std::function<Sample()>& sampler, double warm_up_ms, double measure_ms,
                  const std::function<double()>& now_seconds);

}  // namespace flashcore
