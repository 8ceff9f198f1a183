#include <algorithm>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/problem_fields.h"
#include "core/trusted_path.h"
#include "kernels/embedded.h"
#include "kernels/family.h"
#include "kernels/modelled_time.h"
#include "kernels/tuned_table.h"

namespace flashcore {
namespace {

// An entry is trusted for a neighbour while every size is within this factor of its own, summed over the sizes in log2.
constexpr double kNearLog2 = 2.0;
// Expected times this close are the same: the model's own error is about 4%.
constexpr double kAlike = 1.02;

const nlohmann::json& built_in_table() {
  static const nlohmann::json table = nlohmann::json::parse(embedded_device_sources().at("tuned.json"));
  return table;
}

struct UserTable {
  std::filesystem::path path;
  nlohmann::json entries = nlohmann::json::object();
  std::string fault;  // why it cannot be read
};
const char* table_of_environment() {
  const char* file = std::getenv("FLASHCORE_TUNED");
  return file && *file ? file : nullptr;
}

const UserTable& user_table() {
  static const UserTable table = [] {
    UserTable read;
    std::error_code error;
    try {
      read.path = user_table_path();
      if (!std::filesystem::exists(read.path, error)) return read;
    } catch (const Error&) {  // no folder for a cache: no table
      return read;
    }
    // What others could have put there must not choose for this user. A file that the environment names is his word.
    if (!table_of_environment()) {
      read.fault = why_untrusted(read.path);
      if (!read.fault.empty()) return read;
    }
    try {
      read.entries = parse_tuned_table(read_file(read.path), read.path.string());
    } catch (const Error& e) {
      read.fault = fmt::format("it is not JSON by device and problem ({})", e.what());
    }
    return read;
  }();
  return table;
}

struct Default {
  Candidate candidate;
  int preference = 0;
  std::optional<ModelledTime> modelled;

