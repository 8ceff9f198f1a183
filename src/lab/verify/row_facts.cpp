#include "lab/verify/row_facts.h"

#include <algorithm>

#include "core/error.h"
#include "core/foreign_text.h"
#include "device/device.h"
#include "lab/record/trial.h"

namespace flashcore {

nlohmann::json part(const nlohmann::json& object, const char* key) {
  return object.is_object() ? object.value(key, nlohmann::json()) : nlohmann::json();
}

std::string text_in(const nlohmann::json& object, const char* key) {
  const nlohmann::json value = part(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

std::optional<double> time_in(const nlohmann::json& object, const char* key) {
  return parse_iso8601(text_in(object, key));
}

std::optional<double> time_of_run(const nlohmann::json& session) {
  const std::string run = text_in(session, "run");  // "peers-2026-11-23T03:05:45.830Z-8913"
  return parse_iso8601(run.substr(std::min(run.size(), run.find('-') + 1)));
}

std::optional<double> began_at_of(const nlohmann::json& session) {
  const std::optional<double> began = time_in(session, "began_at");
  return began ? began : time_of_run(session);
}

std::string name_of_row(const nlohmann::json& row) {
  const std::string name = text_in(row, "name");
  return excerpt(name.empty() ? text_in(row, "problem") : name);
}

bool is_timed(const nlohmann::json& row) { return part(row, "time_us").is_object(); }

std::string why_unknown_condition(const nlohmann::json& object) {
  const nlohmann::json value = part(object, "condition");
  if (value.is_null()) return "";
  try {
    parse_condition(value.is_string() ? value.get<std::string>() : value.dump());
    return "";
  } catch (const Error& e) {
    return fmt::format(
        "{}: the file is from before a condition was renamed, or edited, and no time of today can be "
        "compared with its",
        e.what());
  }
}

}  // namespace flashcore
