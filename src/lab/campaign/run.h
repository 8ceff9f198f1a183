#pragma once
// A campaign's course: each phase's commands as child processes, its state written at every step.

#include <functional>
#include <map>

#include "lab/campaign/criteria.h"
#include "lab/campaign/plan.h"

namespace flashcore {

// How a command ended. `exit_code` -1: it was ended, or could not be started.
struct CommandEnd {
  int exit_code = -1;
  std::string how = {};   // where it did not exit by itself: "was still running after 20 s and was ended"
  std::string said = {};  // the last line of its stderr
  bool cancelled = false;
  bool out_of_time = false;  // ended after the seconds that it had
  bool no_program = false;   // there is none of that name to start
};
// `variables`: of its environment, beside those of this process.
using Variables = std::map<std::string, std::string>;
using RunCommand =
    std::function<CommandEnd(const std::vector<std::string>& argv, const Variables& variables,
                             const std::filesystem::path& log, double seconds, const std::function<bool()>& stop)>;
// As a child process, its output in `log`. Stopped or out of time it gets SIGINT, and a few seconds to save what it
// has.
CommandEnd run_command(const std::vector<std::string>& argv, const Variables& variables,
                       const std::filesystem::path& log, double seconds, const std::function<bool()>& stop);

// What a command's end means, and the reason in words. `document`: what it wrote; null if it wrote none.
void judge_command(CampaignCommand& command, const CommandEnd& end, std::string_view phase,
                   const nlohmann::json& document = nullptr);
// Of its commands: failed if any did; passed if all did that a phase needs; else not judged.
void judge_phase(CampaignPhase& phase);

struct CampaignResult {
  CampaignState state;
  std::vector<Criterion> criteria;
};
// `earlier`: a state to go on from; phases that are done are not run again, but for what was cut for time or lacked
// something, and the phases that read its results. Writes campaign.json, summary.md, criteria.json, ledger.json and
// tuned_diff.json into the folder. `told` hears of each phase before and after it.
CampaignResult run_campaign(const CampaignOptions& options, std::optional<CampaignState> earlier,
                            const std::function<void(const CampaignState&, const CampaignPhase&)>& told,
                            const std::function<bool()>& stop, const RunCommand& run = run_command);

}  // namespace flashcore
