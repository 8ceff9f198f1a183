#pragma once
// The mark of kernels that are known to compute something else: a patch of that prefix, as in
// "sm80_fwd+wrong_no_stores". It is part of the family's name, so no record of such a kernel can lose it. They are
// timed (lab/invert), and that is all: no gate passes them, no store, table or baseline takes them.

#include <string_view>

namespace flashcore {

inline constexpr std::string_view kWrongPrefix = "wrong_";

// Of a family's name or a candidate's text, whatever else it is patched with.
constexpr bool is_wrong_on_purpose(std::string_view candidate) {
  const std::string_view family = candidate.substr(0, candidate.find(':'));
  for (std::size_t plus = family.find('+'); plus != std::string_view::npos; plus = family.find('+', plus + 1))
    if (family.substr(plus + 1).starts_with(kWrongPrefix)) return true;
  return false;
}

inline constexpr std::string_view kWrongIsNoCandidate =
    "is wrong on purpose: `flashcore invert` times it to see what the rest costs, and it is no candidate";

}  // namespace flashcore
