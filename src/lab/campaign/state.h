#pragma once
// What a campaign has done: campaign.json in its folder, written anew at every step. A kill loses the command in
// flight.

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/folder_lock.h"
#include "core/words.h"

namespace flashcore {

// kNotJudged: its verb or tool is missing, or could not judge; `reason` says what was lost. Never a pass.
enum class PhaseVerdict { kPassed, kFailed, kNotJudged };
template <>
struct WordsOf<PhaseVerdict> {
  static constexpr std::string_view what = "verdict of a phase";
  static constexpr std::pair<PhaseVerdict, std::string_view> table[] = {{PhaseVerdict::kPassed, "passed"},
                                                                        {PhaseVerdict::kFailed, "failed"},
                                                                        {PhaseVerdict::kNotJudged, "could not judge"}};
};

// kRunning in a file: the campaign was killed in this phase. --resume runs the commands of a kRunning or kInterrupted
// phase that have not ended, and those of a kDone phase that were cut for time, lacked something or had no quiet
// machine.
enum class PhaseStatus { kWaiting, kRunning, kInterrupted, kDone };
template <>
struct WordsOf<PhaseStatus> {
  static constexpr std::string_view what = "status of a phase";
  static constexpr std::pair<PhaseStatus, std::string_view> table[] = {{PhaseStatus::kWaiting, "waiting"},
                                                                       {PhaseStatus::kRunning, "running"},
                                                                       {PhaseStatus::kInterrupted, "interrupted"},
                                                                       {PhaseStatus::kDone, "done"}};
};

struct CampaignCommand {
  std::vector<std::string> argv = {};
  std::map<std::string, std::string> variables = {};  // of its environment, beside the campaign's
  std::string json = {}, log = {};                    // files of the campaign's folder; json: empty if it writes none
  std::string problem = {};                           // that it is for alone; empty: all
  std::string cause = {}, field = {};  // of a targeted trial: what was ranked, and the parameter that it changes
  std::string started_at = {};
  double seconds = 0;
  int exit_code = -1;  // -1: it has not ended by itself
  PhaseVerdict verdict = PhaseVerdict::kNotJudged;
  std::string reason = {};
  std::string answer = {};   // of a targeted trial that judged: the word of its SpeedVerdict
  bool out_of_time = false;  // it was ended at its phase's limit: --resume runs it again
  bool lacked = false;       // a program, package or library that it needs was missing: so it does then
  bool busy = false;         // it could not judge, and other programs kept the machine busy: so it does then
  bool kept = false;         // of an earlier attempt at its phase; not saved
};

struct CampaignPhase {
  std::string name = {};
  PhaseStatus status = PhaseStatus::kWaiting;
  PhaseVerdict verdict = PhaseVerdict::kNotJudged;
  std::string reason = {};  // why it did not pass, and what was lost
  std::string started_at = {};
  double seconds = 0, budget_seconds = 0;
  std::vector<CampaignCommand> commands = {};
};

// The line that began the campaign, or that went on with it.
struct CampaignSession {
  std::vector<std::string> argv = {};  // empty: a state of an earlier version does not say it
  std::string began_at = {};
};

struct CampaignState {
  std::string version, device, device_key, suite;
  std::string source_hash;            // of kernels/source_hash.h: the whole tree's; empty in states that lack it
  std::vector<std::string> problems;  // ids
  std::vector<std::string> names;     // of these in their suite; empty in states that lack them
  std::vector<CampaignSession> sessions;
  double budget_seconds = 0;
  std::optional<double> price_per_hour;  // of the machine, as the last session has it
  std::string started_at, ended_at;
  bool interrupted = false;
  std::vector<CampaignPhase> phases;
  const CampaignPhase* find(std::string_view name) const;
  // Of a problem, by its id: as the suite names it; the id where nothing does.
  std::string name_of(const std::string& id) const;
};

inline constexpr const char* kCampaignSchema = "flashcore.campaign/1";
inline constexpr const char* kCampaignFile = "campaign.json";
// The user's tuned table as it was before the campaign.
inline constexpr const char* kTunedBefore = "tuned_before.json";

nlohmann::json state_json(const CampaignState& state);
// Error kBadInput naming the file, what is wrong with it and what to do.
CampaignState parse_state(const std::string& text, const std::string& origin);
// None if the folder holds no campaign.
std::optional<CampaignState> load_state(const std::filesystem::path& folder);
void save_state(const std::filesystem::path& folder, const CampaignState& state);

// The folder for one campaign alone, while the lock lives. Error kBadInput if another process has it.
std::unique_ptr<FolderLock> lock_campaign_folder(const std::filesystem::path& folder);

// Of the files that the campaign's commands wrote, having judged, and that the page is made of: those that are gone,
// and those of JSON that cannot be read.
struct MissingFile {
  std::string name;                 // in the folder
  std::vector<std::string> phases;  // that wrote it
  bool damaged = false;             // it is there, and cut short or no JSON
};
inline constexpr const char* kCampaignStore = "trials.db";
std::vector<MissingFile> missing_files(const std::filesystem::path& folder, const CampaignState& state);

// A command's JSON; null if there is none that can be read.
nlohmann::json result_of(const std::filesystem::path& folder, const CampaignCommand& command);
// Of the JSON of a gate that passed: how many problems it did not time. Identical code passes without a race, so that
// "passed" alone would read as measured. Empty if it timed all.
std::string untimed_in(const nlohmann::json& gate);

}  // namespace flashcore
