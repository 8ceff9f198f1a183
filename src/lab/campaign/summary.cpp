#include "lab/campaign/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "core/trusted_path.h"
#include "kernels/family.h"
#include "kernels/tuned_table.h"
#include "lab/campaign/fields.h"
#include "lab/campaign/ranking.h"
#include "lab/campaign/speedups.h"
#include "lab/compare/crosscheck.h"
#include "lab/gates/pair.h"
#include "lab/record/machine.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr std::size_t kShownCauses = 6;

// A cell of a table, or a line: no markup of whoever wrote the text.
std::string plain(std::string text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n' || c == '\r') out += ' ';
    else if (c == '|' || c == '<' || c == '[' || c == '`' || c == '*' || c == '_') out += std::string("\\") + c;
    else out += c;
  }
  return out;
}

// Reasons in words ("throttle_reasons", "throttles" of each sample), or a number of throttled samples.
bool tells_throttling(const std::string& key, const json& value) {
  if (key == "throttled" || key == "throttled_samples") return value.is_number() && value.get<double>() > 0;
  if (key != "throttle_reasons" && key != "throttle" && key != "throttles") return false;
  if (value.is_string()) return lowers_clocks(value.get<std::string>());
  return value.is_array() && std::any_of(value.begin(), value.end(), [](const json& reason) {
           return reason.is_string() && lowers_clocks(reason.get<std::string>());
         });
}

bool says_throttled(const json& j) {
  if (j.is_object())
    for (const auto& [key, value] : j.items())
      if (tells_throttling(key, value) || says_throttled(value)) return true;
  return j.is_array() && std::any_of(j.begin(), j.end(), says_throttled);
}

// As dispatch reads it: one in the cache's folder that others may write counts for nothing.
json user_table() {
  std::error_code error;
  const auto path = user_table_path();
  if (!std::filesystem::exists(path, error)) return json::object();
  const char* named = std::getenv("FLASHCORE_TUNED");
  if ((!named || !*named) && !why_untrusted(path).empty()) return json::object();
  return parse_json(read_file(path), path.string());
}

// "mission (b8_h16_s2048_d128_bf16_causal), b1_h1_s64_d64_fp32": said once, and all that follows has the name.
std::string names_and_ids(const CampaignState& state) {
  std::string all;
  for (const std::string& id : state.problems) {
    const std::string name = state.name_of(id);
    all += (all.empty() ? "" : ", ") + (name == id ? id : fmt::format("{} ({})", name, id));
  }
  return plain(all);
}

// Of each problem, and below: the times that decide nothing, and why.
std::string results_section(const SpeedupTable& table) {
  std::string out = fmt::format(
      "\n## Results\n\n{}\n\n| problem | peer | peer's p50 / p90 | ours | speed-up [95%] |\n| --- | --- | ---: | ---: "
      "| "
      "---: |\n",
      table.words);
  std::string doubts;
  bool busy = false;
  for (const SpeedupRow& row : table.rows) {
    out += fmt::format("| {} | {} | {} | {} | {} |\n", plain(row.line.name), plain(row.peer), row.peer_times,
                       row.our_times, row.speedup);
    busy = busy || row.line.busy;
    if (!row.line.doubt.empty()) doubts += fmt::format("- {}: {}\n", plain(row.line.name), plain(row.line.doubt));
  }
  if (doubts.empty()) return out;
  return out + fmt::format("\n{}These times decide no success criterion:\n\n{}",
                           busy ? "**The machine was busy.** " : "", doubts);
}

