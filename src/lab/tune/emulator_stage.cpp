#include "lab/tune/emulator_stage.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "lab/harness/patch_reach.h"

namespace flashcore {
namespace {

// Of fp64 reference work: all rows of a problem of this size.
constexpr double kEmulatorReferenceFlops = 2e9;

// About 128 to 192, or up to `most`, with the remainder modulo 64 that decides how tiles are cut.
std::int64_t emulated_length(std::int64_t length, std::int64_t most) {
  if (length <= most) return length;
  const std::int64_t rest = length % 64;
  return rest == 0 ? most : most - 64 + rest;
}

std::optional<std::int64_t> emulated_window(std::optional<std::int64_t> bound, std::int64_t length) {
  if (!bound || *bound * 2 <= length) return bound;
  return length / 3 + *bound % 16;
}

Verdict skipped_because(std::string why) {
  return {Gate::kEmulator, GateStatus::kSkipped, "not emulated: " + std::move(why), nullptr};
}

}  // namespace

PlacedProblem emulated_problem(const PlacedProblem& problem) {
  PlacedProblem small = problem;
  const std::int64_t group = problem.group_size();
  small.batch = std::min<std::int64_t>(problem.batch, problem.ragged() ? 3 : 1);
  small.heads_kv = std::min<std::int64_t>(problem.heads_kv, group > 1 ? 1 : 2);
  small.heads_q = small.heads_kv * group;
  const bool decode = problem.seqlen_q <= 16;
  small.seqlen_q = emulated_length(problem.seqlen_q, 192);
  small.seqlen_kv =
      problem.seqlen_q == problem.seqlen_kv ? small.seqlen_q : emulated_length(problem.seqlen_kv, decode ? 512 : 192);
  // Which of them is the longer one decides where a mask lies.
  const std::int64_t gap = std::clamp<std::int64_t>(problem.seqlen_kv - problem.seqlen_q, -64, 64);
  if (gap > 0 && small.seqlen_kv <= small.seqlen_q) small.seqlen_kv = small.seqlen_q + gap;
  if (gap < 0 && small.seqlen_kv >= small.seqlen_q) small.seqlen_q = small.seqlen_kv - gap;
  small.mask.left = emulated_window(problem.mask.left, small.seqlen_kv);
  small.mask.right = emulated_window(problem.mask.right, small.seqlen_kv);
  return small;
}

EmulatorStage::EmulatorStage(std::string executable, double seconds)
    : executable_(std::move(executable)), seconds_(seconds) {}

// Empty if the worker of the emulated `arch` runs.
std::string EmulatorStage::why_not_started(int arch) {
  if (worker_ && arch_ == arch) return "";
  worker_.reset();
  try {
    auto worker = std::make_unique<Worker>(fmt::format("emulator:sm_{}", arch), executable_);
    if (cancelled_) worker->cancel_when(cancelled_);
    worker->device();
    worker_ = std::move(worker);
    arch_ = arch;
    return "";
  } catch (const Cancelled&) {
    throw;
  } catch (const Error& e) {  // an architecture that the emulator does not know, no compiler
    if (e.kind() != ErrorKind::kEnvironment && e.kind() != ErrorKind::kBadInput) throw;
    return e.what();
  }
}

// A config that the patch alone allows has no unpatched kernel, and all of the time.
double EmulatorStage::seconds_for(const EvaluateRequest& small, const Patch& patch) {
  EvaluateRequest unpatched = small;
  unpatched.candidate = patch.family + small.candidate.substr(patch.family_name().size());
  unpatched.patches.clear();
  const std::string key = fmt::format("sm_{} {} {}", arch_, small.problem.id(), unpatched.candidate);
  auto found = unpatched_seconds_.find(key);
  if (found == unpatched_seconds_.end()) {
    const auto start = std::chrono::steady_clock::now();
    const Trial trial = worker_->evaluate(unpatched, seconds_);
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    found = unpatched_seconds_.emplace(key, trial.ended == Ended::kPassed ? took : seconds_).first;
  }
  return std::min(seconds_, kSecondsBeside + kTimesUnpatched * found->second);
}

Verdict EmulatorStage::judge(const EvaluateRequest& request, const DeviceLimits& limits, Ended& ended) {
  const Patch* patch = patch_of(request.patches, request.candidate);
  FC_CHECK(patch != nullptr);
  if (const PatchReach reach = reach_of(*patch); !reach.not_emulated.empty())
    return skipped_because(reach.not_emulated);
  EvaluateRequest small = request;
  small.problem = emulated_problem(request.problem);
  try {
    small.problem.validate();
  } catch (const Error& e) {
    return skipped_because(fmt::format("{} has no small form: {}", request.problem.id(), e.what()));
  }
  small.problem_name = small.problem.id();
  small.phase = Phase::kCheck;
  small.incumbent.reset();
  small.timed.clear();
  small.time = false;
  small.max_reference_flops = kEmulatorReferenceFlops;
  ask_quick_gate(small);
  if (std::string why = why_not_started(limits.arch); !why.empty()) return skipped_because(std::move(why));
  Trial trial;
  double seconds = seconds_;
  try {
    seconds = seconds_for(small, *patch);
    trial = worker_->evaluate(small, seconds);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kEnvironment) throw;
    return skipped_because(e.what());  // no sandbox, no compiler
  }
  if (trial.ended == Ended::kPassed)
    return {Gate::kEmulator,
            GateStatus::kPassed,
            fmt::format("right on the emulator at {}", small.problem.id()),
            {{"problem", small.problem.id()}}};
  // A slow machine, or a kernel of much work: deadlocks are found as such, and end as crashes.
  if (trial.ended == Ended::kTimeout)
    return skipped_because(fmt::format("{} took longer than {:.3g} s: {}", small.problem.id(), seconds, trial.message));
  // A config for large problems may not be one for the small one.
  if (trial.ended == Ended::kInvalid || trial.ended == Ended::kEnvironment) return skipped_because(trial.message);
  ended = trial.ended;
  const auto stopped = std::find_if(trial.gates.begin(), trial.gates.end(),
                                    [](const Verdict& v) { return v.status != GateStatus::kPassed; });
  nlohmann::json evidence = {{"problem", small.problem.id()}};
  if (stopped != trial.gates.end()) {
    evidence["gate"] = to_string(stopped->gate);
    if (stopped->evidence.is_object() && stopped->evidence.contains("check"))
      evidence["check"] = stopped->evidence["check"];
  }
  return {Gate::kEmulator, GateStatus::kFailed,
          fmt::format("on the emulator at {}: {}", small.problem.id(), trial.message), std::move(evidence)};
}

}  // namespace flashcore
