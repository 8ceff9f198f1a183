#include "lab/report/diagnoses.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "core/foreign_text.h"
#include "lab/campaign/fields.h"
#include "lab/campaign/plan.h"
#include "lab/diagnose/profile.h"
#include "lab/diagnose/timeline.h"
#include "lab/invert/invert.h"
#include "lab/record/machine.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr const char* kNoTimelineInCampaign =
    "No timeline: this campaign recorded none. On a GPU, or an emulated one, a campaign records the first of the "
    "profiled problems whose kernel has marks.";

DiagnosisList* list_of(Diagnoses& diagnoses, const json& document) {
  const std::string schema = lenient::text(document, "schema");
  return schema == kProfileSchema    ? &diagnoses.profiles
         : schema == kInvertSchema   ? &diagnoses.inversions
         : schema == kTimelineSchema ? &diagnoses.timelines
                                     : nullptr;
}

void take_results(DiagnosisList& list, const json& document) {
  for (const json& result : lenient::list(document, "results")) list.results.push_back(result);
}

// A relative link: nothing in a folder's name may become a scheme or a query of it.
std::string percent_encoded(const std::string& path) {
  std::string out;
  for (const char c : path) {
    const bool plain =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string_view("-._~/").find(c) != std::string_view::npos;
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

std::string link_to(const std::filesystem::path& file, const std::filesystem::path& page_folder) {
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return "";
  return percent_encoded(
      std::filesystem::absolute(file).lexically_relative(std::filesystem::absolute(page_folder)).generic_string());
}

std::string after_flag(const std::vector<std::string>& argv, std::string_view flag) {
  const auto at = std::find(argv.begin(), argv.end(), flag);
  return at == argv.end() || at + 1 == argv.end() ? "" : *(at + 1);
}

std::string shell_line(std::vector<std::string> argv, const std::map<std::string, std::string>& variables = {}) {
  if (argv.size() > 1 && argv[1] != "-m") argv.front() = "flashcore";  // wherever it lay
  std::string line;
  for (const auto& [name, value] : variables)
    line += fmt::format("{}{}={}", line.empty() ? "" : " ", name, shell_quote(value));
  for (const std::string& word : argv) line += (line.empty() ? "" : " ") + shell_quote(word);
  return line;
}

CampaignLines lines_of(const CampaignState& state) {
  CampaignLines lines;
  lines.price_per_hour = state.price_per_hour;
  for (const CampaignSession& session : state.sessions) lines.sessions.push_back(shell_line(session.argv));
  for (const CampaignPhase& phase : state.phases) {
    for (const CampaignCommand& command : phase.commands)
      if (!command.started_at.empty()) lines.ran.push_back(shell_line(command.argv, command.variables));
    const PhasePlan* plan = find_phase_plan(phase.name);
    if (!plan || !plan->needs_time || phase.verdict == PhaseVerdict::kPassed) continue;
    lines.untimed.push_back(
        fmt::format("{}: {}", phase.name, phase.reason.empty() ? "the campaign ended before it" : phase.reason));
  }
  return lines;
}

// What a phase's commands of one verb left, and of those that left nothing the reason.
void take_phase(DiagnosisList& list, const char* what, const char* verb, const CampaignPhase* phase,
                const std::filesystem::path& folder) {
  if (phase == nullptr || phase->status == PhaseStatus::kWaiting) {
    list.missing.push_back(fmt::format("No {}: this campaign ended before it.", what));
    return;
  }
  for (const CampaignCommand& command : phase->commands) {
    if (command.argv.size() < 2 || command.argv[1] != verb) continue;
    const std::size_t before = list.results.size();
    take_results(list, result_of(folder, command));
    if (list.results.size() > before) continue;
    const char* const otherwise = command.started_at.empty() ? "this campaign ended before it" : "it left no result";
    list.missing.push_back(
        fmt::format("No {} of {}: {}.", what, command.problem, command.reason.empty() ? otherwise : command.reason));
  }
  if (list.results.empty() && list.missing.empty())
    list.missing.push_back(
        fmt::format("No {}: {}.", what, phase->reason.empty() ? "this campaign ran none" : phase->reason));
}

}  // namespace

void add_diagnosis(Diagnoses& diagnoses, const json& document, std::string_view origin) {
  DiagnosisList* const list = list_of(diagnoses, document);
  if (list == nullptr)
    throw_bad_input(
        "{}: its schema is '{}', and a page shows {}, {} and {}: give what `profile --json`, `invert --json` or "
        "`timeline --json` wrote",
        origin, excerpt(lenient::text(document, "schema")), kProfileSchema, kInvertSchema, kTimelineSchema);
  const std::size_t before = list->results.size();
  take_results(*list, document);
  if (list->results.size() == before) list->missing.push_back(fmt::format("{} holds no result.", origin));
}

Diagnoses diagnoses_of_campaign(const std::filesystem::path& folder, const CampaignState& state,
                                const std::filesystem::path& page_folder) {
  Diagnoses found;
  found.campaign = lines_of(state);
  found.speedups = speedup_table(folder, state);
  const CampaignPhase* const profile = state.find("profile");
  take_phase(found.profiles, "profile", "profile", profile, folder);
  take_phase(found.inversions, "inversion", "invert", state.find("inversion"), folder);
  const auto is_timeline = [](const CampaignCommand& c) { return c.argv.size() > 1 && c.argv[1] == "timeline"; };
  const bool ran = profile && profile->status != PhaseStatus::kWaiting;
  const auto command = ran ? std::find_if(profile->commands.begin(), profile->commands.end(), is_timeline)
                           : std::vector<CampaignCommand>::const_iterator{};
  if (ran && command == profile->commands.end()) {
    found.timelines.missing.push_back(kNoTimelineInCampaign);
    return found;
  }
  take_phase(found.timelines, "timeline", "timeline", profile, folder);
  if (ran) found.timeline_page = link_to(folder / after_flag(command->argv, "--html"), page_folder);
  return found;
}

}  // namespace flashcore
