// What a proposer brings: its process, its kernels before a GPU meets them, its answers that were none.

#include <algorithm>

#include "device/sandbox/confine.h"
#include "kernels/family.h"
#include "lab/harness/patch_reach.h"
#include "lab/process/confined.h"
#include "lab/tune/problem.h"

namespace flashcore {

void ProblemTuner::add_proposer(std::vector<std::string>& notes) {
  ProposerCommand command{*run_.options.proposer, ""};
  if (run_.options.confine_proposer) {
    proposer_folder_.emplace();
    command.writes = proposer_folder_->path().string();
    const ConfinementReport report = describe_confinement(command.writes, sandbox::landlock_version());
    notes.push_back("the proposer is confined: " + report.confined);
    notes.push_back("the proposer is not kept from: " + report.left_open);
  }
  arms_.push_back(make_proposer_arm(command, searched_, problem_, run_.worker.device(), notes, run_.stop,
                                    [this] { return seconds_left(kSearchShare); }));
}

// Somebody else's kernel costs no GPU second before the compiler, the resource gate and the emulator have passed it.
const Trial& ProblemTuner::judge_patched(const EvaluateRequest& request) {
  if (run_.progress) {
    TuneProgress progress = progress_at("trying");
    progress.trying = request.candidate;
    progress.most_seconds = std::max(default_timeout_seconds(request), EmulatorStage::kSeconds);
    run_.progress(progress);
  }
  const Patch* patch = patch_of(request.patches, request.candidate);
  const bool unseen = limits_.emulated && !reach_of(*patch).not_emulated.empty();
  if (limits_.kind != DeviceKind::kCuda || (limits_.emulated && !unseen)) return run_and_store(request, "search");
  Preflight preflight = compile_only(request, limits_, run_.stop);
  if (unseen && !preflight.stopped()) stop_unless_emulated(preflight, *patch);
  if (!preflight.stopped()) judge_on_emulator(preflight, run_.emulator, request, limits_);
  if (!preflight.stopped()) return run_and_store(request, "search", &preflight);
  return keep_trial(stopped_trial(run_.worker.device(), request, preflight), "search");
}

void ProblemTuner::keep_rejections(std::size_t arm) {
  constexpr std::size_t kKept = 20;
  TuneResult::Arm& outcome = entry_.arms[arm];
  for (const Rejection& r : arms_[arm]->take_rejections()) {
    ++outcome.rejected;
    if (outcome.rejections.size() < kKept) outcome.rejections.emplace_back(r.answer, r.reason);
  }
}

}  // namespace flashcore
