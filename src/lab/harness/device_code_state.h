#pragma once
// What in a device source outlives its launch or leaves it: the ways of a kernel to be fast the second time only.

#include <optional>
#include <span>
#include <string>

#include "lab/harness/device_code_tokens.h"

namespace flashcore {

struct KeptState {
  int line;
  std::string why;
};

// A variable of a function that lives on, a launch of another kernel, a call of the CUDA run time, or a line of L2 that
// is asked to stay. None for a kernel that only computes.
std::optional<KeptState> find_kept_state(std::span<const Token> tokens);

}  // namespace flashcore
