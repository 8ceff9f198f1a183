#pragma once
// Sessions of one run are of one process: what a process has one of, all of them say alike.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace flashcore {

// Of a results file's rows, one sentence for each contradiction: another boot, commit, driver, condition, number of
// cores or of rounds within a run; not as many samples as rounds; two sessions with the same samples.
std::vector<std::string> audit_runs(const nlohmann::json& rows);

}  // namespace flashcore
