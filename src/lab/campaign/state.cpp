#include "lab/campaign/state.h"

#include <algorithm>

#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "lab/campaign/fields.h"

namespace flashcore {
namespace {

using nlohmann::json;

json command_json(const CampaignCommand& c) {
  return {{"argv", c.argv},       {"variables", c.variables},
          {"json", c.json},       {"log", c.log},
          {"problem", c.problem}, {"cause", c.cause},
          {"field", c.field},     {"started_at", c.started_at},
          {"seconds", c.seconds}, {"exit_code", c.exit_code},
          {"verdict", c.verdict}, {"reason", c.reason},
          {"answer", c.answer},   {"out_of_time", c.out_of_time},
          {"lacked", c.lacked},   {"busy", c.busy}};
}

CampaignCommand command_from(const json& j) {
  CampaignCommand c;
  j.at("argv").get_to(c.argv);
  j.at("json").get_to(c.json);
  j.at("log").get_to(c.log);
  j.at("problem").get_to(c.problem);
  j.at("cause").get_to(c.cause);
  j.at("field").get_to(c.field);
  j.at("started_at").get_to(c.started_at);
  j.at("seconds").get_to(c.seconds);
  j.at("exit_code").get_to(c.exit_code);
  j.at("verdict").get_to(c.verdict);
  j.at("reason").get_to(c.reason);
  // States of earlier versions lack these.
  c.variables = j.value("variables", std::map<std::string, std::string>());
  c.answer = j.value("answer", "");
  c.out_of_time = j.value("out_of_time", false);
  c.lacked = j.value("lacked", false);
  c.busy = j.value("busy", false);
  return c;
}

json phase_json(const CampaignPhase& p) {
  json commands = json::array();
  for (const CampaignCommand& c : p.commands) commands.push_back(command_json(c));
  const bool done = p.status == PhaseStatus::kDone;
  return {{"name", p.name},
          {"status", p.status},
          {"verdict", done ? json(p.verdict) : json()},
          {"reason", p.reason},
          {"started_at", p.started_at},
          {"seconds", p.seconds},
          {"budget_seconds", p.budget_seconds},
          {"commands", commands}};
}

json sessions_json(const std::vector<CampaignSession>& sessions) {
  json all = json::array();
  for (const CampaignSession& session : sessions)
    all.push_back({{"argv", session.argv}, {"began_at", session.began_at}});
  return all;
}

// States of earlier versions have the first line alone, or none.
std::vector<CampaignSession> sessions_from(const json& j, const std::string& started_at) {
  if (!j.contains("sessions")) return {{j.value("argv", std::vector<std::string>()), started_at}};
  std::vector<CampaignSession> sessions;
  for (const json& session : j.at("sessions"))
    sessions.push_back({session.at("argv").get<std::vector<std::string>>(), session.at("began_at").get<std::string>()});
  return sessions;
}

CampaignPhase phase_from(const json& j) {
  CampaignPhase p;
  j.at("name").get_to(p.name);
  j.at("status").get_to(p.status);
  if (!j.at("verdict").is_null()) j.at("verdict").get_to(p.verdict);
  j.at("reason").get_to(p.reason);
  j.at("started_at").get_to(p.started_at);
  j.at("seconds").get_to(p.seconds);
  j.at("budget_seconds").get_to(p.budget_seconds);
  for (const json& command : j.at("commands")) p.commands.push_back(command_from(command));
  return p;
}

// Of the program's verbs; others take --store to read it, or the file of calibrations beside it.
bool adds_trials(const CampaignCommand& command) {
  const std::string_view verb = command.argv.size() > 1 ? std::string_view(command.argv[1]) : "";
  return verb == "bench" || verb == "tune" || verb == "ab" || verb == "-m";
}

}  // namespace

const CampaignPhase* CampaignState::find(std::string_view name) const {
  const auto found = std::find_if(phases.begin(), phases.end(), [&](const CampaignPhase& p) { return p.name == name; });
  return found == phases.end() ? nullptr : &*found;
}

std::string CampaignState::name_of(const std::string& id) const {
  const auto found = std::find(problems.begin(), problems.end(), id);
  const auto at = static_cast<std::size_t>(found - problems.begin());
  return at < names.size() && !names[at].empty() ? names[at] : id;
}

json state_json(const CampaignState& s) {
  json phases = json::array();
  for (const CampaignPhase& p : s.phases) phases.push_back(phase_json(p));
  return {{"schema", kCampaignSchema},
          {"version", s.version},
          {"source_hash", s.source_hash},
          {"device", s.device},
          {"device_key", s.device_key},
          {"suite", s.suite},
          {"problems", s.problems},
          {"names", s.names},
          {"sessions", sessions_json(s.sessions)},
          {"budget_seconds", s.budget_seconds},
          {"price_per_hour", s.price_per_hour ? json(*s.price_per_hour) : json()},
          {"started_at", s.started_at},
          {"ended_at", s.ended_at},
          {"interrupted", s.interrupted},
          {"phases", phases}};
}

CampaignState parse_state(const std::string& text, const std::string& origin) {
  constexpr const char* kAdvice = "move it away to begin anew, or give --out another folder";
  try {
    const json j = parse_json(text, origin);
    if (!j.is_object() || j.value("schema", json()) != kCampaignSchema)
      throw_bad_input("'{}' is no campaign's state: its schema is not {}; {}", origin, kCampaignSchema, kAdvice);
    CampaignState s;
    j.at("version").get_to(s.version);
    s.source_hash = j.value("source_hash", "");
    j.at("device").get_to(s.device);
    j.at("device_key").get_to(s.device_key);
    j.at("suite").get_to(s.suite);
    j.at("problems").get_to(s.problems);
    s.names = j.value("names", std::vector<std::string>());
    j.at("budget_seconds").get_to(s.budget_seconds);
    s.price_per_hour = lenient::number(j, "price_per_hour");
    j.at("started_at").get_to(s.started_at);
    s.sessions = sessions_from(j, s.started_at);
    j.at("ended_at").get_to(s.ended_at);
    j.at("interrupted").get_to(s.interrupted);
    for (const json& phase : j.at("phases")) s.phases.push_back(phase_from(phase));
    return s;
  } catch (const json::exception& e) {
    throw_bad_input("'{}' is a damaged campaign's state ({}); {}", origin, e.what(), kAdvice);
  } catch (const Error& e) {
    if (std::string_view(e.what()).find(kAdvice) != std::string_view::npos) throw;
    throw_bad_input("'{}' is a damaged campaign's state ({}); {}", origin, e.what(), kAdvice);
  }
}

std::optional<CampaignState> load_state(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kCampaignFile;
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return std::nullopt;
  return parse_state(read_file(file), file.string());
}

std::unique_ptr<FolderLock> lock_campaign_folder(const std::filesystem::path& folder) {
  auto lock = std::make_unique<FolderLock>(folder, "campaign.lock");
  if (!lock->held())
    throw_bad_input("--out {}: another campaign is running in this folder; wait until it has ended, or give another",
                    folder.string());
  return lock;
}

void save_state(const std::filesystem::path& folder, const CampaignState& state) {
  write_file_atomically(folder / kCampaignFile,
                        state_json(state).dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

std::vector<MissingFile> missing_files(const std::filesystem::path& folder, const CampaignState& state) {
  std::vector<MissingFile> missing;
  const auto look_for = [&](const std::string& name, const CampaignPhase& phase, const CampaignCommand* wrote_json) {
    std::error_code error;
    if (name.empty()) return;
    const bool is_there = std::filesystem::exists(folder / name, error);
    if (is_there && (!wrote_json || result_of(folder, *wrote_json).is_object())) return;
    auto known = std::find_if(missing.begin(), missing.end(), [&](const MissingFile& m) { return m.name == name; });
    if (known == missing.end()) known = missing.insert(missing.end(), {name, {}, is_there});
    if (known->phases.empty() || known->phases.back() != phase.name) known->phases.push_back(phase.name);
  };
  for (const CampaignPhase& phase : state.phases)
    for (const CampaignCommand& command : phase.commands) {
      if (command.exit_code != 0 && command.exit_code != 1) continue;
      if (phase.name == "baselines" || phase.name == "profile" || phase.name == "inversion")
        look_for(command.json, phase, &command);
      if (adds_trials(command)) look_for(kCampaignStore, phase, nullptr);
    }
  return missing;
}

json result_of(const std::filesystem::path& folder, const CampaignCommand& command) {
  std::error_code error;
  if (command.json.empty() || !std::filesystem::exists(folder / command.json, error)) return nullptr;
  try {
    return parse_json(read_file(folder / command.json), command.json);
  } catch (const Error&) {
    return nullptr;  // cut short, or no JSON: it says nothing
  }
}

std::string untimed_in(const json& gate) {
  const json& results = lenient::list(gate, "results");
  const auto untimed = std::count_if(results.begin(), results.end(), [](const json& result) {
    return lenient::flag(result, "same_code").value_or(false);
  });
  if (untimed == 0) return "";
  return fmt::format("{} of {} problems not timed: dispatch's choice is the baseline's machine code", untimed,
                     results.size());
}

}  // namespace flashcore
