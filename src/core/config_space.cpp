#include "core/config_space.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore {
namespace {

std::string describe(const std::vector<Field>& fields) {
  std::string text;
  for (const Field& field : fields)
    text += fmt::format("{}{} in {{{}}}", text.empty() ? "" : ", ", field.name, fmt::join(field.values, ","));
  return text.empty() ? "none: it has no tunables" : text;
}

std::size_t index_of(const std::vector<Field>& fields, std::string_view key, std::string_view family) {
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].name == key) return i;
  }
  throw_bad_input("config key '{}' is not known to {}; its keys are {}", excerpt(key), family, describe(fields));
}

void check_value(const Field& field, int value, std::string_view family) {
  if (std::find(field.values.begin(), field.values.end(), value) == field.values.end()) {
    throw_bad_input("config {}={} is not allowed for {}; use one of {}", field.name, value, family,
                    fmt::join(field.values, ", "));
  }
}

}  // namespace

std::uint64_t ConfigSpace::size() const {
  std::uint64_t size = 1;
  for (const Field& field : fields_) size *= field.values.size();
  return size;
}

ConfigValues ConfigSpace::at(std::uint64_t index) const {
  FC_CHECK(index < size());
  ConfigValues values(fields_.size());
  for (std::size_t i = fields_.size(); i-- > 0;) {
    const std::uint64_t count = fields_[i].values.size();
    values[i] = fields_[i].values[index % count];
    index /= count;
  }
  return values;
}

ConfigValues ConfigSpace::parse(std::string_view text, const ConfigValues& base, std::string_view family) const {
  FC_CHECK(base.size() == fields_.size());
  ConfigValues values = base;
  std::vector<bool> seen(fields_.size(), false);
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    if (comma != std::string_view::npos && text.empty()) {
      throw_bad_input("config of {} ends in a comma; write key=value,key=value with keys {}", family,
                      describe(fields_));
    }
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      throw_bad_input("config item '{}' of {} is not key=value; its keys are {}", excerpt(item), family,
                      describe(fields_));
    }
    const std::size_t i = index_of(fields_, item.substr(0, equals), family);
    if (seen[i]) throw_bad_input("config key '{}' of {} is given twice; give it once", fields_[i].name, family);
    seen[i] = true;
    const std::string_view number = item.substr(equals + 1);
    int value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || end != number.data() + number.size()) {
      throw_bad_input("config {}='{}' of {} is not an integer; use one of {}", fields_[i].name, excerpt(number), family,
                      fmt::join(fields_[i].values, ", "));
    }
    check_value(fields_[i], value, family);
    values[i] = value;
  }
  return values;
}

std::string ConfigSpace::print(const ConfigValues& values) const {
  FC_CHECK(values.size() == fields_.size());
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i)
    text += fmt::format("{}{}={}", i == 0 ? "" : ",", fields_[i].name, values[i]);
  return text;
}

nlohmann::json ConfigSpace::to_json(const ConfigValues& values) const {
  FC_CHECK(values.size() == fields_.size());
  nlohmann::json object = nlohmann::json::object();
  for (std::size_t i = 0; i < values.size(); ++i) object[fields_[i].name] = values[i];
  return object;
}

ConfigValues ConfigSpace::from_json(const nlohmann::json& object, std::string_view family) const {
  if (!object.is_object()) {
    throw_bad_input("config of {} is {}, not a JSON object; give an object with the keys {}", family,
                    excerpt(object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)), describe(fields_));
  }
  ConfigValues values(fields_.size());
  std::vector<bool> seen(fields_.size(), false);
  for (const auto& [key, value] : object.items()) {
    const std::size_t i = index_of(fields_, key, family);
    // Through 64 bits, so that 2^32 + 64 is refused rather than read as 64.
    const bool fits = value.is_number_integer() && value == value.template get<int>();
    if (!fits) {
      throw_bad_input("config {}={} of {} is not an integer; use one of {}", key,
                      excerpt(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)), family,
                      fmt::join(fields_[i].values, ", "));
    }
    values[i] = value.template get<int>();
    check_value(fields_[i], values[i], family);
    seen[i] = true;
  }
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    if (!seen[i]) {
      throw_bad_input("config of {} lacks the key '{}'; use one of {}", family, fields_[i].name,
                      fmt::join(fields_[i].values, ", "));
    }
  }
  return values;
}

}  // namespace flashcore
