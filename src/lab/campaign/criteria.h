#pragma once
// The success criteria of a campaign, each with its evidence.

#include <filesystem>
#include <string>
#include <vector>

#include "lab/campaign/state.h"

namespace flashcore {

enum class CriterionVerdict { kMet, kNotMet, kNotJudged };
template <>
struct WordsOf<CriterionVerdict> {
  static constexpr std::string_view what = "verdict of a criterion";
  static constexpr std::pair<CriterionVerdict, std::string_view> table[] = {
      {CriterionVerdict::kMet, "met"},
      {CriterionVerdict::kNotMet, "not met"},
      {CriterionVerdict::kNotJudged, "could not judge"}};
};

struct Criterion {
  std::string name;
  CriterionVerdict verdict = CriterionVerdict::kNotJudged;
  std::string evidence;
};

// A problem beside the fastest of PyTorch's scaled_dot_product_attention backends.
struct PeerLine {
  std::string problem_id, name, peer;
  double ours_p50_us = 0, ours_p90_us = 0, peer_p50_us = 0, peer_p90_us = 0;
  double speedup = 0, ci95_low = 0, ci95_high = 0;  // 0: it was not timed beside a peer
  // Why its times decide nothing: "other programs kept 1.6 of 2 cores busy". Empty: they do.
  std::string doubt;
  bool busy = false;  // the doubt is of the machine
};
// Of the last commands that wrote them. A row without a peer is ours alone.
std::vector<PeerLine> peer_lines(const std::filesystem::path& folder, const CampaignState& state);

// A 95% interval that straddles a threshold judges nothing, and neither do doubtful times: those of a CPU that other
// programs kept busy (kBusyCores), and those that are too wide to mean anything, whatever the machine says of itself.
std::vector<Criterion> judge_criteria(const std::filesystem::path& folder, const CampaignState& state);
nlohmann::json criteria_json(const std::vector<Criterion>& criteria);

}  // namespace flashcore
