#pragma once
// Ragged batches on the CPU, for every CPU family: each sequence is a problem of its own, with the lengths that the
// boundaries have when the launch runs. The keys of a paged cache are copied out of their pages for it.

#include "kernels/family.h"

namespace flashcore {

// Launches may overlap. Each allocates what its sequences need. Sequences that are worth one thread run side by side,
// longer ones one after another on all threads.
Launch bind_ragged_on_cpu(const Family& family, const ConfigValues& config, const Problem& problem,
                          const AttentionArgs& args);

}  // namespace flashcore
