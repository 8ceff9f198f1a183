#pragma once
// Report: a pure function of stored trials.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/trial.h"

namespace flashcore {

// One self-contained page: no network, no files beside it.
std::string report_html(const std::vector<Trial>& trials);
std::string report_markdown(const std::vector<Trial>& trials);
std::string report_csv(const std::vector<Trial>& trials);
nlohmann::json report_json(const std::vector<Trial>& trials);

}  // namespace flashcore
