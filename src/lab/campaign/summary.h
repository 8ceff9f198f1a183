#pragma once
// What a campaign leaves for a reader: summary.md, findings, the ledger of targeted trials, the diff of tuned tables.

#include <filesystem>
#include <string>
#include <vector>

#include "lab/campaign/criteria.h"

namespace flashcore {

// One sentence each: failed and unjudged phases, throttling, bottlenecks, targeted trials that were faster,
// disagreements of the cross-check.
std::vector<std::string> findings_of(const std::filesystem::path& folder, const CampaignState& state);

// Phases whose results say that the device lowered its clocks.
std::vector<std::string> throttled_phases(const std::filesystem::path& folder, const CampaignState& state);

// {"schema": "flashcore.campaign_ledger/1", "trials": [...]}: what the ranking pointed to, and what came of it.
nlohmann::json campaign_ledger(const std::filesystem::path& folder, const CampaignState& state);

std::string campaign_summary(const std::filesystem::path& folder, const CampaignState& state,
                             const std::vector<Criterion>& criteria);

// The user's tuned table before the campaign and now, as a JSON patch; `before` is what keep_tuned_table() kept.
void keep_tuned_table(const std::filesystem::path& folder);
// None: the file is gone, or somebody damaged it.
std::optional<nlohmann::json> kept_tuned_table(const std::filesystem::path& folder);
nlohmann::json tuned_table_diff(const std::filesystem::path& folder);

}  // namespace flashcore
