#include "lab/tune/submission.h"

#include <algorithm>

#include "core/error.h"
#include "core/foreign_text.h"
#include "device/sandbox/sandbox.h"
#include "kernels/embedded.h"
#include "lab/harness/patch_reach.h"
#include "lab/record/checks.h"
#include "lab/tune/proposal.h"

namespace flashcore {
namespace {

constexpr std::size_t kQuotedAnswer = 200;
constexpr double kSubmissionReferenceFlops = 2e9, kRaceSeconds = 1.5;
constexpr const char* kUnpatchedCode =
    "the machine code is the unpatched kernel's under this config; give a config in which the patch is used, unless it "
    "changes names and comments alone";

bool on_gpu_family(const std::string& candidate) {
  return family_by_name(candidate.substr(0, candidate.find(':'))).kind() == DeviceKind::kCuda;
}

void refuse(Submission& submission, const std::string& why, const char* check) {
  submission.ended = Ended::kInvalid;
  submission.message = why;
  submission.gates.push_back({Gate::kValid, GateStatus::kFailed, why, {{"check", check}}});
}

void take(Submission& submission, const Preflight& preflight) {
  submission.gates.insert(submission.gates.end(), preflight.gates.begin(), preflight.gates.end());
  submission.ended = preflight.ended;
  submission.message = preflight.message;
}

const Verdict* gate_of(const Submission& submission, Gate gate) {
  const auto found =
      std::find_if(submission.gates.begin(), submission.gates.end(), [&](const Verdict& v) { return v.gate == gate; });
  return found == submission.gates.end() ? nullptr : &*found;
}

// The reason; empty if NVRTC compiled it, or if it is no kernel of a GPU.
std::string why_not_compiled(const Submission& submission) {
  const Verdict* compile = gate_of(submission, Gate::kCompile);
  return compile && compile->status == GateStatus::kSkipped ? compile->reason : "";
}

// The worker's verdicts that the compiler has not given already. An emulated GPU's artifact has the registers of no
// machine code: its resource gate passes whatever the kernel is.
void take_gates(Submission& submission, const Trial& trial) {
  const std::string not_compiled = why_not_compiled(submission);
  for (const Verdict& verdict : trial.gates) {
    const bool is_passed = verdict.status == GateStatus::kPassed;
    if (is_passed && gate_of(submission, verdict.gate)) continue;
    if (is_passed && verdict.gate == Gate::kResource && !not_compiled.empty())
      submission.gates.push_back({verdict.gate, GateStatus::kSkipped, "not compiled: " + not_compiled, nullptr});
    else submission.gates.push_back(verdict);
  }
}

}  // namespace

const Verdict* stopping_verdict(const Submission& submission) {
  const auto found = std::find_if(submission.gates.begin(), submission.gates.end(), [](const Verdict& v) {
    return v.status == GateStatus::kFailed || v.status == GateStatus::kError;
  });
  return found == submission.gates.end() ? nullptr : &*found;
}

SubmissionJudge::SubmissionJudge(SubmissionOptions options, std::function<bool()> stop)
    : options_(std::move(options)), stop_(std::move(stop)) {
  emulator_.cancel_when(stop_);
  // Errors of FLASHCORE_SOURCE and FLASHCORE_SANDBOX are thrown here: later they would be taken for the answer's.
  device_sources();
  sandbox::means();
  if (options_.compile_only) {
    device_.limits = limits_of_arch(options_.arch);
    device_.id = device_.key = device_.name = options_.arch;
    return;
  }
  worker_ = std::make_unique<Worker>(options_.device);
  worker_->cancel_when(stop_);
  device_ = worker_->device();
}

Submission SubmissionJudge::judge(const std::string& line) {
  Submission submission;
  submission.answer = excerpt(line, kQuotedAnswer);
  std::optional<Proposal> proposal;
  try {
    proposal = parse_proposal(line);
    if (!proposal) throw_bad_input("\"done\" is no candidate; submit a config or a patch");
    submission.candidate = proposal->candidate;
    std::optional<PatchScope> scope;
    if (proposal->patch) {
      scope.emplace(std::vector<Patch>{*proposal->patch});
      submission.notes = reach_of(*proposal->patch).outside;
    }
    judge_candidate(proposal->candidate, proposal->patch, submission);
  } catch (const RefusedSource& e) {
    refuse(submission, e.what(), std::string(to_string(Check::kDeviceCode)).c_str());
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kBadInput) throw;
    refuse(submission, e.what(), "proposal");
  }
  return submission;
}

