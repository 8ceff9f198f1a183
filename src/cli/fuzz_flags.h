#pragma once
// What the verbs that draw random problems have in common: `check --fuzz`, and `compile --fuzz` of what that would run.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "lab/verify/fuzz.h"

namespace flashcore::cli {

struct FuzzFlags {
  std::int64_t cases = 0;
  std::vector<std::string> kinds;

  // Error kBadInput for one that is not known, and for kinds without cases.
  std::vector<FuzzKind> known_kinds() const;
};

// --fuzz and --kinds. `help` is --fuzz's.
void add_fuzz_flags(CLI::App& app, FuzzFlags& flags, const char* help);

}  // namespace flashcore::cli