// All that the campaign took, and what of it the trials account for; `economics` wrote the latter.
std::string cost_section(const std::filesystem::path& folder, const CampaignState& state) {
  const auto money = [&](double seconds) {
    return state.price_per_hour ? fmt::format(", money {:.4g}", seconds / 3600 * *state.price_per_hour) : "";
  };
  double all = 0;
  for (const CampaignPhase& phase : state.phases) all += phase.seconds;
  std::string out =
      fmt::format("\n## Cost\n\nThe phases took {:.2f} minutes of the machine{}.\n", all / 60, money(all));
  const CampaignPhase* artefacts = state.find("artefacts");
  if (!artefacts) return out;
  for (const CampaignCommand& command : artefacts->commands) {
    const json document = result_of(folder, command);
    for (const json& account : lenient::list(document, "results")) {
      const json& total = lenient::field(account, "total");
      const double device = lenient::number(total, "device_seconds").value_or(0),
                   host = lenient::number(total, "host_seconds").value_or(0);
      out += fmt::format("Of these {:.2f} device minutes and {:.2f} host minutes{} were of trials on {} ({}).\n",
                         device / 60, host / 60, money(device + host), plain(lenient::text(account, "name")),
                         plain(command.json));
    }
  }
  return out;
}

// Null where a document has none.
const json& first_result(const json& document) {
  static const json none;
  const json& results = lenient::list(document, "results");
  return results.empty() ? none : results.front();
}

}  // namespace

std::vector<std::string> throttled_phases(const std::filesystem::path& folder, const CampaignState& state) {
  std::vector<std::string> names;
  for (const CampaignPhase& phase : state.phases)
    if (std::any_of(phase.commands.begin(), phase.commands.end(),
                    [&](const CampaignCommand& c) { return says_throttled(result_of(folder, c)); }))
      names.push_back(phase.name);
  return names;
}

json campaign_ledger(const std::filesystem::path& folder, const CampaignState& state) {
  json trials = json::array();
  if (const CampaignPhase* phase = state.find("trials"))
    for (const CampaignCommand& command : phase->commands) {
      const json document = result_of(folder, command);
      const json& result = first_result(document);
      json row = {{"problem", command.problem}, {"cause", command.cause}, {"field", command.field},
                  {"argv", command.argv},       {"verdict", nullptr},     {"why", command.reason}};
      for (const char* key : {"baseline", "candidate", "verdict", "speedup", "ci95", "sentence"})
        if (const json& value = lenient::field(result, key); !value.is_null()) row[key] = value;
      trials.push_back(std::move(row));
    }
  return {{"schema", "flashcore.campaign_ledger/1"}, {"trials", trials}};
}

std::vector<std::string> findings_of(const std::filesystem::path& folder, const CampaignState& state) {
  std::vector<std::string> findings;
  for (const CampaignPhase& phase : state.phases) {
    if (phase.status != PhaseStatus::kDone || phase.verdict == PhaseVerdict::kPassed) continue;
    findings.push_back(fmt::format("{}: {}: {}", phase.name, phase.verdict, phase.reason));
  }
  const auto throttled = throttled_phases(folder, state);
  if (!throttled.empty())
    findings.push_back(fmt::format(
        "the device lowered its clocks during {}: times of those phases are of a hot machine; interleaved comparisons "
        "hold, absolute times do not",
        fmt::join(throttled, ", ")));
  if (const CampaignPhase* phase = state.find("evolution"))
    for (const CampaignCommand& command : phase->commands) {
      const json document = result_of(folder, command);
      for (const json& result : lenient::list(document, "results")) {
        const json& winner = lenient::field(result, "winner");
        const json& comparison = lenient::field(winner, "comparison");
        const json& speedup = lenient::field(comparison, "speedup");
        if (!speedup.is_number()) continue;
        findings.push_back(fmt::format("evolution of {}: {}:{} is {:.3f} times as fast as what dispatch picked",
                                       state.name_of(lenient::text(result, "problem")), lenient::text(winner, "family"),
                                       lenient::text(winner, "config"), speedup.get<double>()));
      }
    }
  for (const InversionAnswer& a : inversion_answers(folder, state))
    findings.push_back(fmt::format("inversion of {}: {}", state.name_of(a.problem_id), a.answer));
  std::size_t shown = 0;
  for (const RankedCause& cause : ranking_of(folder, state)) {
    if (cause.from != "profile") continue;  // the inversion's is in its answer
    if (++shown > kShownCauses) break;
    findings.push_back(fmt::format("{} of {}: {}{}{}", cause.from, state.name_of(cause.problem_id), cause.name,
                                   cause.sentence.empty() ? "" : ": ", cause.sentence));
  }
  const json ledger = campaign_ledger(folder, state);
  for (const json& trial : ledger["trials"])
    if (trial["verdict"] == to_string(SpeedVerdict::kFaster))
      findings.push_back("trials: " + lenient::text(trial, "sentence"));
  if (const CampaignPhase* phase = state.find("crosscheck"))
    for (const CampaignCommand& command : phase->commands) {
      const json document = result_of(folder, command);
      for (const json& method : lenient::list(first_result(document), "methods"))
        if (lenient::text(method, "agreement") == to_string(Agreement::kDisagrees))
          findings.push_back(fmt::format("crosscheck: {} disagrees: {}", lenient::text(method, "method", "?"),
                                         lenient::text(method, "cause")));
    }
  return findings;
}

