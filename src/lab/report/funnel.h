#pragma once
// How far candidates got, and what stopped the others.

#include <string>
#include <vector>

#include "lab/record/trial.h"

namespace flashcore::report {

// How many distinct candidates of a problem got how far (lab/record/funnel_stage.h). Each is at most the one before it.
struct Funnel {
  int proposed = 0, valid = 0, compiled = 0, correct = 0, raced = 0, led = 0;
};
inline constexpr const char* kFunnelStages[] = {"proposed", "valid", "compiled", "correct", "raced", "led"};
std::vector<int> counts(const Funnel& funnel);

// Candidates that ended at the same gate for the same reason (numbers in it aside).
struct RejectedGroup {
  std::string gate, reason;  // gate: or how it ended; reason: as one of them gave it
  int count = 0;
  std::vector<std::string> problems;
  std::string example;  // candidate
};

// Both over the trials given, whatever their problem. Only what a tune run tried counts (phases default and search);
// a candidate met twice counts once, as far as it ever got.
Funnel make_funnel(const std::vector<const Trial*>& trials);
// Ended without a time that counts (slower and inconclusive candidates have one).
bool stopped_by_gate(const Trial& trial);
// Those, and why. Every phase.
std::vector<RejectedGroup> group_rejected(const std::vector<Trial>& trials);

}  // namespace flashcore::report
