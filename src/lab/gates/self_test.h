#pragma once
// Before two candidates are compared: does the comparison know fast from slow? An earlier gate had its sign inverted
// and called every gain a regression.

#include <functional>
#include <string>

#include "lab/measure/race.h"

namespace flashcore {

using CompareFunction = std::function<Comparison(const Sampler& candidate, const Sampler& incumbent)>;

// Races made-up samples, 8% apart and with 1% of noise, both ways round. Returns what is wrong, or nothing.
std::string comparison_self_test(const CompareFunction& compare);
// The same on race() itself, once per process.
const std::string& race_self_test();

}  // namespace flashcore
