#pragma once
// A campaign's course: each phase's commands (command.h), its state written at every step.

#include <functional>

#include "lab/campaign/command.h"
#include "lab/campaign/criteria.h"
#include "lab/campaign/plan.h"

namespace flashcore {

// Of its commands: failed if any did; passed if all did that a phase needs; else not judged.
void judge_phase(CampaignPhase& phase);

struct CampaignResult {
  CampaignState state;
  std::vector<Criterion> criteria;
};
// `earlier`: a state to go on from; phases that are done are not run again, but for what was cut for time, lacked
// something or had no quiet machine, and the phases that read its results. Writes campaign.json, summary.md,
// criteria.json, ledger.json and tuned_diff.json into the folder. `told` hears of each phase before and after it.
CampaignResult run_campaign(const CampaignOptions& options, std::optional<CampaignState> earlier,
                            const std::function<void(const CampaignState&, const CampaignPhase&)>& told,
                            const std::function<bool()>& stop, const RunCommand& run = run_command);

}  // namespace flashcore
