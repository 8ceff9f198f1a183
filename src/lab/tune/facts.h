#pragma once
// What a tune run concludes from its trials: pure functions.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/config_space.h"
#include "lab/record/trial.h"
#include "lab/tune/result.h"

namespace flashcore {

// Fills proposed, valid, compiled, correct, raced and led from the default and search trials of one problem, as far as
// each came (lab/record/funnel_stage.h). The report's funnel counts a candidate that was met twice once. Who wins is
// another question, which the held-out trials answer: a winner need never have led for sure, and one that led may lose
// there.
void count_funnel(const std::vector<Trial>& trials, TuneResult::Entry& entry);

// The `count` fastest candidates, each once, by discovery p50; never the baseline, which is measured beside them
// anyway.
std::vector<Trial> choose_finalists(const std::vector<Trial>& trials, const std::string& baseline, int count);

// Processes that each finalist is raced in. What differs between processes hides from one, and hardly shows in three:
// five finalists that are all as fast as the baseline have a false winner in 21-73% of runs after one, and in up to 28%
// after three (tests/lab/tune_facts_test.cpp has the simulation).
inline constexpr int kFewestProcesses = 3;
// That a winner was raced in. Only who is ahead after the first ones is raced in the others: to drop the rest makes no
// false winner likelier, because nobody wins before the last process.
inline constexpr int kWinnerProcesses = 8;

// After kFewestProcesses: worth the others.
bool may_win(const Comparison& comparison);

// The held-out trial that wins (tune.h says how); none if no held-out trial is ranked. A challenger wins only if it is
// FASTER: one that is ahead within the margin is the SAME, and the baseline stays.
std::optional<Trial> choose_winner(const std::vector<Trial>& heldout, const std::string& baseline);

// The fastest challenger that is ahead of the baseline at all; what to name where the baseline stays.
std::optional<Trial> closest_to_win(const std::vector<Trial>& heldout, const std::string& baseline);

// Share of the discovery speed-up that did not survive held-out data: 0.02 if 1.50 became 1.47. 0 for the baseline
// itself.
double shrinkage_of(const std::vector<Trial>& discovery, const Trial& winner, const std::string& baseline);

// Fields whose value never changed what runs, among configs that differ in that field alone. A field no such pair was
// tried of is not accused.
std::vector<std::string> inert_fields(const ConfigSpace& space,
                                      const std::vector<std::pair<ConfigValues, std::string>>& identities);

}  // namespace flashcore
