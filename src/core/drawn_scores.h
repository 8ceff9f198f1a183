#pragma once
// What drawn inputs hold that goes into scores beside q and k.

#include <cstdint>

#include "core/data.h"

namespace flashcore {

// Fills in.sink and in.alibi.
void draw_scores(const Problem& problem, Pattern pattern, std::uint64_t seed, AttentionInputs& in);

// Puts -inf in whole blocks of keys of each float tensor that the score function adds to all else and that nothing else
// reads, as a mask that is added has it.
void hide_blocks(const Problem& problem, std::vector<ElementTensor>& tensors);

}  // namespace flashcore
