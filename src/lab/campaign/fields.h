#pragma once
// Fields of documents that other verbs wrote, maybe of another version: what is absent or of another type says nothing.
// nlohmann's value() throws where a key holds null.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace flashcore::lenient {

inline const nlohmann::json& field(const nlohmann::json& j, const char* key) {
  static const nlohmann::json none;
  const auto found = j.find(key);  // of what is no object: the end
  return found == j.end() ? none : *found;
}
inline std::string text(const nlohmann::json& j, const char* key, const std::string& otherwise = "") {
  const nlohmann::json& value = field(j, key);
  return value.is_string() ? value.get<std::string>() : otherwise;
}
inline std::optional<double> number(const nlohmann::json& j, const char* key) {
  const nlohmann::json& value = field(j, key);
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}
inline std::optional<bool> flag(const nlohmann::json& j, const char* key) {
  const nlohmann::json& value = field(j, key);
  return value.is_boolean() ? std::optional(value.get<bool>()) : std::nullopt;
}
// Empty where there is no such list, so that it can be walked.
inline const nlohmann::json& list(const nlohmann::json& j, const char* key) {
  static const nlohmann::json none = nlohmann::json::array();
  const nlohmann::json& value = field(j, key);
  return value.is_array() ? value : none;
}

}  // namespace flashcore::lenient
