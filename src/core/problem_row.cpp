#include "core/problem_row.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/problem_expressions.h"

namespace flashcore {

void put_problem(nlohmann::json& row, const PlacedProblem& problem) {
  row["problem"] = problem.id();
  if (problem.has_expression()) row["expressions"] = expressions_json(problem);
}

PlacedProblem problem_of(const nlohmann::json& row) {
  if (const auto found = row.find("expressions"); found != row.end()) remember_expressions(*found);
  const auto id = row.find("problem");
  if (id == row.end() || !id->is_string()) throw_bad_input("a row names no problem; each has the id of one");
  return PlacedProblem::parse(id->get<std::string>());
}

}  // namespace flashcore
