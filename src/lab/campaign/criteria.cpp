#include "lab/campaign/criteria.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "lab/campaign/ranking.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr double kGreatGain = 1.10, kGain = 1.05, kSmBusyPercent = 70;
// Percent of all passes over the banks; where a profile sets no target of its own.
constexpr double kSevereConflicts = 10;

const std::vector<std::string>& sdpa_backends() {
  static const std::vector<std::string> names = {"sdpa", "flash", "efficient", "cudnn", "math"};
  return names;
}

double number(const json& j, const char* outer, const char* inner) {
  const auto found = j.find(outer);
  if (found == j.end() || !found->is_object()) return 0;
  const auto value = found->find(inner);
  return value != found->end() && value->is_number() ? value->get<double>() : 0;
}

PeerLine line_of(const json& row) {
  PeerLine line;
  line.problem_id = row.value("problem", "");
  line.name = row.value("name", line.problem_id);
  line.ours_p50_us = number(row, "time_us", "p50");
  line.ours_p90_us = number(row, "time_us", "p90");
  const auto peers = row.find("peers");
  if (peers == row.end() || !peers->is_array()) return line;
  for (const json& peer : *peers) {
    const auto& names = sdpa_backends();
    if (!peer.is_object() || std::find(names.begin(), names.end(), peer.value("name", "")) == names.end()) continue;
    const double p50 = number(peer, "time_us", "p50");
    const auto ci = peer.find("ci95");
    const auto speedup = peer.find("speedup");
    if (p50 <= 0 || speedup == peer.end() || !speedup->is_number() || ci == peer.end() || !ci->is_array() ||
        ci->size() != 2 || !(*ci)[0].is_number() || !(*ci)[1].is_number())
      continue;
    if (line.speedup > 0 && speedup->get<double>() >= line.speedup) continue;
    line.peer = peer.value("name", "");
    line.peer_p50_us = p50;
    line.peer_p90_us = number(peer, "time_us", "p90");
    line.speedup = speedup->get<double>();
    line.ci95_low = (*ci)[0].get<double>();
    line.ci95_high = (*ci)[1].get<double>();
  }
  return line;
}

Criterion enough_gains(const std::vector<PeerLine>& lines, std::string name, double factor, std::ptrdiff_t wanted) {
  Criterion c{std::move(name), CriterionVerdict::kNotJudged, ""};
  const auto timed = std::count_if(lines.begin(), lines.end(), [](const PeerLine& l) { return l.speedup > 0; });
  const auto surely =
      std::count_if(lines.begin(), lines.end(), [&](const PeerLine& l) { return l.ci95_low >= factor; });
  const auto maybe =
      std::count_if(lines.begin(), lines.end(), [&](const PeerLine& l) { return l.ci95_high >= factor; });
  if (timed == 0) {
    c.evidence = "no problem was timed beside PyTorch's scaled_dot_product_attention";
    return c;
  }
  c.verdict = surely >= wanted  ? CriterionVerdict::kMet
              : maybe >= wanted ? CriterionVerdict::kNotJudged
                                : CriterionVerdict::kNotMet;
  c.evidence = fmt::format("{} of {} problems are that much faster with their whole 95% interval", surely, timed);
  if (c.verdict == CriterionVerdict::kNotJudged)
    c.evidence += fmt::format("; of {} more the interval straddles it", maybe - surely);
  for (const PeerLine& l : lines)
    if (l.ci95_low >= factor)
      c.evidence +=
          fmt::format("; {} {:.3f} [{:.3f}, {:.3f}] over {}", l.name, l.speedup, l.ci95_low, l.ci95_high, l.peer);
  return c;
}

Criterion p90_no_worse(const std::vector<PeerLine>& lines) {
  Criterion c{"p90 no worse than PyTorch's", CriterionVerdict::kNotJudged, ""};
  int judged = 0;
  std::string worse;
  for (const PeerLine& l : lines) {
    // Only of those whose speed-up is claimed.
    if (l.ci95_low < kGain || l.peer_p90_us <= 0 || l.ours_p90_us <= 0) continue;
    ++judged;
    if (l.ours_p90_us > l.peer_p90_us)
      worse += fmt::format("; {} {:.2f} us against {:.2f} us", l.name, l.ours_p90_us, l.peer_p90_us);
  }
  if (judged == 0) {
    c.evidence = "no problem has a speed-up whose p90 could be compared";
    return c;
  }
  c.verdict = worse.empty() ? CriterionVerdict::kMet : CriterionVerdict::kNotMet;
  c.evidence = fmt::format("of {} problems with a speed-up of 5% or more{}", judged,
                           worse.empty() ? " none has a worse p90" : worse);
  return c;
}

