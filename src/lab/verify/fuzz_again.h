#pragma once
// What a run of the fuzzer may take over from a file of an earlier one: a GPU need not try again what has not changed.

#include <nlohmann/json.hpp>
#include <vector>

#include "lab/verify/fuzz_file.h"

namespace flashcore {

// The rows of an earlier run that passed, whose cases `run` draws alike, and whose family's kernels are compiled and
// launched as they were. They were judged by the bounds of their day. `run` is what was asked for; it gets the rows and
// the sessions. Error kBadInput, with the file's name, if the file is edited, is WRONG to `flashcore verify`, or is of
// another seed, device, family or kinds of problems.
void keep_what_has_not_changed(const nlohmann::json& document, const std::string& origin, FuzzRun& run);

}  // namespace flashcore
