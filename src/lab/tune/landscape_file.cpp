// Landscapes as files (lab/tune/landscape.h).

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/json_number.h"
#include "lab/tune/landscape.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr const char* kLandscapeSchema = "flashcore.landscape/1";
constexpr double kUnmeasured = std::numeric_limits<double>::infinity();

json landscape_json(const Landscape& l) {
  json fields = json::array(), points = json::array();
  for (const Field& field : l.space.fields()) fields.push_back({{"name", field.name}, {"values", field.values}});
  for (const LandscapePoint& p : l.points)
    points.push_back({p.config, p.ended, p.p50_us ? json(std::round(*p.p50_us * 1000) / 1000) : json()});
  return {{"problem", l.problem_id}, {"device", l.device_key}, {"source_hash", l.source_hash},
          {"family", l.family},      {"fields", fields},       {"default", l.first},
          {"points", points}};
}

std::vector<int> ints_of(const json& list, const char* what) {
  if (!list.is_array()) throw_bad_input("'{}' is no list", what);
  std::vector<int> values;
  for (const json& item : list) values.push_back(whole_of<int>(item, what));
  return values;
}

Landscape landscape_of(const json& j) {
  Landscape l;
  j.at("problem").get_to(l.problem_id);
  j.at("device").get_to(l.device_key);
  j.at("source_hash").get_to(l.source_hash);
  j.at("family").get_to(l.family);
  std::vector<Field> fields;
  for (const json& f : j.at("fields"))
    fields.push_back({f.at("name").get<std::string>(), ints_of(f.at("values"), "values")});
  for (const Field& field : fields)
    if (field.values.empty()) throw_bad_input("the field '{}' has no values", excerpt(field.name));
  l.space = ConfigSpace(std::move(fields));
  l.first = ints_of(j.at("default"), "default");
  if (l.first.size() != l.space.fields().size()) throw_bad_input("the default has another number of fields");
  for (const json& p : j.at("points")) {
    LandscapePoint point{ints_of(p.at(0), "a config"), p.at(1).get<Ended>(), std::nullopt};
    if (!p.at(2).is_null()) point.p50_us = p.at(2).get<double>();
    if (point.p50_us && !(*point.p50_us > 0)) throw_bad_input("a time of {} us", *point.p50_us);
    if (point.config.size() != l.space.fields().size()) throw_bad_input("a point has another number of fields");
    l.points.push_back(std::move(point));
  }
  if (!std::isfinite(l.best_us())) throw_bad_input("no point has a time");
  return l;
}

}  // namespace

double Landscape::best_us() const {
  double best = kUnmeasured;
  for (const LandscapePoint& p : points) best = std::min(best, p.p50_us.value_or(kUnmeasured));
  return best;
}

json landscapes_json(const std::vector<Landscape>& landscapes) {
  json list = json::array();
  for (const Landscape& l : landscapes) list.push_back(landscape_json(l));
  return {{"schema", kLandscapeSchema}, {"landscapes", list}};
}

std::vector<Landscape> parse_landscapes(const json& document, const std::string& origin) {
  try {
    if (!document.is_object() || document.value("schema", "") != kLandscapeSchema || document.at("landscapes").empty())
      throw_bad_input("it is not JSON of schema {} with at least one landscape", kLandscapeSchema);
    std::vector<Landscape> landscapes;
    for (const json& j : document.at("landscapes")) landscapes.push_back(landscape_of(j));
    return landscapes;
  } catch (const std::exception& e) {
    throw_bad_input("'{}' is no recorded landscape: {}; `flashcore tune --record FILE` writes one", excerpt(origin),
                    e.what());
  }
}

}  // namespace flashcore
