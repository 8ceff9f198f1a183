#include "lab/record/funnel_stage.h"

namespace flashcore {

FunnelStage funnel_stage_of(const Trial& trial) {
  if (!passed_gate(trial, Gate::kValid)) return FunnelStage::kProposed;
  // A CPU candidate's compile gates are skipped, which does not stop it.
  const auto stopped = [&](Gate gate) {
    const Verdict* verdict = find_gate(trial, gate);
    return verdict != nullptr && verdict->status != GateStatus::kPassed && verdict->status != GateStatus::kSkipped;
  };
  const bool judged = find_gate(trial, Gate::kCorrectness) != nullptr;
  if (stopped(Gate::kCompile) || stopped(Gate::kResource)) return FunnelStage::kValid;
  if (!judged && !passed_gate(trial, Gate::kCompile)) return FunnelStage::kValid;
  // Passed the gate, but its timed launches left wrong outputs: not correct.
  if (!passed_gate(trial, Gate::kCorrectness) || trial.ended == Ended::kIncorrect) return FunnelStage::kCompiled;
  if (!is_ranked(trial)) return FunnelStage::kCorrect;
  return trial.comparison && trial.comparison->verdict == SpeedVerdict::kFaster ? FunnelStage::kLed
                                                                                : FunnelStage::kRaced;
}

}  // namespace flashcore
