#pragma once
// What this machine calls a difference when there is none: one candidate against itself, in one process and at once.
// How often a verdict is a false alarm is another question, which takes many processes: aa.h.

#include <string>

#include "core/operands.h"
#include "device/device.h"
#include "kernels/family.h"
#include "lab/statistics/statistics.h"

namespace flashcore {

struct Noise {
  Interval ratio;  // of the candidate against itself; an honest machine holds 1 inside
  int blocks = 0;
  std::string problem, candidate;
  std::string wrong;  // what is wrong with the timed outputs; empty: nothing
};

// Takes a second or two. Errors as compile_candidate and measure.
Noise measure_noise(Device& device, const PlacedProblem& problem, const Candidate& candidate);

}  // namespace flashcore
