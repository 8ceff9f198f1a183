#pragma once
// Does a row of a results file hold what its time stands on: a passed correctness gate, sessions that are different
// ones, rounds that are all there, the same time in the laboratory's own process, peers that could be so fast?

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace flashcore {

// One sentence for each thing that is missing or contradicts the row's time. `row` has a "time_us". Throws what
// nlohmann::json throws where samples are no numbers.
std::vector<std::string> audit_evidence(const nlohmann::json& row);

}  // namespace flashcore
