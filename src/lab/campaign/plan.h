#pragma once
// The phases of a campaign, and the commands of each: verbs of this program, run as child processes.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/suite.h"
#include "device/device.h"
#include "lab/campaign/state.h"
#include "lab/measure/race.h"

namespace flashcore {

struct CampaignOptions {
  std::filesystem::path folder;
  std::string program;             // this one, as a path
  std::vector<std::string> argv;   // the line that asked for the campaign
  std::string python = "python3";  // that imports flashcore and, for peers, PyTorch
  DeviceInfo device;
  std::string suite;                        // as the verbs take it
  std::string problem;                      // the only one of it; empty: all
  Suite problems;                           // what those two come to
  std::string baseline;                     // of the regression gate; empty: recorded before the evolution
  std::string ledger;                       // as tune
  std::vector<std::string> stop_loss = {};  // tune's flags of it; none: no search is ended for its cost
  std::string price = {};                   // of an hour of the machine; empty: the account has no money
  double budget_seconds = 0;
  // --patience: of a phase's share, what its commands may take together before the one that runs is ended. Each has
  // kLeastLimitSeconds whatever those before it took.
  double hard_limit = 2;
  std::function<double()> now_seconds = steady_seconds;  // what shares and limits are measured by
};

struct PhasePlan {
  const char* name;
  double share;      // of the budget
  const char* lost;  // what is not known without it
  bool needs_time;   // an emulated GPU has none
  // Phases whose results it reads: after one of those has run again, so does it.
  std::vector<std::string_view> reads = {};
  // Measures with the tuned table as it was before the evolution, even when --resume runs this phase again afterwards.
  bool of_table_before = false;
};
// In order; shares add up to 1.
const std::vector<PhasePlan>& campaign_phases();
const PhasePlan& phase_plan(std::string_view name);
const PhasePlan* find_phase_plan(std::string_view name);  // null: a campaign of another version has it
// It measures time, and the device is an emulated GPU: it is not run, and could not judge.
bool is_timeless(std::string_view phase, const DeviceInfo& device);

// Of the phase `gate`: what its baseline is recorded in before the evolution, where the campaign was given none.
std::filesystem::path recorded_baseline(const CampaignOptions& options);

// With `seconds` for the phase. Later phases read what earlier ones wrote into the folder.
std::vector<CampaignCommand> commands_of(std::string_view phase, const CampaignOptions& options,
                                         const CampaignState& state, double seconds);

// A shorter campaign's phases get more than their share, so that its budget says nothing of how long it takes.
inline constexpr double kLeastBudgetSeconds = 120;
// Of a phase's share; and of a command before it is ended: to start a process and to open a GPU takes seconds.
inline constexpr double kLeastPhaseSeconds = 5, kLeastLimitSeconds = 30;

// Of the phases that are still to come each gets its share of what is left, and never less than a moment. One that the
// device gives no time to measure has none, so that its share goes to the others.
double seconds_for(const CampaignState& state, const DeviceInfo& device, std::string_view phase, double seconds_left);

}  // namespace flashcore
