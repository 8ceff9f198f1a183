#pragma once
// A launch of a CPU family on as many threads as its work is worth.

#include "kernels/family.h"

namespace flashcore {

// Threads that a launch of `problem` is worth: another one takes microseconds to wake and has to be waited for, so each
// gets no less work than pays for that. From 1 to `most`.
int worthwhile_threads(const Problem& problem, int most);

// As Family::cpu_launch, within worthwhile_threads() unless the config names a number of its own. Not of ragged
// batches.
Launch bind_dense_on_cpu(const Family& family, const ConfigValues& config, const Problem& problem,
                         const AttentionArgs& args);

}  // namespace flashcore