// By the profile's own target where it sets one; else by `is_met`.
Criterion of_profiles(const std::filesystem::path& folder, const CampaignState& state, std::string name,
                      const std::vector<std::string>& parts, const std::function<bool(double)>& is_met) {
  Criterion c{std::move(name), CriterionVerdict::kNotJudged, ""};
  const std::vector<ProfileMetric> metrics = metrics_of_profiles(folder, state, parts);
  if (metrics.empty()) {
    const CampaignPhase* phase = state.find("profile");
    c.evidence = "no profile has the metric";
    if (phase && !phase->reason.empty()) c.evidence += ": " + phase->reason;
    return c;
  }
  c.verdict = CriterionVerdict::kMet;
  for (const ProfileMetric& m : metrics) {
    if (!m.met.value_or(is_met(m.value))) c.verdict = CriterionVerdict::kNotMet;
    c.evidence += fmt::format("{}{} of {}: {:.4g}{}{}", c.evidence.empty() ? "" : "; ", m.name, m.problem_id, m.value,
                              m.unit.empty() ? "" : " ", m.unit);
  }
  return c;
}

Criterion no_spills(const std::filesystem::path& folder, const CampaignState& state) {
  Criterion c{"no spills", CriterionVerdict::kNotJudged, ""};
  int kernels = 0;
  std::string spilling;
  if (const CampaignPhase* phase = state.find("evolution"))
    for (const CampaignCommand& command : phase->commands) {
      const json result = result_of(folder, command);
      if (!result.is_object() || !result.contains("results") || !result["results"].is_array()) continue;
      for (const json& entry : result["results"]) {
        if (!entry.is_object() || !entry.contains("winner") || !entry["winner"].is_object()) continue;
        const json& winner = entry["winner"];
        if (!winner.contains("artifact") || !winner["artifact"].is_object()) continue;
        const json& artifact = winner["artifact"];
        if (artifact.value("arch", "cpu") == "cpu") continue;
        ++kernels;
        const int bytes = artifact.value("spill_store_bytes", 0) + artifact.value("spill_load_bytes", 0);
        if (bytes > 0) spilling += fmt::format("; {} spills {} bytes", entry.value("name", "?"), bytes);
      }
    }
  if (kernels == 0) {
    c.evidence = "no winner of the evolution is a GPU kernel";
    return c;
  }
  c.verdict = spilling.empty() ? CriterionVerdict::kMet : CriterionVerdict::kNotMet;
  c.evidence = fmt::format("of {} winners{}", kernels, spilling.empty() ? " none spills" : spilling);
  return c;
}

}  // namespace

std::vector<PeerLine> peer_lines(const std::filesystem::path& folder, const CampaignState& state) {
  std::vector<PeerLine> lines;
  const CampaignPhase* phase = state.find("baselines");
  if (!phase) return lines;
  for (const CampaignCommand& command : phase->commands) {
    const json result = result_of(folder, command);
    if (!result.is_object() || !result.contains("results") || !result["results"].is_array()) continue;
    for (const json& row : result["results"]) {
      if (!row.is_object() || !row.value("problem", json()).is_string()) continue;
      PeerLine line = line_of(row);
      if (line.ours_p50_us <= 0) continue;
      const auto same =
          std::find_if(lines.begin(), lines.end(), [&](const PeerLine& l) { return l.problem_id == line.problem_id; });
      if (same == lines.end()) lines.push_back(std::move(line));
      else if (line.speedup > 0 || same->speedup <= 0) *same = std::move(line);
    }
  }
  return lines;
}

std::vector<Criterion> judge_criteria(const std::filesystem::path& folder, const CampaignState& state) {
  const std::vector<PeerLine> lines = peer_lines(folder, state);
  return {enough_gains(lines, "10% or more over PyTorch SDPA on two problems", kGreatGain, 2),
          enough_gains(lines, "5% or more on a third", kGain, 3),
          p90_no_worse(lines),
          of_profiles(folder, state, "SM busy 70% or more", {"sm", "busy"},
                      [](double percent) { return percent >= kSmBusyPercent; }),
          no_spills(folder, state),
          of_profiles(folder, state, "no severe bank conflicts", {"bank", "conflict"},
                      [](double percent) { return percent < kSevereConflicts; })};
}

json criteria_json(const std::vector<Criterion>& criteria) {
  json out = json::array();
  for (const Criterion& c : criteria)
    out.push_back({{"criterion", c.name}, {"verdict", c.verdict}, {"evidence", c.evidence}});
  return out;
}

}  // namespace flashcore
