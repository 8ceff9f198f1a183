#include "lab/landscape.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "core/error.h"
#include "kernels/family.h"
#include "lab/search.h"
#include "lab/statistics.h"
#include "lab/tune_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr const char* kLandscapeSchema = "flashcore.landscape/1";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

json landscape_json(const Landscape& l) {
  json fields = json::array(), points = json::array();
  for (const Field& field : l.space.fields()) fields.push_back({{"name", field.name}, {"values", field.values}});
  for (const LandscapePoint& p : l.points)
    points.push_back({p.config, p.ended, p.p50_us ? json(std::round(*p.p50_us * 1000) / 1000) : json()});
  return {{"problem", l.problem_id}, {"device", l.device_key}, {"source_hash", l.source_hash},
          {"family", l.family},      {"fields", fields},       {"default", l.first},
          {"points", points}};
}

Landscape landscape_of(const json& j) {
  Landscape l;
  j.at("problem").get_to(l.problem_id);
  j.at("device").get_to(l.device_key);
  j.at("source_hash").get_to(l.source_hash);
  j.at("family").get_to(l.family);
  std::vector<Field> fields;
  for (const json& f : j.at("fields"))
    fields.push_back({f.at("name").get<std::string>(), f.at("values").get<std::vector<int>>()});
  l.space = ConfigSpace(std::move(fields));
  j.at("default").get_to(l.first);
  for (const json& p : j.at("points")) {
    LandscapePoint point{p.at(0).get<ConfigValues>(), p.at(1).get<std::string>(), std::nullopt};
    if (!p.at(2).is_null()) point.p50_us = p.at(2).get<double>();
    if (point.config.size() != l.space.fields().size()) throw_bad_input("a point has another number of fields");
    l.points.push_back(std::move(point));
  }
  if (!std::isfinite(l.best_us())) throw_bad_input("no point has a time");
  return l;
}

// The time of a trial, given those of the trials before it. Clocks drift over the hours of a recording, so a raced
// candidate has its incumbent's time divided by its speed-up, which was measured side by side; and what is the code of
// another has the other's time.
std::optional<double> time_of(const Trial& trial, const std::map<std::string, double>& times) {
  if (trial.comparison && (trial.comparison->blocks > 0 || !trial.timing)) {
    const auto other = times.find(trial.comparison->against);
    if (other != times.end() && trial.comparison->speedup > 0) return other->second / trial.comparison->speedup;
  }
  return trial.timing ? std::optional(trial.timing->p50_us) : std::nullopt;
}

// A trial as the search would have seen it.
Trial replayed(const Landscape& l, const LandscapePoint& point, double noise, SplitMix& random) {
  Trial trial;
  trial.family = l.family;
  trial.config = l.space.print(point.config);
  trial.ended = point.ended;
  if (point.p50_us) trial.timing.emplace().p50_us = *point.p50_us * std::exp(noise * random.normal());
  return trial;
}

}  // namespace

double Landscape::best_us() const {
  double best = kInfinity;
  for (const LandscapePoint& p : points) best = std::min(best, p.p50_us.value_or(kInfinity));
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
    throw_bad_input("'{}' is no recorded landscape: {}; `flashcore tune --record FILE` writes one", origin, e.what());
  }
}

std::vector<Landscape> landscapes_of(const std::vector<Trial>& trials, const DeviceLimits& limits) {
  std::map<std::pair<std::string, std::string>, std::vector<const Trial*>> groups;
  for (const Trial& t : trials)
    if (t.phase == Phase::kDefault || t.phase == Phase::kSearch) groups[{t.problem.id(), t.family}].push_back(&t);
  std::vector<Landscape> landscapes;
  for (const auto& [key, group] : groups) {
    const auto& all = all_families();
    const auto family = std::find_if(all.begin(), all.end(), [&](const Family* f) { return f->name() == key.second; });
    if (family == all.end()) continue;  // a proposer's kernel
    Landscape l{key.first, group.front()->device.key, group.front()->source_hash, key.second, (*family)->space(), {},
                {}};
    l.first = (*family)->default_config(group.front()->problem, limits);
    std::map<std::string, double> times;
    for (const Trial* t : group) {
      try {
        LandscapePoint point{l.space.parse(t->config, l.first, l.family), t->ended, time_of(*t, times)};
        if (point.p50_us) times[t->candidate()] = *point.p50_us;
        l.points.push_back(std::move(point));
      } catch (const Error&) {
        // a config that was never one
      }
    }
    if (times.size() >= 2) landscapes.push_back(std::move(l));
  }
  return landscapes;
}

Replay replay(const Landscape& l, const ReplayOptions& options) {
  SearchSpace space{l.space, {}, l.first};
  std::map<ConfigValues, const LandscapePoint*> points;
  for (const LandscapePoint& p : l.points)
    if (points.try_emplace(p.config, &p).second) space.feasible.push_back(p.config);
  const auto search = make_search(options.strategy, std::move(space), options.seed);
  SplitMix random(options.seed * 7919 + 17);
  std::vector<std::pair<double, const LandscapePoint*>> measured;  // noisy time, point
  Replay result;
  double best_noisy = kInfinity, best_true = kInfinity;
  while (result.trials < options.budget) {
    const auto config = search->propose();
    if (!config) break;
    const LandscapePoint& point = *points.at(*config);
    const Trial trial = replayed(l, point, options.noise, random);
    search->observe(trial);
    ++result.trials;
    if (trial.timing) {
      measured.emplace_back(trial.timing->p50_us, &point);
      if (trial.timing->p50_us < best_noisy) best_noisy = trial.timing->p50_us, best_true = *point.p50_us;
    }
    result.best_so_far.push_back(best_true);
  }
  std::stable_sort(measured.begin(), measured.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  measured.resize(std::min(measured.size(), static_cast<std::size_t>(options.finalists)));
  double best_again = kInfinity;
  result.found_us = kInfinity;
  for (const auto& [noisy, point] : measured) {
    const double again = *point->p50_us * std::exp(options.noise / 3 * random.normal());
    if (again < best_again) best_again = again, result.found_us = *point->p50_us;
  }
  return result;
}

}  // namespace flashcore
