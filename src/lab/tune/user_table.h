#pragma once
// The user's own tuned table (kernels/family.h says where it is), as tune fills it.

#include <vector>

#include "lab/record/trial.h"

namespace flashcore {

// Before work whose result goes there: Error kBadInput if there is a file that is no table.
void check_user_table();
// Adds the winners, in place of its entries for the same problems and devices; runs that end at once wait for
// each other at `<table>.lock`. Returns how many went in. Error kEnvironment if the file cannot be written; a file that
// is no table is Error kBadInput and stays as it is.
std::size_t enter_user_table(const std::vector<Trial>& winners);

}  // namespace flashcore
