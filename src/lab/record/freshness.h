#pragma once
// Freshness: would a result that was measured come out of the source as it is now? Decided for each trial and each row
// of a results file by itself, so a change of one kernel leaves the results of the others as they are.
//
// A GPU kernel is judged by what runs: its launches, and the machine code that its text compiles to. The code is asked
// for only where the text has changed, because a compiler has to answer. A CPU family is judged by its text.

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/operands.h"
#include "device/device.h"
#include "lab/record/trial.h"

namespace flashcore {

// kernels/source_hash.h, of a candidate's text. One that names no candidate (its trial ended "invalid", its family is
// gone) has the hash of all sources, and no launches.
std::string source_hash_of(std::string_view candidate, const PlacedProblem& problem, const DeviceLimits& limits);
std::string launch_hash_of(std::string_view candidate, const PlacedProblem& problem, const DeviceLimits& limits);
// Both of a candidate that was tried, and may be one that its family refuses today: what it was compiled from is what
// it would be.
std::pair<std::string, std::string> hashes_of_tried(std::string_view candidate, const PlacedProblem& problem,
                                                    const DeviceLimits& limits);

struct Freshness {
  enum class State {
    kSameText,  // fresh
    kSameCode,  // fresh: the text has changed, and compiles to the same machine code; launches and choice are the same
    kStale,
    kUnknown,  // the text has changed, and no compiler here can say whether the code has
  };
  State state = State::kSameText;
  std::string why;  // one sentence; empty for kSameText
  bool is_fresh() const { return state == State::kSameText || state == State::kSameCode; }
};

// By what the trials of a store are judged.
using IsCurrent = std::function<bool(const Trial&)>;
// Against the source that this program carries. What a document shows, a held-out or bench trial, is compiled where its
// text has changed. The thousands of a search are judged by their text alone: trying one again costs little more.
bool is_current(const Trial& trial);
Freshness freshness_of(const Trial& trial);

// The candidate that a row of schema flashcore.bench/1 is of, "family:name=value,...". Its config is text, or an object
// of whole numbers. Error kBadInput for a row that has none.
std::string candidate_of_row(const nlohmann::json& row);

// Of a row of schema flashcore.bench/1. Where dispatch chose the candidate (`chosen_by`), it must choose the same
// again. Error kBadInput for a row that is none. Threads may ask side by side.
Freshness freshness_of_row(const nlohmann::json& row);

// Writes into a fresh row of a GPU what tells it from others later: the hashes of the present text and of its launches,
// and, where the compiler here makes the code that was measured, that compiler. Returns whether the row was changed.
bool record_provenance(nlohmann::ordered_json& row);

}  // namespace flashcore
