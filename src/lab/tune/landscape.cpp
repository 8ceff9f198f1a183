#include "lab/tune/landscape.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "core/error.h"
#include "core/random.h"
#include "kernels/family.h"
#include "kernels/source_hash.h"
#include "lab/tune/search.h"

namespace flashcore {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

std::vector<Landscape> landscapes_of(const std::vector<Trial>& trials, const DeviceLimits& limits) {
  std::map<std::pair<std::string, std::string>, std::vector<const Trial*>> groups;
  for (const Trial& t : trials)
    if (t.phase == Phase::kDefault || t.phase == Phase::kSearch) groups[{t.problem.id(), t.family}].push_back(&t);
  std::vector<Landscape> landscapes;
  for (const auto& [key, group] : groups) {
    const auto& all = all_families();
    const auto family = std::find_if(all.begin(), all.end(), [&](const Family* f) { return f->name() == key.second; });
    if (family == all.end()) continue;  // a proposer's kernel
    Landscape l{key.first, group.front()->device.key, source_hash(), key.second, (*family)->space(), {}, {}};
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
  SearchHistory history;
  while (result.trials < options.budget) {
    if (const auto gain = history.next(); options.stop_loss && gain && gain->is_loss(*options.stop_loss)) {
      result.stopped_at_loss = true;
      break;
    }
    const auto config = search->propose();
    if (!config) break;
    const LandscapePoint& point = *points.at(*config);
    const Trial trial = replayed(l, point, options.noise, random);
    search->observe(trial);
    history.add(trial.timing ? std::optional(-std::log(trial.timing->p50_us)) : std::nullopt, options.trial_seconds);
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
