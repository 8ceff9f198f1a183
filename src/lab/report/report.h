#pragma once
// Report: a pure function of stored trials.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/record/trial.h"

namespace flashcore {

struct ReportOptions {
  // What a result must have been measured on to count as current. Empty: the source_hash of the newest trial, so that
  // older trials in the same store show as stale.
  std::string current_source_hash;
};

// One self-contained page: no network (its content-security policy forbids it), no files beside it. No trials at all
// gives a page that says so.
std::string report_html(const std::vector<Trial>& trials, const ReportOptions& options);
// The same tables for a pull request or an issue. Shows no stale number.
std::string report_markdown(const std::vector<Trial>& trials, const ReportOptions& options);
// One line per trial, every phase: for a spreadsheet. What was not measured is an empty cell.
std::string report_csv(const std::vector<Trial>& trials);
// {"schema":"flashcore.report/1","problems":[...],"rejected":[...],...}; what was not measured is null, never NaN.
nlohmann::json report_json(const std::vector<Trial>& trials, const ReportOptions& options);

// Against the source that this binary carries (kernels/embedded.h, source_hash()).
std::string report_html(const std::vector<Trial>& trials);
std::string report_markdown(const std::vector<Trial>& trials);
nlohmann::json report_json(const std::vector<Trial>& trials);

}  // namespace flashcore
