#pragma once
// The flags that say how candidates are raced: what `ab` and `gate` share.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "device/device.h"

namespace flashcore::cli {

struct TimingFlags {
  std::string margin;  // as given: "3%"
  std::string regime{to_string(Regime::kGraph)};
  std::string condition{to_string(Condition::kBurst)};
  int processes = 3;
  double seconds = 9;
  std::uint64_t seed = 1;
};

// `margin` says what its flag means; `when`, where not empty, for which runs regime and condition hold.
void add_timing_flags(CLI::App& app, TimingFlags& flags, const std::string& margin, const std::string& when = "");

}  // namespace flashcore::cli