void keep_tuned_table(const std::filesystem::path& folder) {
  write_file_atomically(folder / kTunedBefore, user_table().dump(2) + "\n");
}

std::optional<json> kept_tuned_table(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kTunedBefore;
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return std::nullopt;
  try {
    return parse_tuned_table(read_file(file), file.string());
  } catch (const Error&) {
    return std::nullopt;
  }
}

json tuned_table_diff(const std::filesystem::path& folder) {
  std::error_code error;
  json before = json::object();
  if (std::filesystem::exists(folder / kTunedBefore, error)) {
    // What was measured is worth more than this file, which somebody may have damaged.
    try {
      before = parse_json(read_file(folder / kTunedBefore), (folder / kTunedBefore).string());
    } catch (const Error& e) {
      return {{"unknown", e.what()}};
    }
  }
  return json::diff(before, user_table());
}

std::string campaign_summary(const std::filesystem::path& folder, const CampaignState& state,
                             const std::vector<Criterion>& criteria) {
  std::string out = fmt::format(
      "# Campaign on {}\n\nflashcore {}, {}{} to {}, budget of the last session {:.0f} s.{}\n\nProblems: {}.\n",
      plain(state.device_key), state.version, state.suite.empty() ? "" : fmt::format("suite {}, ", plain(state.suite)),
      state.started_at, state.ended_at.empty() ? "(not ended)" : state.ended_at, state.budget_seconds,
      state.interrupted ? " **Interrupted.**" : "", names_and_ids(state));
  out += "\n## Phases\n\n| phase | verdict | seconds | budgeted s | why |\n| --- | --- | ---: | ---: | --- |\n";
  for (const CampaignPhase& p : state.phases)
    out += fmt::format("| {} | {} | {:.1f} | {:.0f} | {} |\n", p.name,
                       p.status == PhaseStatus::kDone          ? to_string(p.verdict)
                       : p.status == PhaseStatus::kInterrupted ? "interrupted"
                                                               : "not reached",
                       p.seconds, p.budget_seconds, plain(p.reason));
  out +=
      "\nA share is of what was left of the budget when the phase began. A resumed campaign shares a budget of its own "
      "out over what was still to do, so that shares of two sessions do not add up to one budget.\n";
  out += results_section(speedup_table(folder, state));
  out += cost_section(folder, state);
  out += "\n## Success criteria\n\n| criterion | verdict | evidence |\n| --- | --- | --- |\n";
  for (const Criterion& c : criteria)
    out += fmt::format("| {} | {} | {} |\n", plain(c.name), c.verdict, plain(c.evidence));
  out += "\n## Top findings\n\n";
  const auto findings = findings_of(folder, state);
  for (const std::string& finding : findings) out += "- " + plain(finding) + "\n";
  if (findings.empty()) out += "None.\n";
  return out;
}

}  // namespace flashcore
