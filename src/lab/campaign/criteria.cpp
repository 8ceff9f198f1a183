#include "lab/campaign/criteria.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/campaign/fields.h"
#include "lab/campaign/ranking.h"
#include "lab/diagnose/profile.h"
#include "lab/record/machine.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr double kGreatGain = 1.10, kGain = 1.05;
// An interval whose ends are so many times apart, or a median so many times the fastest tenth, is of samples that
// waited for something. On a machine that does not, intervals are a few percent wide.
constexpr double kTooWide = 2;

const std::vector<std::string>& sdpa_backends() {
  static const std::vector<std::string> names = {"sdpa", "flash", "efficient", "cudnn", "math"};
  return names;
}

double time_of(const json& row, const char* quantile) {
  return lenient::number(lenient::field(row, "time_us"), quantile).value_or(0);
}

// Of all sessions that the row rests on.
std::string busy_doubt(const json& row) {
  double others = lenient::number(lenient::field(row, "environment"), "others_busy").value_or(-1), cores = 0;
  for (const json& session : lenient::list(row, "measured")) {
    others = std::max(others, lenient::number(session, "others_busy").value_or(-1));
    cores = std::max(cores, lenient::number(session, "cores").value_or(0));
  }
  if (others < kBusyCores) return "";
  return fmt::format("other programs kept {:.1f}{} busy", others,
                     cores > 0 ? fmt::format(" of {:.0f} cores", cores) : " cores");
}

// `p10_us`: 0 where the document says none.
std::string wide_doubt(const std::string& whose, double p10_us, double p50_us) {
  if (p10_us <= 0 || p50_us <= kTooWide * p10_us) return "";
  return fmt::format("half of {} samples took {:.1f} times its fastest tenth or more", whose, p50_us / p10_us);
}

PeerLine line_of(const json& row, bool on_cpu) {
  PeerLine line;
  double peer_p10_us = 0;
  line.problem_id = lenient::text(row, "problem");
  line.name = lenient::text(row, "name", line.problem_id);
  line.ours_p50_us = time_of(row, "p50");
  line.ours_p90_us = time_of(row, "p90");
  for (const json& peer : lenient::list(row, "peers")) {
    const auto& names = sdpa_backends();
    const std::string name = lenient::text(peer, "name");
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    const double p50 = time_of(peer, "p50");
    const json& ci = lenient::list(peer, "ci95");
    const auto speedup = lenient::number(peer, "speedup");
    if (p50 <= 0 || !speedup || ci.size() != 2 || !ci[0].is_number() || !ci[1].is_number()) continue;
    if (line.speedup > 0 && *speedup >= line.speedup) continue;
    line.peer = name;
    line.peer_p50_us = p50;
    peer_p10_us = time_of(peer, "p10");
    line.peer_p90_us = time_of(peer, "p90");
    line.speedup = *speedup;
    line.ci95_low = ci[0].get<double>();
    line.ci95_high = ci[1].get<double>();
  }
  // A GPU's clock does not see what a host's other programs do.
  if (on_cpu) line.doubt = busy_doubt(row);
  line.busy = !line.doubt.empty();
  if (line.doubt.empty()) line.doubt = wide_doubt("our", time_of(row, "p10"), line.ours_p50_us);
  if (line.doubt.empty()) line.doubt = wide_doubt(line.peer + "'s", peer_p10_us, line.peer_p50_us);
  if (line.doubt.empty() && line.speedup > 0 && line.ci95_high > kTooWide * line.ci95_low)
    line.doubt = fmt::format("the interval from {:.3f} to {:.3f} is too wide", line.ci95_low, line.ci95_high);
  return line;
}

// " (tiny: other programs kept 1.6 of 2 cores busy; ...)"
std::string doubts_of(const std::vector<PeerLine>& lines) {
  std::string all;
  for (const PeerLine& l : lines)
    if (l.speedup > 0 && !l.doubt.empty()) all += fmt::format("{}{}: {}", all.empty() ? " (" : "; ", l.name, l.doubt);
  return all.empty() ? "" : all + ")";
}

