#pragma once
// Reading what is stored, for the verbs that only look; and what could not be stored.

#include <string>
#include <vector>

#include "lab/record/store.h"

namespace flashcore::cli {

// Error kBadInput if there is no such store: a verb that only reads must not make an empty one.
std::vector<Trial> stored_trials(const std::string& store, const TrialQuery& query);

// False, and the reason on stderr, if not all that was measured could be stored.
bool tell_store_fault(const Store& store);

}  // namespace flashcore::cli