  std::optional<double> cautious_us() const { return modelled ? std::optional(modelled->cautious_us()) : std::nullopt; }
  // The first to be chosen has the least.
  auto order() const {
    return std::tuple(-preference, cautious_us().value_or(std::numeric_limits<double>::infinity()));
  }
};
std::vector<Default> ranked_defaults(const Problem& problem, const DeviceLimits& limits) {
  std::vector<Default> defaults;
  for (const Family* family : supporting_families(problem, limits)) {
    const Candidate candidate{family, family->default_config(problem, limits)};
    defaults.push_back({candidate, family->preference(problem, limits), modelled_time(candidate, problem, limits)});
  }
  std::stable_sort(defaults.begin(), defaults.end(),
                   [](const Default& a, const Default& b) { return a.order() < b.order(); });
  return defaults;
}

// Whether a neighbour's candidate may stand before the default, which is expected to take `default_us`: where the model
// finds both alike, the neighbour's measurement knows more.
bool is_as_good(const Candidate& candidate, const Problem& problem, const DeviceLimits& limits,
                std::optional<double> default_us) {
  if (!default_us) return true;
  const auto own = modelled_time(candidate, problem, limits);
  return own && own->cautious_us() <= kAlike * *default_us;
}

// The entries near enough, nearest first. One that does not fit this problem is passed over for the next.
void add_tuned(const Problem& problem, const DeviceInfo& device, bool use_user_table, std::optional<double> default_us,
               std::vector<Choice>& choices, std::vector<std::string>& faults) {
  std::vector<TunedEntry> entries;
  if (use_user_table) {
    if (!user_table().fault.empty()) faults.push_back(user_table().fault);
    add_tuned_entries(user_table().entries, device.key, true, entries, faults);
  }
  std::vector<std::string> none;  // a test parses every built-in entry
  add_tuned_entries(built_in_table(), device.key, false, entries, none);
  // What was found for the same problem without functions of the user's own is the best guess for one with them.
  const Problem plain = problem.without_expressions();
  struct Near {
    double distance;
    bool of_plain;
    const TunedEntry* entry;
  };
  std::vector<Near> near;
  for (const TunedEntry& entry : entries) {
    const double own = problem_distance(problem, entry.problem), of_plain = problem_distance(plain, entry.problem);
    if (std::min(own, of_plain) <= kNearLog2) near.push_back({std::min(own, of_plain), of_plain < own, &entry});
  }
  std::stable_sort(near.begin(), near.end(), [](const Near& a, const Near& b) {
    return std::tie(a.distance, a.of_plain) < std::tie(b.distance, b.of_plain);
  });
  for (const auto& [d, of_plain, entry] : near) {
    const char* table = entry->of_user ? "your tuned table" : "tuned table";
    const std::string how = d == 0 ? table
                                   : fmt::format("nearest entry of {} (distance {:.2f} in log2)",
                                                 entry->of_user ? table : "the tuned table", d);
    try {
      Candidate candidate = parse_candidate(entry->candidate, problem, device.limits);
      if (d > 0 && !is_as_good(candidate, problem, device.limits, default_us)) continue;
      choices.push_back({std::move(candidate), fmt::format("{}: {} on {}", how, entry->id, device.key),
                         entry->of_user ? ChosenBy::kUserTable : ChosenBy::kDispatch});
    } catch (const Error& e) {  // the neighbour's config does not fit this problem: the next may
      if (d == 0 && entry->of_user) faults.push_back(fmt::format("'{}': {}", excerpt(entry->id), e.what()));
    }
  }
}

std::vector<Choice> choices_for(const Problem& problem, const DeviceInfo& device, bool use_user_table) {
  std::vector<Default> defaults = ranked_defaults(problem, device.limits);
  std::vector<Choice> choices;
  std::vector<std::string> faults;
  add_tuned(problem, device, use_user_table, defaults.empty() ? std::nullopt : defaults.front().cautious_us(), choices,
            faults);
  for (Default& d : defaults) {
    // No number: only the laboratory knows the floor, which a model may be below.
    const std::string why =
        d.modelled ? "by " + name_model(*d.modelled, device) : "no entry of the tuned table is near on " + device.key;
    choices.push_back({std::move(d.candidate), {}});
    choices.back().reason = fmt::format("default of {}: {}", choices.back().candidate.family->name(), why);
  }
  // Said where the choice is explained: nothing below the command line prints.
  if (!faults.empty() && !choices.empty())
    choices.front().reason +=
        fmt::format("; passed over in your tuned table {}: {}", user_table().path.string(), fmt::join(faults, "; "));
  return choices;
}

Choice best_of(const Problem& problem, const DeviceInfo& device, bool use_user_table) {
  problem.validate();
  std::vector<Choice> choices = choices_for(problem, device, use_user_table);
  if (!choices.empty()) return std::move(choices.front());
  std::vector<std::string> reasons;
  supporting_families(problem, device.limits, &reasons);
  std::string all;
  for (const std::string& reason : reasons) all += "\n  " + reason;
  throw_bad_input("no family runs {} on {}:{}", problem.id(), device.id, all);
}

}  // namespace

std::filesystem::path user_table_path() {
  if (const char* file = table_of_environment()) return file;
  return cache_directory() / "tuned.json";
}

std::vector<std::string> tuned_device_keys() {
  std::set<std::string> keys;
  for (const nlohmann::json* table : {&built_in_table(), &user_table().entries})
    for (const auto& [key, entries] : table->items()) keys.insert(key);
  return {keys.begin(), keys.end()};
}

std::vector<Choice> ranked_choices(const Problem& problem, const DeviceInfo& device) {
  return choices_for(problem, device, true);
}

Choice dispatch(const Problem& problem, const DeviceInfo& device) { return best_of(problem, device, true); }

Choice dispatch_as_built(const Problem& problem, const DeviceInfo& device) { return best_of(problem, device, false); }

}  // namespace flashcore
