#pragma once
// What profile, invert and timeline found, and a campaign's speed-ups, for the page: results of their JSON, and why
// there is none where there is none. A page that passes over a phase in silence reads as if it had found nothing.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/campaign/speedups.h"
#include "lab/campaign/state.h"

namespace flashcore {

struct DiagnosisList {
  // Of "results". Files of other versions and of anybody: read with lab/campaign/fields.h, shown escaped.
  std::vector<nlohmann::json> results;
  std::vector<std::string> missing;  // sentences: what is not here, and why. Both empty: none was given
};

// What made the page, as lines for a shell.
struct CampaignLines {
  std::vector<std::string> sessions;     // of the campaign; an empty line: its state does not say it
  std::vector<std::string> ran;          // by it
  std::optional<double> price_per_hour;  // of the machine
  std::vector<std::string> untimed;  // "evolution: an emulated GPU has no time", of phases that were to time something
};

struct Diagnoses {
  DiagnosisList profiles, inversions, timelines;
  std::optional<CampaignLines> campaign;  // none: the page is of no campaign
  SpeedupTable speedups;                  // of the campaign
  std::string timeline_page;  // the link to the lanes, relative to the page and percent-encoded; empty: none
};

// Adds a document of profile, invert or timeline, told apart by its schema. Error kBadInput: it is of none of them.
void add_diagnosis(Diagnoses& diagnoses, const nlohmann::json& document, std::string_view origin);

// Of a campaign's folder, as far as it went. `page_folder`: where the page will lie, for its link.
Diagnoses diagnoses_of_campaign(const std::filesystem::path& folder, const CampaignState& state,
                                const std::filesystem::path& page_folder);

namespace report {

// HTML of the sections. Of a page that is of no campaign the first is empty.
std::string speedup_section(const Diagnoses& diagnoses);
std::string profile_section(const Diagnoses& diagnoses);
std::string inversion_section(const Diagnoses& diagnoses);
std::string timeline_section(const Diagnoses& diagnoses);

}  // namespace report
}  // namespace flashcore
