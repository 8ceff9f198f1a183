#pragma once
// Report: a pure function of stored trials, and of what profile, invert and timeline wrote.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/record/freshness.h"
#include "lab/record/trial.h"
#include "lab/report/diagnoses.h"

namespace flashcore {

// Trials that are not current show as stale; by default, against the source that this program carries.
// `price`: of an hour of the machine, in any currency; none: what the trials cost is told in minutes alone.

// One self-contained page: no network (its content-security policy forbids it), no files beside it but for the lanes of
// a timeline, which it links to. No trials at all gives a page that says so.
std::string report_html(const std::vector<Trial>& trials, const IsCurrent& is_current = flashcore::is_current,
                        const Diagnoses& diagnoses = {}, std::optional<double> price = std::nullopt);
// The same tables for a pull request or an issue. Shows no stale number.
std::string report_markdown(const std::vector<Trial>& trials, const IsCurrent& is_current = flashcore::is_current,
                            std::optional<double> price = std::nullopt);
// One line per trial, every phase: for a spreadsheet. What was not measured is an empty cell.
std::string report_csv(const std::vector<Trial>& trials);
// {"schema":"flashcore.report/1","problems":[...],"rejected":[...],...}; what was not measured is null, never NaN.
nlohmann::json report_json(const std::vector<Trial>& trials, const IsCurrent& is_current = flashcore::is_current,
                           std::optional<double> price = std::nullopt);

}  // namespace flashcore