Criterion enough_gains(const std::vector<PeerLine>& lines, std::size_t problems, std::string name, double factor,
                       std::ptrdiff_t wanted) {
  Criterion c{std::move(name), CriterionVerdict::kNotJudged, ""};
  const auto timed = std::count_if(lines.begin(), lines.end(), [](const PeerLine& l) { return l.speedup > 0; });
  const auto is_sure = [&](const PeerLine& l) { return l.doubt.empty() && l.ci95_low >= factor; };
  const auto is_doubtful = [](const PeerLine& l) { return l.speedup > 0 && !l.doubt.empty(); };
  const auto surely = std::count_if(lines.begin(), lines.end(), is_sure);
  const auto doubtful = std::count_if(lines.begin(), lines.end(), is_doubtful);
  const auto maybe = std::count_if(lines.begin(), lines.end(),
                                   [&](const PeerLine& l) { return is_doubtful(l) || l.ci95_high >= factor; });
  if (timed == 0) {
    c.evidence = "no problem was timed beside PyTorch's scaled_dot_product_attention";
    return c;
  }
  const auto all = std::max(static_cast<std::ptrdiff_t>(problems), timed);
  if (all < wanted) {
    c.evidence = fmt::format("the campaign has {} of the {} problems that it needs", all, wanted);
    return c;
  }
  // What was never timed could be any of those that are wanted.
  const auto untimed = all - timed;
  c.verdict = surely >= wanted            ? CriterionVerdict::kMet
              : maybe + untimed >= wanted ? CriterionVerdict::kNotJudged
                                          : CriterionVerdict::kNotMet;
  c.evidence = fmt::format("{} of {} problems are that much faster with their whole 95% interval", surely, timed);
  if (c.verdict == CriterionVerdict::kNotJudged && maybe > surely + doubtful)
    c.evidence += fmt::format("; of {} more the interval straddles it", maybe - surely - doubtful);
  if (doubtful > 0) c.evidence += fmt::format("; of {} the times decide nothing", doubtful) + doubts_of(lines);
  if (c.verdict == CriterionVerdict::kNotJudged && untimed > 0)
    c.evidence += fmt::format("; {} of {} problems were not timed", untimed, problems);
  for (const PeerLine& l : lines)
    if (is_sure(l))
      c.evidence +=
          fmt::format("; {} {:.3f} [{:.3f}, {:.3f}] over {}", l.name, l.speedup, l.ci95_low, l.ci95_high, l.peer);
  return c;
}

Criterion p90_no_worse(const std::vector<PeerLine>& lines) {
  Criterion c{"p90 no worse than PyTorch's", CriterionVerdict::kNotJudged, ""};
  int judged = 0;
  bool doubtful = false;
  std::string worse;
  for (const PeerLine& l : lines) {
    // Only of those whose speed-up is claimed.
    if (l.ci95_low < kGain || l.peer_p90_us <= 0 || l.ours_p90_us <= 0) continue;
    doubtful = doubtful || !l.doubt.empty();
    if (!l.doubt.empty()) continue;
    ++judged;
    if (l.ours_p90_us > l.peer_p90_us)
      worse += fmt::format("; {} {:.2f} us against {:.2f} us", l.name, l.ours_p90_us, l.peer_p90_us);
  }
  const std::string doubts = doubtful ? "; of others the times decide nothing" + doubts_of(lines) : "";
  if (judged == 0) {
    c.evidence = "no problem has a speed-up whose p90 could be compared" + doubts;
    return c;
  }
  c.verdict = !worse.empty() ? CriterionVerdict::kNotMet
              : doubtful     ? CriterionVerdict::kNotJudged
                             : CriterionVerdict::kMet;
  c.evidence = fmt::format("of {} problems with a speed-up of 5% or more{}", judged,
                           worse.empty() ? " none has a worse p90" : worse) +
               doubts;
  return c;
}

