#include "cli/mcp_schema.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/foreign_text.h"

namespace flashcore::cli::mcp {

namespace {

using nlohmann::json;

bool has_type(const json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  return type == "integer" && value.is_number_integer();
}

std::string keys_of(const json& object) {
  std::string keys;
  for (const auto& [key, unused] : object.items()) keys += (keys.empty() ? "" : ", ") + key;
  return keys;
}

std::optional<std::string> why_not_object(const json& value, const json& schema, const std::string& path) {
  const json none = json::object();
  const json& properties = schema.contains("properties") ? schema["properties"] : none;
  for (const json& key : schema.value("required", json::array()))
    if (!value.contains(key.get<std::string>()))
      return fmt::format("{} has no '{}', which is required", path, key.get<std::string>());
  for (const auto& [key, item] : value.items()) {
    const json* its = properties.contains(key) ? &properties[key] : nullptr;
    if (!its && schema.contains("additionalProperties")) {
      if (schema["additionalProperties"].is_object()) its = &schema["additionalProperties"];
      else return fmt::format("{} has the key '{}'; allowed are {}", path, excerpt(key, 60), keys_of(properties));
    }
    if (!its) continue;
    if (auto why = why_not_fitting(item, *its, path + "." + excerpt(key, 60))) return why;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> why_not_fitting(const json& value, const json& schema, const std::string& path) {
  if (schema.contains("type")) {
    const std::string type = schema["type"].get<std::string>();
    if (!has_type(value, type)) return fmt::format("{} is of type {}, not {}", path, value.type_name(), type);
  }
  if (schema.contains("enum")) {
    const json& allowed = schema["enum"];
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end())
      return fmt::format("{} is {}; it is one of {}", path, excerpt(value.dump(-1, ' ', true), 60), allowed.dump());
  }
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    if (schema.contains("maxLength") && text.size() > schema["maxLength"].get<std::size_t>())
      return fmt::format("{} has {} bytes; at most {} are allowed", path, text.size(), schema["maxLength"].dump());
    if (find_bad_character(text) != std::string::npos) return path + " holds a control character";
  }
  if (value.is_number_integer()) {
    if (schema.contains("minimum") && value < schema["minimum"])
      return fmt::format("{} is {}; the least is {}", path, value.dump(), schema["minimum"].dump());
    if (schema.contains("maximum") && value > schema["maximum"])
      return fmt::format("{} is {}; the most is {}", path, value.dump(), schema["maximum"].dump());
  }
  if (value.is_array()) {
    if (schema.contains("maxItems") && value.size() > schema["maxItems"].get<std::size_t>())
      return fmt::format("{} has {} entries; at most {} are allowed", path, value.size(), schema["maxItems"].dump());
    for (std::size_t i = 0; schema.contains("items") && i < value.size(); ++i)
      if (auto why = why_not_fitting(value[i], schema["items"], fmt::format("{}[{}]", path, i))) return why;
  }
  return value.is_object() ? why_not_object(value, schema, path) : std::nullopt;
}

}  // namespace flashcore::cli::mcp
