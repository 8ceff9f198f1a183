#pragma once
// A problem in rows of results and in messages: its id as "problem", and beside it what an id leaves out, as
// "expressions".

#include <nlohmann/json_fwd.hpp>

#include "core/operands.h"

namespace flashcore {

void put_problem(nlohmann::json& row, const PlacedProblem& problem);
// Error kBadInput as PlacedProblem::parse.
PlacedProblem problem_of(const nlohmann::json& row);

}  // namespace flashcore
