#include "lab/verify/planted.h"

#include <algorithm>

#include "core/error.h"
#include "core/yaml_reader.h"
#include "device/compiler.h"
#include "lab/gates/gates.h"
#include "lab/process/worker.h"
#include "lab/record/checks.h"
#include "lab/tune/facts.h"
#include "lab/verify/embedded_planted.h"

namespace flashcore {
namespace {

Patch read_patch(const YamlReader& reader, const YAML::Node& node, const PlantedFault& fault) {
  Patch patch;
  patch.name = fault.name;
  patch.family = fault.candidate.substr(0, fault.candidate.find(':'));
  patch.trusted = true;  // our own corpus
  patch.replace = read_replacements(reader, node, "patch");
  return patch;
}

template <class Enum>
Enum word_at(const YamlReader& reader, const YAML::Node& node, const char* key) {
  const std::string word = reader.text(node, key, "a planted fault");
  return reader.locate(node[key], [&] { return parse_word<Enum>(word); });
}

PlantedFault read_fault(const YamlReader& reader, const YAML::Node& node) {
  constexpr const char* kSubject = "a planted fault";
  reader.check_keys(
      node, kSubject,
      {"name", "does", "on", "gate", "check", "ended", "candidate", "incumbent", "twin", "problem", "patch", "margin",
       "timeout_seconds", "max_reference_flops", "patterns", "escapes_without", "escapes_without_all", "slow"});
  PlantedFault fault;
  fault.name = reader.text(node, "name", kSubject);
  fault.does = reader.text(node, "does", kSubject);
  fault.on = reader.texts(node, "on", kSubject);
  fault.gate = word_at<Gate>(reader, node, "gate");
  if (node["check"]) fault.check = word_at<Check>(reader, node, "check");
  if (node["ended"]) fault.ended = word_at<Ended>(reader, node, "ended");
  fault.candidate = reader.text(node, "candidate", kSubject);
  fault.incumbent = reader.text_or(node, "incumbent", "");
  fault.twin = reader.text_or(node, "twin", "");
  const std::string problem = reader.text(node, "problem", kSubject);
  fault.problem = reader.locate(node["problem"], [&] { return PlacedProblem::parse(problem); });
  fault.margin = reader.number_or(node, "margin", fault.margin);
  fault.timeout_seconds = reader.number_or(node, "timeout_seconds", 0);
  fault.max_reference_flops = reader.number_or(node, "max_reference_flops", fault.max_reference_flops);
  for (const auto& [key, checks] : {std::pair("escapes_without", &fault.escapes_without),
                                    std::pair("escapes_without_all", &fault.escapes_without_all)})
    if (node[key])
      *checks =
          reader.locate_each(node, key, kSubject, [](const std::string& check) { return parse_word<Check>(check); });
  if (node["patterns"])
    fault.patterns = reader.locate_each(node, "patterns", kSubject,
                                        [](const std::string& name) { return parse_word<Pattern>(name); });
  else if (fault.problem.is_8bit())
    // What 8-bit kernels get wrong, N(0,1) alone may hide: P at its largest, sums that only grow.
    fault.patterns = patterns_of(fault.problem);
  if (node["slow"]) {
    if (reader.text(node, "slow", kSubject) != "true") reader.fail(node["slow"], "slow is true, or left out");
    fault.slow = true;
  }
  if (node["patch"]) fault.patch = read_patch(reader, node, fault);
  return fault;
}

// "sm80_fwd:block_m=64" of a patched kernel is "sm80_fwd+name:block_m=64".
std::string patched_text(const PlantedFault& fault, const std::string& text) {
  if (!fault.patch || text.empty()) return text;
  const std::size_t colon = std::min(text.find(':'), text.size());
  return fault.patch->family_name() + text.substr(colon);
}

}  // namespace

bool PlantedFault::runs_on(std::string_view where) const { return std::find(on.begin(), on.end(), where) != on.end(); }

std::vector<PlantedFault> parse_planted(std::string_view yaml, const std::string& origin) {
  const YamlReader reader(origin);
  const YAML::Node root = reader.parse(yaml);
  reader.check_keys(root, "the corpus", {"faults"});
  std::vector<PlantedFault> faults;
  for (const YAML::Node& node : reader.items(root, "faults", "the corpus", "{name, does, on, gate, ...}"))
    faults.push_back(read_fault(reader, node));
  return faults;
}

const std::vector<PlantedFault>& gpu_planted_faults() {
  static const std::vector<PlantedFault> faults = [] {
    std::vector<PlantedFault> all;
    for (const auto& [file, text] : embedded_planted())
      for (PlantedFault& fault : parse_planted(text, std::string(file))) all.push_back(std::move(fault));
    return all;
  }();
  return faults;
}

PlantedOutcome judge_planted(const PlantedFault& fault, const Trial& trial) {
  if (trial.ended == Ended::kEnvironment) return {false, trial.message, true};
  const auto stopped = std::find_if(trial.gates.begin(), trial.gates.end(), [](const Verdict& v) {
    return v.status == GateStatus::kFailed || v.status == GateStatus::kError;
  });
  if (stopped == trial.gates.end())
    return {false, fmt::format("it passed every gate ({}); {} should have caught it", trial.ended, fault.gate)};
  const std::string tripped = stopped->evidence.is_object() ? stopped->evidence.value("check", "") : "";
  if (stopped->gate != fault.gate)
    return {false, fmt::format("caught by {}, not by {}: {}", stopped->gate, fault.gate, trial.message)};
  // A crash or a hang leaves no evidence; how the trial ended stands for it.
  const bool died = trial.ended == Ended::kCrashed || trial.ended == Ended::kTimeout;
  if (fault.check && !died && tripped != to_string(*fault.check))
    return {false, fmt::format("caught by the check {}, not by {}: {}", tripped, *fault.check, trial.message)};
  if (fault.ended && trial.ended != *fault.ended)
    return {false, fmt::format("ended {}, not {}: {}", trial.ended, *fault.ended, trial.message)};
  return {true, trial.message.empty() ? stopped->reason : trial.message};
}

PlantedOutcome run_planted_compilation(const PlantedFault& fault, const std::string& arch) {
  const DeviceLimits limits = limits_of_arch(arch);
  const PatchScope scope(fault.patch ? std::vector<Patch>{*fault.patch} : std::vector<Patch>{});
  Trial trial;
  trial.problem = fault.problem;
  const auto compile = [&](const std::string& text) {
    const Candidate candidate = parse_candidate(patched_text(fault, text), fault.problem, limits);
    return std::pair(candidate, compile_candidate(candidate, fault.problem, limits));
  };
  try {
    const auto [candidate, artifact] = compile(fault.candidate);
    trial.gates.push_back({Gate::kCompile, GateStatus::kPassed, "", nullptr});
    trial.gates.push_back(judge_resources(artifact, limits));
    trial.message = trial.gates.back().reason;
    trial.ended = trial.gates.back().status == GateStatus::kPassed ? Ended::kPassed : Ended::kResource;
    if (!fault.twin.empty()) {
      const auto [twin, its_artifact] = compile(fault.twin);
      const auto inert = inert_fields(candidate.family->space(),
                                      {{candidate.config, artifact.code_hash}, {twin.config, its_artifact.code_hash}});
      if (!inert.empty()) {
        trial.message = fmt::format("'{}' never changed the code: an inert parameter", inert.front());
        trial.gates.push_back(
            {Gate::kTune, GateStatus::kFailed, trial.message, {{"check", to_string(Check::kInertParameters)}}});
        trial.ended = Ended::kResource;
      }
    }
  } catch (const CompileError& e) {
    trial.gates.push_back({Gate::kCompile, GateStatus::kFailed, e.what(), nullptr});
    trial.message = e.what();
    trial.ended = Ended::kCompileError;
  }
  return judge_planted(fault, trial);
}

PlantedOutcome run_planted(const PlantedFault& fault, const std::string& device, const std::string& worker_executable,
                           const std::function<bool()>& stop) {
  EvaluateRequest request;
  request.problem = fault.problem;
  request.problem_name = fault.problem.id();
  request.suite = "planted";
  request.candidate = patched_text(fault, fault.candidate);
  if (!fault.incumbent.empty()) request.incumbent = fault.incumbent;
  if (fault.patch) request.patches = {*fault.patch};
  request.phase = Phase::kCheck;
  request.patterns = fault.patterns;
  request.margin = fault.margin;
  request.max_seconds = 1;
  request.max_reference_flops = fault.max_reference_flops;
  request.time = fault.gate == Gate::kPerformance;
  Worker worker(device, worker_executable);
  worker.cancel_when(stop);
  return judge_planted(fault, worker.evaluate(request, fault.timeout_seconds));
}

}  // namespace flashcore
