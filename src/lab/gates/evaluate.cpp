#include "lab/gates/evaluate.h"

#include "core/environment_error.h"
#include "core/error.h"
#include "core/parallel.h"
#include "device/compiler.h"
#include "lab/gates/gates.h"
#include "lab/record/checks.h"
#include "lab/record/freshness.h"
#include "lab/record/wrong_on_purpose.h"

namespace flashcore {
namespace {

using nlohmann::json;

// A compiler's log is kept to this many bytes: the first errors matter, the template backtrace after them does not.
constexpr std::size_t kMaxLog = 4000;

void fail(Trial& trial, Verdict verdict, Ended ended) {
  trial.ended = ended;
  trial.message = verdict.reason;
  trial.gates.push_back(std::move(verdict));
}

// One candidate's way through the gates; each step returns false when it ended the trial.
class Evaluation {
 public:
  Evaluation(Device& device, const EvaluateRequest& request, const std::function<void(Gate)>& stage, Trial& trial)
      : device_(device), limits_(device.info().limits), request_(request), stage_(stage), trial_(trial) {}

  void run() {
    if (valid() && compile() && resources() && correctness() && request_.time)
      limits_.emulated ? count() : performance();
    // Whatever it was let past for.
    if (resource_fault_.empty() || trial_.ended != Ended::kPassed) return;
    trial_.ended = Ended::kResource;
    trial_.message = resource_fault_;
  }
  Gate gate() const { return gate_; }
  TrialSeconds seconds() const { return clock_.read(); }

 private:
  void enter(Gate gate) {
    gate_ = gate;
    clock_.enter(gate);
    if (stage_) stage_(gate);
  }
  void pass(json evidence = nullptr, std::string reason = "") {
    trial_.gates.push_back({gate_, GateStatus::kPassed, std::move(reason), std::move(evidence)});
  }

  bool valid() {
    enter(Gate::kValid);
    try {
      if (is_wrong_on_purpose(request_.candidate)) throw_bad_input("{} {}", request_.candidate, kWrongIsNoCandidate);
      request_.problem.validate();
      ours_.candidate = parse_candidate(request_.candidate, request_.problem, limits_);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kBadInput) throw;
      fail(trial_, {gate_, GateStatus::kFailed, e.what(), nullptr}, Ended::kInvalid);
      return false;
    }
    trial_.family = ours_.candidate.family->name();
    trial_.config = ours_.candidate.family->space().print(ours_.candidate.config);
    pass();
    return true;
  }

  bool compile() {
    enter(Gate::kCompile);
    try {
      ours_.artifact = compile_candidate(ours_.candidate, request_.problem, limits_, request_.use_cache);
    } catch (const CompileError& e) {
      fail(trial_, {gate_, GateStatus::kFailed, e.what(), {{"log", e.log().substr(0, kMaxLog)}}}, Ended::kCompileError);
      return false;
    }
    trial_.artifact = ours_.artifact;
    trial_.artifact->cubin.clear();
    pass({{"compile_ms", ours_.artifact.compile_ms},
          {"from_cache", ours_.artifact.from_cache},
          {"code_hash", ours_.artifact.code_hash}},
         ours_.candidate.family->kind() == DeviceKind::kCpu ? "built in" : "");
    return true;
  }

  bool resources() {
    enter(Gate::kResource);
    Verdict verdict = judge_resources(ours_.artifact, limits_);
    if (verdict.status == GateStatus::kFailed && request_.past_resources) {
      resource_fault_ = verdict.reason;
    } else if (verdict.status == GateStatus::kFailed) {
      fail(trial_, std::move(verdict), Ended::kResource);
      return false;
    }
    trial_.gates.push_back(std::move(verdict));
    return true;
  }

  bool correctness() {
    enter(Gate::kCorrectness);
    Verdict verdict = judge_correctness(device_, shared_oracles(), request_, ours_, trial_);
    if (verdict.status != GateStatus::kPassed) {
      fail(trial_, std::move(verdict), Ended::kIncorrect);
      return false;
    }
    trial_.gates.push_back(std::move(verdict));
    trial_.ended = Ended::kPassed;
    return true;
  }