// Every profile must meet its target of the indicator. One that misses it is enough; one that lacks it leaves it open.
Criterion of_profiles(const std::filesystem::path& folder, const CampaignState& state, std::string name,
                      std::string_view indicator) {
  Criterion c{std::move(name), CriterionVerdict::kNotJudged, ""};
  const std::vector<ProfileMetric> metrics = metrics_of_profiles(folder, state, indicator);
  const CampaignPhase* phase = state.find("profile");
  if (metrics.empty()) {
    c.evidence = "no profile has the metric";
    if (phase && !phase->reason.empty()) c.evidence += ": " + phase->reason;
    return c;
  }
  // The phase records a timeline, too.
  const auto profiles = static_cast<std::size_t>(std::count_if(
      phase->commands.begin(), phase->commands.end(),
      [](const CampaignCommand& command) { return command.argv.size() > 1 && command.argv[1] == "profile"; }));
  const bool missed = std::any_of(metrics.begin(), metrics.end(), [](const ProfileMetric& m) { return !m.met; });
  if (missed) c.verdict = CriterionVerdict::kNotMet;
  else if (metrics.size() >= profiles) c.verdict = CriterionVerdict::kMet;
  for (const ProfileMetric& m : metrics)
    c.evidence += fmt::format("{}{} of {}: {:.4g}{}{}", c.evidence.empty() ? "" : "; ", indicator,
                              state.name_of(m.problem_id), m.value, m.unit.empty() ? "" : " ", m.unit);
  if (metrics.size() < profiles)
    c.evidence += fmt::format("; {} of {} profiles lack it", profiles - metrics.size(), profiles);
  return c;
}

// Of all kernels of a winner.
double spilled_bytes(const json& artifact) {
  double bytes = lenient::number(artifact, "spill_store_bytes").value_or(0) +
                 lenient::number(artifact, "spill_load_bytes").value_or(0);
  for (const json& kernel : lenient::list(artifact, "more_kernels")) bytes += spilled_bytes(kernel);
  return bytes;
}

Criterion no_spills(const std::filesystem::path& folder, const CampaignState& state) {
  Criterion c{"no spills", CriterionVerdict::kNotJudged, ""};
  int kernels = 0;
  std::string spilling;
  if (const CampaignPhase* phase = state.find("evolution"))
    for (const CampaignCommand& command : phase->commands) {
      const json document = result_of(folder, command);
      for (const json& entry : lenient::list(document, "results")) {
        const json& artifact = lenient::field(lenient::field(entry, "winner"), "artifact");
        if (!artifact.is_object() || lenient::text(artifact, "arch", "cpu") == "cpu") continue;
        ++kernels;
        if (const double bytes = spilled_bytes(artifact); bytes > 0)
          spilling += fmt::format("; {} spills {:.0f} bytes", lenient::text(entry, "name", "?"), bytes);
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
    const json document = result_of(folder, command);
    for (const json& row : lenient::list(document, "results")) {
      PeerLine line = line_of(row, state.device == "cpu");
      if (line.problem_id.empty() || line.ours_p50_us <= 0) continue;
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
  const std::size_t problems = state.problems.size();
  return {enough_gains(lines, problems, "10% or more over PyTorch SDPA on two problems", kGreatGain, 2),
          enough_gains(lines, problems, "5% or more on a third", kGain, 3),
          p90_no_worse(lines),
          of_profiles(folder, state, "SM busy 70% or more", kSmBusyIndicator),
          no_spills(folder, state),
          of_profiles(folder, state, "no severe bank conflicts", kBankPassesIndicator)};
}

json criteria_json(const std::vector<Criterion>& criteria) {
  json out = json::array();
  for (const Criterion& c : criteria)
    out.push_back({{"criterion", c.name}, {"verdict", c.verdict}, {"evidence", c.evidence}});
  return out;
}

}  // namespace flashcore
