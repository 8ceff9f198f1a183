#pragma once
// Each problem of a campaign beside the fastest of PyTorch's backends, as summary.md and the page show it.

#include <filesystem>
#include <string>
#include <vector>

#include "lab/campaign/criteria.h"

namespace flashcore {

struct SpeedupRow {
  PeerLine line;
  // Cells: the peer's name, "95.05 / 96.00" of it and of ours, "1.806 [1.794, 1.818]".
  std::string peer, peer_times, our_times, speedup;
};
struct SpeedupTable {
  std::string words;  // what the columns hold
  std::vector<SpeedupRow> rows;
  std::string why_none;  // there are no rows
};
SpeedupTable speedup_table(const std::filesystem::path& folder, const CampaignState& state);

}  // namespace flashcore
