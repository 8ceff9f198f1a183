#pragma once
// Kernels for V that lies transposed (VLayout::kDn): of a name of their own, so that the others keep theirs, and Traits
// need no member for what two families take.

#include "core/error.h"
#include "kernels/family.h"

namespace flashcore {

// Of a family's kernel `forward_fp8…` the one for the problem: `forward_fp8_vdn…` where V lies transposed.
inline KernelSource with_entry_for_v(KernelSource source, const Problem& problem) {
  if (!problem.has_transposed_v()) return source;
  constexpr std::string_view kEntry = "::forward_fp8";
  const std::size_t at = source.name_expression.find(kEntry);
  FC_CHECK(at != std::string::npos);
  source.name_expression.insert(at + kEntry.size(), "_vdn");
  return source;
}

}  // namespace flashcore
