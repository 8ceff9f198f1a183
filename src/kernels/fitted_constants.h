#pragma once
// Reads <family>/expected_time.json: {"<device key>": {"fitted_on": {...}, "model_uncertainty": 1, "constants":
// {...}}}. A family declares its constants as a struct that lists its members, by the names that they have in the file:
//   struct Constants {
//     double us_per_block;
//     template <class Visit> static void fields(Visit&& visit) { visit("us_per_block", &Constants::us_per_block); }
//   };
// Members are double or int (positive numbers), such structs, or vectors of them (not empty). What is missing, unknown
// or of another kind is an Error kBadInput that names the file and the place.

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/json_number.h"
#include "core/json_text.h"
#include "kernels/fitted_device.h"

namespace flashcore {

struct UnreadConstants {};  // for who asks only whose they are

namespace fitted_detail {

using nlohmann::json;

template <class T>
T read_object(const json& object, const std::string& place);
template <class T>
void read_value(const json& object, const std::string& place, T& value) {
  value = read_object<T>(object, place);
}
inline void read_value(const json& value, const std::string& place, double& number) {
  number = value.is_number() ? value.get<double>() : 0;
  if (!(number > 0 && std::isfinite(number)))
    throw_bad_input("{} is {}; it must be a number greater than 0", place, excerpt(value.dump()));
}
inline void read_value(const json& value, const std::string& place, int& number) {
  number = whole_of<int>(value, place.c_str());
  if (number <= 0) throw_bad_input("{} is {}; it must be a whole number greater than 0", place, number);
}
inline void read_value(const json&, const std::string&, UnreadConstants&) {}
template <class T>
void read_value(const json& list, const std::string& place, std::vector<T>& values) {
  if (!list.is_array() || list.empty()) throw_bad_input("{} must be a list of objects, and not empty", place);
  for (const json& entry : list) {
    values.emplace_back();
    read_value(entry, fmt::format("{}[{}]", place, values.size() - 1), values.back());
  }
}

template <class T>
T read_object(const json& object, const std::string& place) {
  if (!object.is_object()) throw_bad_input("{} must be an object", place);
  T value{};
  std::vector<std::string> names;
  T::fields([&](const char* name, auto member) {
    names.emplace_back(name);
    const auto found = object.find(name);
    if (found == object.end()) throw_bad_input("{} has no '{}'", place, name);
    read_value(*found, place + "." + name, value.*member);
  });
  for (const auto& [name, unused] : object.items()) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw_bad_input("{} has '{}', which nothing reads; it holds: {}", place, excerpt(name), fmt::join(names, ", "));
  }
  return value;
}

}  // namespace fitted_detail

template <class Constants>
class FittedConstants {
 public:
  struct Fit {
    FittedDevice device;
    Constants constants;
  };

  FittedConstants(std::string_view text, const std::string& origin) {
    const nlohmann::json document = parse_json(text, origin);
    if (!document.is_object() || document.empty())
      throw_bad_input("{} must be an object of constants by device key, as \"h200\"", origin);
    for (const auto& [key, json] : document.items()) {
      const Entry entry = fitted_detail::read_object<Entry>(json, fmt::format("{}: {}", origin, excerpt(key)));
      fits_.push_back({entry.fitted_on, entry.constants});
      fits_.back().device.key = key;
      fits_.back().device.model_uncertainty = entry.model_uncertainty;
    }
  }
  // Those built in. For a function-local static: a launch must not be the first to ask.
  static FittedConstants of_family(std::string_view family) {
    const std::string path = fmt::format("{}/expected_time.json", family);
    const auto found = embedded_expected_times().find(path);
    if (found == embedded_expected_times().end()) throw_internal("src/kernels/{} is not built in", path);
    return FittedConstants(found->second, "src/kernels/" + path);
  }

  // The first by key of equally near ones.
  const Fit& nearest(const DeviceLimits& limits) const {
    return *std::min_element(fits_.begin(), fits_.end(), [&](const Fit& a, const Fit& b) {
      return distance_to(a.device, limits) < distance_to(b.device, limits);
    });
  }

 private:
  struct Entry {
    FittedDevice fitted_on;
    double model_uncertainty;
    Constants constants;

    template <class Visit>
    static void fields(Visit&& visit) {
      visit("fitted_on", &Entry::fitted_on);
      visit("model_uncertainty", &Entry::model_uncertainty);
      visit("constants", &Entry::constants);
    }
  };
  std::vector<Fit> fits_;
};

}  // namespace flashcore