void SubmissionJudge::judge_candidate(const std::string& candidate, const std::optional<Patch>& patch,
                                      Submission& submission) {
  EvaluateRequest request;
  request.spec() = options_.spec();
  request.problem = options_.problem.problem;
  request.problem_name = options_.problem.name;
  request.suite = "submit";
  request.candidate = candidate;
  request.phase = Phase::kCheck;
  request.max_reference_flops = kSubmissionReferenceFlops;
  if (patch) request.patches = {*patch};
  ask_full_gate(request);
  const DeviceLimits& limits = device_.limits;
  if (on_gpu_family(candidate) && limits.kind != DeviceKind::kCuda) {
    submission.ended = Ended::kEnvironment;
    submission.is_of_other_device = true;
    submission.message =
        fmt::format("{} is a kernel of GPUs, and {} is none; judge it with --device emulator", candidate, device_.id);
    return;
  }
  TrialSeconds before;
  if (on_gpu_family(candidate)) {
    const Preflight compiled = compile_only(request, limits, stop_, patch.has_value());
    before = compiled.seconds;
    take(submission, compiled);
    if (!compiled.candidate.empty()) submission.candidate = compiled.candidate;
    submission.is_unpatched_code = compiled.is_unpatched_code;
    if (compiled.is_unpatched_code.value_or(false)) submission.notes.push_back(kUnpatchedCode);
    if (compiled.stopped()) {
      if (!options_.compile_only) submission.trial = stopped_trial(device_, request, compiled);
      return;
    }
  }
  if (const std::string why = why_not_compiled(submission); !why.empty() && !options_.compile_only)
    submission.notes.push_back("the compiler and the resource gate were skipped: " + why);
  if (options_.compile_only) {
    const bool judged = gate_of(submission, Gate::kResource) != nullptr;
    submission.ended = judged ? Ended::kPassed : Ended::kEnvironment;
    if (!judged)
      submission.message = submission.gates.empty() ? "a CPU family is compiled with the program; submit it to a CPU"
                                                    : submission.gates.back().reason;
    return;
  }
  if (patch && limits.kind == DeviceKind::kCuda && !limits.emulated) {
    Preflight emulated;
    emulated.seconds = before;
    emulated.candidate = submission.candidate;
    judge_on_emulator(emulated, emulator_, request, limits);
    before = emulated.seconds;
    take(submission, emulated);
    if (emulated.gates.back().status == GateStatus::kSkipped) submission.notes.push_back(emulated.message);
    if (emulated.stopped()) {
      submission.trial = stopped_trial(device_, request, emulated);
      return;
    }
  }
  if (patch && limits.emulated) {
    Preflight seen;
    seen.seconds = before;
    seen.candidate = submission.candidate;
    stop_unless_emulated(seen, *patch);
    if (seen.stopped()) {
      take(submission, seen);
      seen.gates = submission.gates;
      submission.trial = stopped_trial(device_, request, seen);
      return;
    }
  }
  // An emulated GPU has no time, and needs nothing to compare with.
  request.time = !limits.emulated;
  request.max_seconds = kRaceSeconds;
  if (request.time) request.incumbent = dispatch(request.problem, device_).candidate.print();
  Trial trial = worker_->evaluate(request);
  if (trial.seconds) *trial.seconds += before;
  take_gates(submission, trial);
  if (!on_gpu_family(candidate)) submission.candidate = trial.candidate();
  submission.ended = trial.ended;
  submission.message = trial.message;
  if (limits.emulated && trial.ended == Ended::kPassed)
    submission.notes.push_back("an emulated GPU has no time: its speed was not judged");
  submission.trial = std::move(trial);
}

}  // namespace flashcore
