#pragma once
// Do the figures of a results file follow from each other? A rate that counts masked pairs, or a time below its own
// floor, was not measured.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace flashcore {

// One sentence for each result of a flashcore.bench/1 document whose rate is not its unmasked FLOPs over its median
// time, or whose time is below its floor.
std::vector<std::string> audit_results(const nlohmann::json& document);

}  // namespace flashcore
