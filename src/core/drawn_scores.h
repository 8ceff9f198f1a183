#pragma once
// Sinks and ALiBi slopes of drawn inputs.

#include <cstdint>

#include "core/data.h"

namespace flashcore {

// Fills in.sink and in.alibi.
void draw_scores(const Problem& problem, Pattern pattern, std::uint64_t seed, AttentionInputs& in);

}  // namespace flashcore
