#include "lab/diagnose/expectation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "core/error.h"
#include "core/problem_fields.h"
#include "core/problem_row.h"
#include "kernels/family.h"
#include "lab/measure/floor.h"
#include "lab/record/freshness.h"

namespace flashcore {
namespace {

struct Measured {
  PlacedProblem problem;
  std::string candidate;
  double time_us = 0;
  const nlohmann::json* row = nullptr;
};

// Asked only of the one row that is quoted: the answer may have to be compiled.
const char* words_on_age(const Measured& measured) {
  switch (freshness_of_row(*measured.row).state) {
    case Freshness::State::kStale: return ", by an older source";
    case Freshness::State::kUnknown: return ", maybe by an older source: its code cannot be compared here";
    default: return "";
  }
}

const std::vector<nlohmann::json>& shipped_entries() {
  static const std::vector<nlohmann::json> entries = [] {
    std::vector<nlohmann::json> all;
    for (const auto& [path, text] : embedded_results()) {
      const nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
      if (!document.is_object()) continue;
      for (const nlohmann::json& entry : document.value("results", nlohmann::json::array())) {
        if (entry.contains("time_us") && entry["time_us"].is_object()) all.push_back(entry);
      }
    }
    return all;
  }();
  return entries;
}

bool is_of(const nlohmann::json& entry, const std::string& device_key) {
  const auto device = entry.find("device");
  if (device == entry.end() || !device->is_object()) return false;
  const auto key = device->find("key");
  return key != device->end() && *key == device_key;
}

// As the candidate prints itself: a row's config need not have the order of the fields. As it is where the family or
// the config is gone.
std::string candidate_as_printed(const nlohmann::json& entry, const PlacedProblem& problem) {
  const std::string text = candidate_of_row(entry);
  const nlohmann::json& device = entry.at("device");
  if (!device.contains("limits")) return text;
  try {
    return parse_candidate(text, problem, device.get<DeviceInfo>().limits).print();
  } catch (const Error&) {
    return text;
  }
}

// Read once per device: a suite asks for each of its problems.
const std::vector<Measured>& shipped_times(const std::string& device_key) {
  static std::map<std::string, std::vector<Measured>> known;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = known.try_emplace(device_key);
  std::vector<Measured>& found = place->second;
  if (!is_new) return found;
  for (const nlohmann::json& entry : shipped_entries()) {
    if (!is_of(entry, device_key) || !entry.value("family", nlohmann::json()).is_string()) continue;
    const auto problem = problem_of(entry);
    found.push_back({problem, candidate_as_printed(entry, problem), entry["time_us"].value("p50", 0.0), &entry});
  }
  return found;
}

// The user's latest passed trial of exactly this candidate on this problem and device.
const Trial* own_trial(const PlacedProblem& problem, const std::string& candidate, const DeviceInfo& device,
                       const std::vector<Trial>& stored) {
  const Trial* latest = nullptr;
  for (const Trial& trial : stored) {
    if (trial.problem == problem && trial.device.key == device.key && trial.candidate() == candidate &&
        trial.ended == Ended::kPassed && trial.timing)
      latest = &trial;
  }
  return latest;
}

void set_time(Expectation& expectation, const PlacedProblem& problem, const std::string& candidate,
              const DeviceInfo& device, const std::optional<Ceilings>& ceilings,
              const std::optional<ModelledTime>& modelled) {
  const std::vector<Measured>& measured = shipped_times(device.key);
  const auto exact = std::find_if(measured.begin(), measured.end(),
                                  [&](const Measured& m) { return m.problem == problem && m.candidate == candidate; });
  if (exact != measured.end()) {
    expectation.time_us = exact->time_us;
    expectation.basis = fmt::format("measured on {}{}", device.key, words_on_age(*exact));
    return;
  }
  const Measured* nearest = nullptr;
  double best = INFINITY;
  for (const Measured& m : measured) {
    if (const double d = problem_distance(problem, m.problem); d < best) best = d, nearest = &m;
  }
  if (modelled) {
    expectation.time_us = modelled->us;
    expectation.carried_over_from = carried_over_from(*modelled, device);
    expectation.basis = "by " + describe_model(*modelled, device);
  } else if (!nearest) {
    expectation.basis = "nothing like it was measured on " + device.key + "; `flashcore bench` measures it";
  } else if (ceilings) {
    const double ratio = floor_us(problem, device, *ceilings) / floor_us(nearest->problem, device, *ceilings);
    expectation.time_us = nearest->time_us * ratio;
    expectation.basis = fmt::format("as far from its floor as {}, measured on {}{}", nearest->problem.id(), device.key,
                                    words_on_age(*nearest));
  }
}

// A model knows no floor, and clocks differ from run to run.
void raise_to_floor(Expectation& e) {
  if (!e.time_us || !e.floor_us || *e.time_us >= *e.floor_us) return;
  e.basis = fmt::format("raised to the floor from {:.1f} us, {}", *e.time_us, e.basis);
  e.time_us = e.floor_us;
}

}  // namespace

std::optional<Ceilings> shipped_ceilings(const std::string& device_key) {
  for (const nlohmann::json& entry : shipped_entries()) {
    if (is_of(entry, device_key) && entry["device"].contains("ceilings"))
      return entry["device"]["ceilings"].get<Ceilings>();
  }
  return std::nullopt;
}

std::vector<std::string> shipped_device_keys() {
  std::set<std::string> keys;
  for (const nlohmann::json& entry : shipped_entries())
    if (const auto device = entry.find("device"); device != entry.end() && device->is_object())
      keys.insert(device->value("key", ""));
  keys.erase("");
  return {keys.begin(), keys.end()};
}

Expectation expect_time(const PlacedProblem& problem, const std::string& candidate, const DeviceInfo& device,
                        const std::vector<Trial>& stored, const std::optional<Ceilings>& measured,
                        const std::optional<ModelledTime>& modelled) {
  Expectation expectation;
  const std::optional<Ceilings> ceilings = measured ? measured : shipped_ceilings(device.key);
  if (ceilings) {
    expectation.floor_us = floor_us(problem, device, *ceilings);
    expectation.floor_basis =
        measured ? "ceilings measured here" : fmt::format("ceilings of the results from {}", device.key);
  }
  if (const Trial* own = own_trial(problem, candidate, device, stored)) {
    expectation.time_us = own->timing->p50_us;
    expectation.basis = fmt::format("your trial {} of {}", own->id, own->created_at);
  } else {
    set_time(expectation, problem, candidate, device, ceilings, modelled);
  }
  raise_to_floor(expectation);
  return expectation;
}

}  // namespace flashcore
