#pragma once
#include <map>
#include <string_view>

namespace flashcore {

// "report.css", "report.js": src/lab/report/assets. Made by cmake/embed.cmake.
const std::map<std::string_view, std::string_view>& embedded_report_assets();
// "plotly.min.js.gz" -> gzip bytes. Made by cmake/plotly.cmake.
const std::map<std::string_view, std::string_view>& embedded_plotly();

}  // namespace flashcore
