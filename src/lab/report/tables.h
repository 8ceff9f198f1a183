#pragma once
#include <string>

#include "lab/report/model.h"

namespace flashcore::report {

// HTML, everything from trials escaped.
std::string results_table(const Model& model);
std::string funnel_table(const Model& model);
std::string rejected_table(const Model& model);
// Empty if no trial says its seconds. `price`: of an hour of the machine; none: no money is named.
std::string cost_table(const Model& model, std::optional<double> price);
std::string resources_table(const Model& model);  // empty if no winner was compiled (CPU)
std::string badge(const ProblemRow& row);

}  // namespace flashcore::report
