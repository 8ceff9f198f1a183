#pragma once
// What a profile and an inversion say, and what to try for it. A document of another shape says nothing.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/suite.h"
#include "device/device.h"
#include "lab/campaign/state.h"

namespace flashcore {

// What is likely to make a problem faster, best first: its name, and the sentence that goes with it.
struct RankedCause {
  std::string from;  // "profile", "inversion"
  std::string problem_id;
  std::string name;  // of an inversion's variant, or the word of a profile's Cause
  std::string sentence;
};
// First an inversion's leave-one-outs that were faster: they were measured. A pathology that is slower, and whatever
// came to the same or to nothing, would not help; nor do an emulated GPU's counts tell. Then a profile's bottlenecks.
std::vector<RankedCause> ranking_of(const std::filesystem::path& folder, const CampaignState& state);

// An inversion's answer, in its own words.
struct InversionAnswer {
  std::string problem_id, answer;
};
std::vector<InversionAnswer> inversion_answers(const std::filesystem::path& folder, const CampaignState& state);

// A measured indicator of a profile: {"name": "SM busy", "value": 81.2, "unit": "%", "met": true, ...}.
struct ProfileMetric {
  std::string problem_id, unit;
  double value = 0;
  bool met = false;  // the profile's target of it
};
// Of every profile that has the indicator of this name with a value and a target.
std::vector<ProfileMetric> metrics_of_profiles(const std::filesystem::path& folder, const CampaignState& state,
                                               std::string_view name);

// Tile parameters that a cause has to do with, the most likely first. Of every leave-one-out of variants() and of every
// Cause; empty for other names, and where no parameter answers.
struct CauseFields {
  std::string name;
  std::vector<std::string> fields;
};
const std::vector<CauseFields>& cause_fields();
std::vector<std::string> fields_for(std::string_view cause);

// A neighbour of a problem's present candidate, in a field that a ranked cause points to.
struct TargetedTrial {
  std::string problem_id, current, candidate, field, cause;
};
std::vector<TargetedTrial> targeted_trials(const std::filesystem::path& folder, const CampaignState& state,
                                           const DeviceInfo& device, const std::vector<NamedProblem>& problems,
                                           std::size_t most);

}  // namespace flashcore
