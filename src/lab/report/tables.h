#pragma once
#include <string>

#include "lab/report/model.h"

namespace flashcore::report {

// HTML, everything from trials escaped.
std::string results_table(const Model& model);
std::string funnel_table(const Model& model);
std::string rejected_table(const Model& model);
std::string cost_table(const Model& model);       // empty if no trial says its seconds
std::string resources_table(const Model& model);  // empty if no winner was compiled (CPU)
std::string badge(const ProblemRow& row);

}  // namespace flashcore::report
