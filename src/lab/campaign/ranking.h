#pragma once
// What a profile and an inversion say, read leniently: their documents are other verbs' and may be of another version.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/suite.h"
#include "device/device.h"
#include "lab/campaign/state.h"

namespace flashcore {

// One entry of a ranked list, best first: what it is called, and the sentence that goes with it.
struct RankedCause {
  std::string from;  // "profile", "inversion"
  std::string problem_id;
  std::string name, sentence;
};
// Of every command of both phases; none where a document is missing or has no such list.
std::vector<RankedCause> ranking_of(const std::filesystem::path& folder, const CampaignState& state);

// A measured indicator of a profile: {"name": "SM busy", "value": 81.2, "unit": "%", "met": true, ...}.
struct ProfileMetric {
  std::string problem_id, name, unit;
  double value = 0;
  std::optional<bool> met;  // its target, where the profile sets one
};
// Of all profiles, those whose name has all these parts.
std::vector<ProfileMetric> metrics_of_profiles(const std::filesystem::path& folder, const CampaignState& state,
                                               const std::vector<std::string>& parts_of_name);

// Tile parameters that a cause has to do with, by its words; empty: none that is known.
std::vector<std::string> fields_for(std::string_view cause);

// A neighbour of a problem's present candidate, in a field that a ranked cause points to.
struct TargetedTrial {
  std::string problem_id, current, candidate, field, cause;
};
std::vector<TargetedTrial> targeted_trials(const std::filesystem::path& folder, const CampaignState& state,
                                           const DeviceInfo& device, const std::vector<NamedProblem>& problems,
                                           std::size_t most);

}  // namespace flashcore
