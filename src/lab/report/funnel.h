#pragma once
#include <vector>

#include "lab/report/model.h"

namespace flashcore::report {

// Both over the trials given, whatever their problem. Only what a tune run tried counts (phases default and search);
// a candidate met twice counts once, as far as it ever got.
Funnel make_funnel(const std::vector<const Trial*>& trials);
// Ended without a time that counts (slower and inconclusive candidates have one).
bool stopped_by_gate(const Trial& trial);
// Those, and why. Every phase.
std::vector<RejectedGroup> group_rejected(const std::vector<Trial>& trials);

}  // namespace flashcore::report
