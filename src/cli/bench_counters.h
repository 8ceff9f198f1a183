#pragma once
#include <vector>

#include "cli/common.h"
#include "lab/record/trial.h"

namespace flashcore::cli {

// One row for each trial, then the source lines whose accesses took more sectors or bank passes than they need.
void print_counters(Console& console, const std::vector<Trial>& trials);

}  // namespace flashcore::cli
