#pragma once
// Suite: a named list of problems, in YAML.

#include <string>
#include <string_view>
#include <vector>

#include "core/operands.h"

namespace flashcore {

struct NamedProblem {
  std::string name;  // the suite's own word for it, e.g. "mission"; unique within the suite
  PlacedProblem problem;
};

struct Suite {
  std::string name;
  std::vector<NamedProblem> problems;
};

// `name_or_path`: a suite that ships (core/embedded.h), or a file (anything with a '/' or ending in .yaml).
// Keys of a problem: name, layout, and those of core/problem_fields.h (docs/problem.md).
// Error kBadInput with file and line: unknown or repeated key, duplicate name, wrong type, a size out of range.
Suite load_suite(std::string_view name_or_path);
Suite parse_suite(std::string_view yaml, std::string_view origin);
std::vector<std::string> shipped_suites();

// Finds a problem by the suite's name for it, by its id, or parses an id that is in no suite.
NamedProblem find_problem(const Suite& suite, std::string_view name_or_id);

}  // namespace flashcore
