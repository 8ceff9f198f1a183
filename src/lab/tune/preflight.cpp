#include "lab/tune/preflight.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/environment_error.h"
#include "core/error.h"
#include "device/compiler.h"
#include "lab/gates/evaluate.h"
#include "lab/gates/gates.h"
#include "lab/harness/patch_reach.h"
#include "lab/process/isolate.h"
#include "lab/process/worker.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr double kCompileSeconds = 120;
constexpr std::size_t kMaxPreflightLog = 4000;

void stop_at(Preflight& preflight, Verdict verdict, Ended ended) {
  preflight.ended = ended;
  preflight.message = verdict.reason;
  preflight.gates.push_back(std::move(verdict));
}

std::optional<bool> is_unpatched_code(const Candidate& candidate, const Artifact& artifact,
                                      const EvaluateRequest& request, const DeviceLimits& limits) {
  const Patch* patch = patch_of(request.patches, request.candidate);
  if (!patch) return std::nullopt;
  try {
    const Candidate unpatched = parse_candidate(patch->family + ":" + candidate.family->space().print(candidate.config),
                                                request.problem, limits);
    return compile_candidate(unpatched, request.problem, limits, request.use_cache).code_hash == artifact.code_hash;
  } catch (const Error&) {  // a config that the patch alone allows
  } catch (const CompileError&) {
  }
  return std::nullopt;
}

Preflight compile_here(const EvaluateRequest& request, const DeviceLimits& limits, bool compare_unpatched) {
  Preflight preflight;
  std::optional<Candidate> candidate;
  try {
    request.problem.validate();
    candidate = parse_candidate(request.candidate, request.problem, limits);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kBadInput) throw;
    stop_at(preflight, {Gate::kValid, GateStatus::kFailed, e.what(), nullptr}, Ended::kInvalid);
    return preflight;
  }
  preflight.candidate = candidate->print();
  preflight.gates.push_back({Gate::kValid, GateStatus::kPassed, "", nullptr});
  try {
    const Artifact artifact = compile_candidate(*candidate, request.problem, limits, request.use_cache);
    preflight.gates.push_back({Gate::kCompile, GateStatus::kPassed, "for " + artifact.arch, nullptr});
    Verdict verdict = judge_resources(artifact, limits);
    if (verdict.status == GateStatus::kPassed) preflight.gates.push_back(std::move(verdict));
    else stop_at(preflight, std::move(verdict), Ended::kResource);
    if (compare_unpatched && !preflight.stopped())
      preflight.is_unpatched_code = is_unpatched_code(*candidate, artifact, request, limits);
  } catch (const CompileError& e) {
    stop_at(preflight, {Gate::kCompile, GateStatus::kFailed, e.what(), {{"log", e.log().substr(0, kMaxPreflightLog)}}},
            Ended::kCompileError);
  } catch (const std::exception& e) {
    if (!is_environment_error(e)) throw;
    preflight.gates.push_back({Gate::kCompile, GateStatus::kSkipped, environment_message(e), nullptr});
  }
  return preflight;
}

}  // namespace

Preflight compile_only(const EvaluateRequest& request, const DeviceLimits& limits, const std::function<bool()>& stop,
                       bool compare_unpatched) {
  DeviceLimits real = limits;
  real.emulated = false;  // the GPU's own compiler
  Preflight preflight;
  GateClock clock;
  clock.enter(Gate::kCompile);
  bool answered = false;
  run_isolated(
      1, {.timeout_seconds = kCompileSeconds},
      [&](std::int64_t) {
        const Preflight found = compile_here(request, real, compare_unpatched);
        return dump_line({{"gates", found.gates},
                          {"ended", found.ended},
                          {"message", found.message},
                          {"candidate", found.candidate},
                          {"is_unpatched_code", found.is_unpatched_code ? json(*found.is_unpatched_code) : json()}});
      },
      [&](std::int64_t, const Isolated& result) {
        answered = true;
        if (!result.completed) {
          stop_at(preflight, {Gate::kCompile, GateStatus::kFailed, "the compiler: " + result.failure, nullptr},
                  Ended::kCompileError);
          return;
        }
        const json found = json::parse(result.output);
        preflight.gates = found.at("gates").get<std::vector<Verdict>>();
        preflight.ended = parse_word<Ended>(found.at("ended").get<std::string>());
        preflight.message = found.at("message").get<std::string>();
        preflight.candidate = found.at("candidate").get<std::string>();
        if (const json& same = found.at("is_unpatched_code"); !same.is_null())
          preflight.is_unpatched_code = same.get<bool>();
      },
      stop);
  if (!answered) throw Cancelled("stopped while a proposed kernel was compiled");
  preflight.seconds = clock.read();
  return preflight;
}

void judge_on_emulator(Preflight& preflight, EmulatorStage& emulator, const EvaluateRequest& request,
                       const DeviceLimits& limits) {
  GateClock clock;
  clock.enter(Gate::kEmulator);
  preflight.gates.push_back(emulator.judge(request, limits, preflight.ended));
  preflight.message = preflight.gates.back().reason;
  preflight.seconds += clock.read();
}

void stop_unless_emulated(Preflight& preflight, const Patch& patch) {
  const std::string why = reach_of(patch).not_emulated;
  if (why.empty()) return;
  stop_at(preflight,
          {Gate::kCorrectness, GateStatus::kSkipped,
           fmt::format("not judged: the changed code never ran: {}; a GPU (device cuda) judges it", why), nullptr},
          Ended::kInconclusive);
}

Trial stopped_trial(const DeviceInfo& device, const EvaluateRequest& request, const Preflight& preflight) {
  Trial trial = blank_trial(device, request);
  trial.gates = preflight.gates;
  trial.ended = preflight.ended;
  trial.message = preflight.message;
  trial.seconds = preflight.seconds;
  if (const std::size_t colon = preflight.candidate.find(':'); colon != std::string::npos)
    trial.config = preflight.candidate.substr(colon + 1);
  return trial;
}

void note_emulator_verdict(Trial& trial, const Verdict& verdict) {
  const auto at = std::find_if(trial.gates.begin(), trial.gates.end(),
                               [](const Verdict& v) { return v.gate >= Gate::kCorrectness; });
  trial.gates.insert(at, verdict);
}

}  // namespace flashcore
