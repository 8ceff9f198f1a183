#pragma once
// ab --calibrate and --self-test: a candidate against itself.

#include <string>

#include "cli/common.h"
#include "lab/measure/spec.h"

namespace flashcore::cli {

struct SelfTest {
  MeasurementSpec spec;
  Common common;
  std::string candidate;  // text; empty: what dispatch picks
  int repeats = 100;
};

// A against A; the rate of false alarms is kept beside the store. 0 if at most twice alpha, else 1; 2 if it broke off,
// had too few races, or fewer than an earlier one that is refused: then nothing is kept.
int run_calibration(const SelfTest& test);
// The same without keeping it, and half as many races each with 3% and with 0.5% of extra work planted. 1 if the 3% is
// called SLOWER less than 95% of the time, or the 0.5% ever; 2 if it broke off or had too few races.
int run_self_test(const SelfTest& test);

}  // namespace flashcore::cli
