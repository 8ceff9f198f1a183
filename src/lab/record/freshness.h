#pragma once
// Freshness: would a result that was measured come out of the source as it is now? Decided for each trial and each row
// of a results file by itself, so a change of one kernel leaves the results of the others as they are.

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
// gone) has the hash of all sources.
std::string source_hash_of(std::string_view candidate, const PlacedProblem& problem, const DeviceLimits& limits);

// By what the trials of a store are judged.
using IsCurrent = std::function<bool(const Trial&)>;
// Against the source that this program carries.
bool is_current(const Trial& trial);

// The candidate that a row of schema flashcore.bench/1 is of, "family:name=value,...". Its config is text, or an object
// of whole numbers. Error kBadInput for a row that has none.
std::string candidate_of_row(const nlohmann::json& row);

// Of a row of schema flashcore.bench/1: why it would come out otherwise, in one sentence; none if it would not. Where
// dispatch chose the candidate (`chosen_by`), it must choose the same again. Error kBadInput for a row that is none.
std::optional<std::string> why_stale(const nlohmann::json& row);

}  // namespace flashcore