  // An emulated GPU has no time; its counters are reported instead.
  void count() {
    enter(Gate::kCounters);
    pass(device_.counters(), "counted over one launch; an emulated GPU has no time");
  }

  void performance() {
    enter(Gate::kPerformance);
    std::optional<CompiledCandidate> incumbent;
    if (request_.incumbent) {
      incumbent = compiled_candidate(parse_candidate(*request_.incumbent, request_.problem, limits_), request_.problem,
                                     limits_, request_.use_cache);
    }
    const std::string ours = execution_identity(ours_, request_.problem, limits_);
    std::optional<std::string> twin;
    if (incumbent && ours == execution_identity(*incumbent, request_.problem, limits_))
      twin = incumbent->candidate.print();
    else if (const auto found = request_.timed.find(ours);
             found != request_.timed.end() && request_.phase == Phase::kSearch)
      twin = found->second;
    if (!is_on(Check::kIdenticalCode)) twin.reset();
    if (twin) {
      trial_.comparison = Comparison{*twin, 1, 1, 1, SpeedVerdict::kSame, 0};
      trial_.comparison->margin = request_.margin;
      // Nothing to race; but a held-out or bench trial still needs a time of its own.
      if (request_.phase == Phase::kSearch) {
        pass({{"code_hash", ours_.artifact.code_hash}},
             "SAME by construction: identical code and launch as " + *twin + "; not timed");
        return;
      }
      incumbent.reset();
    }
    Verdict verdict =
        judge_performance(device_, shared_oracles(), request_, ours_, incumbent ? &*incumbent : nullptr, trial_);
    if (verdict.status != GateStatus::kPassed) trial_.message = verdict.reason;
    trial_.gates.push_back(std::move(verdict));
  }

  Device& device_;
  const DeviceLimits& limits_;
  const EvaluateRequest& request_;
  const std::function<void(Gate)>& stage_;
  Trial& trial_;
  CompiledCandidate ours_;
  Gate gate_ = Gate::kStart;
  std::string resource_fault_;  // of a candidate that went on in spite of it
  GateClock clock_;
};

}  // namespace

Trial blank_trial(const DeviceInfo& device, const EvaluateRequest& request) {
  Trial trial;
  trial.created_at = now_iso8601();
  trial.phase = request.phase;
  trial.suite = request.suite;
  trial.problem_name = request.problem_name;
  trial.problem = request.problem;
  trial.device = device;
  const auto colon = request.candidate.find(':');
  trial.family = request.candidate.substr(0, colon);
  if (colon != std::string::npos) trial.config = request.candidate.substr(colon + 1);
  trial.source_hash = source_hash_of(request.candidate, request.problem, device.limits);
  trial.launch_hash = launch_hash_of(request.candidate, request.problem, device.limits);
  trial.seed = request.seed;
  trial.machine.cores = hardware_threads();
  trial.seconds.emplace();
  trial.machine.variables = repro_variables();
  return trial;
}

Trial evaluate(Device& device, const EvaluateRequest& request, const std::function<void(Gate)>& stage) {
  const PatchScope patches(request.patches);
  Trial trial = blank_trial(device.info(), request);
  Evaluation evaluation(device, request, stage, trial);
  try {
    evaluation.run();
  } catch (const DeviceFault&) {
    throw;
  } catch (const std::exception& e) {
    // What went wrong here is not the candidate's verdict: no compiler, no memory, a broken invariant of ours.
    trial.timing.reset();
    trial.comparison.reset();
    const bool machine = is_environment_error(e);
    fail(trial, {evaluation.gate(), GateStatus::kError, machine ? environment_message(e) : e.what(), nullptr},
         machine ? Ended::kEnvironment : Ended::kError);
  }
  trial.seconds = evaluation.seconds();
  return trial;
}

}  // namespace flashcore
