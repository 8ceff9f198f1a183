#include "lab/campaign/speedups.h"

#include <fmt/format.h>

namespace flashcore {
namespace {

std::string microseconds(double us) { return us > 0 ? fmt::format("{:.2f}", us) : "–"; }

// What python -m flashcore.peers wrote; empty if it wrote nothing. Its number depends on the commands before it.
std::string peers_file(const std::filesystem::path& folder, const CampaignPhase& baselines) {
  for (const CampaignCommand& command : baselines.commands)
    if (command.argv.size() > 1 && command.argv[1] == "-m" && result_of(folder, command).is_object())
      return command.json;
  return "";
}

std::string words_of_intervals(const std::string& peers) {
  if (peers.empty()) return "No peer was timed, so that there is no interval.";
  return fmt::format(
      "Intervals are of the sessions in {}, one unless the campaign was resumed, and hold nothing of what differs "
      "between sessions; that file's notes say which peer writes no log-sum-exp.",
      peers);
}

SpeedupRow speedup_row(const PeerLine& line) {
  SpeedupRow row{.line = line, .peer = line.peer, .peer_times = {}, .our_times = {}, .speedup = "–"};
  if (row.peer.empty()) row.peer = "none timed";
  row.peer_times = microseconds(line.peer_p50_us) + " / " + microseconds(line.peer_p90_us);
  row.our_times = microseconds(line.ours_p50_us) + " / " + microseconds(line.ours_p90_us);
  if (line.speedup > 0)
    row.speedup = fmt::format("{:.3f} [{:.3f}, {:.3f}]", line.speedup, line.ci95_low, line.ci95_high);
  return row;
}

}  // namespace

SpeedupTable speedup_table(const std::filesystem::path& folder, const CampaignState& state) {
  SpeedupTable table;
  const CampaignPhase* baselines = state.find("baselines");
  table.words = fmt::format(
      "Times are p50 / p90 in microseconds. The peer is the fastest backend of PyTorch's scaled_dot_product_attention. "
      "{} Ours is what dispatch chose before the evolution; what that found is in tuned_diff.json.",
      words_of_intervals(baselines ? peers_file(folder, *baselines) : ""));
  for (const PeerLine& line : peer_lines(folder, state)) table.rows.push_back(speedup_row(line));
  if (table.rows.empty())
    table.why_none = baselines && !baselines->reason.empty() ? baselines->reason
                     : baselines && baselines->status == PhaseStatus::kDone
                         ? "its baselines left no times"
                         : "this campaign ended before its baselines";
  return table;
}

}  // namespace flashcore
