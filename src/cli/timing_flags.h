#pragma once
// The flags that say how candidates are timed.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "lab/measure/spec.h"

namespace flashcore::cli {

struct TimingFlags {
  std::string margin = "3%";  // as given
  std::string regime{to_string(Regime::kGraph)};
  std::string condition{to_string(Condition::kBurst)};
  int processes = 3;
  double seconds = 9;  // 0: by default of the verb
  std::uint64_t seed = 1;
};

// Those that `ab` and `gate` share. `margin` says what its flag means; `when`, where not empty, for which runs regime
// and condition hold.
void add_timing_flags(CLI::App& app, TimingFlags& flags, const std::string& margin, const std::string& when = "");

// What they come to; the only place where the words of the command line become one. Error kBadInput for a word that is
// none.
MeasurementSpec spec_of(const TimingFlags& flags);

// "3%" or "0.03"; Error kBadInput unless between 0.1% and 100%.
double parse_margin(const std::string& text);

}  // namespace flashcore::cli
