#pragma once
// Reading what is stored, for the verbs that only look; and what could not be stored.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/record/store.h"

namespace flashcore::cli {

// Error kBadInput if there is no such store: a verb that only reads must not make an empty one.
std::vector<Trial> stored_trials(const std::string& store, const TrialQuery& query);

// Of DeviceInfo::key: not of a CPU, and not of an emulated GPU.
bool is_gpu_key(std::string_view key);
// What --key names: a GPU model that is known, or a GPU of the tuned table or of `store`; none: the verb reads no
// store. Nothing if `key` is empty. Error kBadInput with all of them.
void check_gpu_key(const std::string& key, const std::optional<std::string>& store = std::nullopt);

// False, and the reason on stderr, if not all that was measured could be stored.
bool tell_store_fault(const Store& store);

}  // namespace flashcore::cli
