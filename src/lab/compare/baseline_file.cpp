// Baseline files of the gate: written by it, or results of bench (lab/compare/regression.h).

#include <cmath>

#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/json_text.h"
#include "core/problem_row.h"
#include "kernels/source_hash.h"
#include "lab/compare/bench.h"
#include "lab/compare/regression.h"
#include "lab/record/freshness.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr const char* kBaselineSchema = "flashcore.gate-baseline/1";

BaselineEntry entry_of(const json& j) {
  BaselineEntry entry;
  entry.problem.problem = problem_of(j);
  entry.problem.name = j.at("name").get<std::string>();
  entry.device_key = j.at("device").at("key").get<std::string>();
  entry.candidate = j.contains("candidate") ? j.at("candidate").get<std::string>() : candidate_of_row(j);
  if (find_bad_character(entry.candidate) != std::string::npos)
    throw_bad_input("the candidate '{}' holds a control character", excerpt(entry.candidate));
  if (j.contains("code_hash") && j.at("code_hash").is_string()) j.at("code_hash").get_to(entry.code_hash);
  if (j.contains("launch_hash") && j.at("launch_hash").is_string()) j.at("launch_hash").get_to(entry.launch_hash);
  entry.regime = parse_regime(j.at("regime").get<std::string>());
  entry.condition = parse_condition(j.at("condition").get<std::string>());
  j.at("time_us").at("p50").get_to(entry.p50_us);
  entry.kcycles = j.value("kcycles", 0.0);
  entry.process_p50_us = j.value("process_p50_us", std::vector<double>());
  if (j.contains("machine")) j.at("machine").get_to(entry.machine);
  if (!(entry.p50_us > 0 && std::isfinite(entry.p50_us))) throw_bad_input("a time of {} us", entry.p50_us);
  return entry;
}

}  // namespace

std::vector<BaselineEntry> load_baseline(const std::filesystem::path& file) {
  return parse_baseline(read_file(file), file.string());
}

std::vector<BaselineEntry> parse_baseline(std::string_view text, const std::string& origin) {
  const json document = parse_json(text, origin);
  const json schema = document.is_object() ? document.value("schema", json()) : json();
  if ((schema != kBenchSchema && schema != kBaselineSchema) || !document.contains("results") ||
      !document["results"].is_array())
    throw_bad_input(
        "'{}' is not a baseline: it must be JSON of schema {} (`flashcore gate --write-baseline FILE`) or {} "
        "(`flashcore bench --json FILE`)",
        origin, kBaselineSchema, kBenchSchema);
  std::vector<BaselineEntry> entries;
  for (const json& result : document["results"]) {
    if (!result.is_object() || !result.contains("time_us") || result["time_us"].is_null()) continue;
    try {
      entries.push_back(entry_of(result));
    } catch (const std::exception& e) {
      throw_bad_input("'{}': entry {} cannot be read ({}); write the baseline again", origin, entries.size() + 1,
                      e.what());
    }
  }
  if (entries.empty()) throw_bad_input("'{}' holds no entry with a time: there is nothing to compare with", origin);
  return entries;
}

json baseline_json(const std::vector<BaselineEntry>& entries) {
  json results = json::array();
  for (const BaselineEntry& e : entries) {
    results.push_back({{"name", e.problem.name},
                       {"device", {{"key", e.device_key}}},
                       {"candidate", e.candidate},
                       {"code_hash", e.code_hash},
                       {"launch_hash", e.launch_hash},
                       {"regime", to_string(e.regime)},
                       {"condition", to_string(e.condition)},
                       {"time_us", {{"p50", e.p50_us}}},
                       {"kcycles", e.kcycles},
                       {"process_p50_us", e.process_p50_us},
                       {"machine", e.machine}});
    put_problem(results.back(), e.problem.problem);
  }
  return {
      {"schema", kBaselineSchema}, {"source_hash", source_hash()}, {"created_at", now_iso8601()}, {"results", results}};
}

}  // namespace flashcore
