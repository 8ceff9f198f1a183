#pragma once
// Many tests at once: the best of many equal candidates looks good by luck.

#include <span>
#include <vector>

namespace flashcore {

// Holm's step-down adjustment (1979): adjusted p-values in the order given.
std::vector<double> holm(std::span<const double> p_values);

}  // namespace flashcore
