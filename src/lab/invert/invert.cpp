#include "lab/invert/invert.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/source_hash.h"
#include "lab/process/worker.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr double kMinPairSeconds = 0.2;
constexpr int kMinInversionBlocks = 12, kMaxInversionBlocks = 400;

struct Run {
  const Variant* variant = nullptr;
  PlantedVariant planted;
  std::vector<PairOutcome> outcomes;

  bool goes_on() const {
    return planted.why_not.empty() && (outcomes.empty() || outcomes.back().ended == PairEnded::kMeasured);
  }
};

std::vector<Run> plan(const InvertOptions& options, const DeviceInfo& device) {
  const Problem& problem = options.problem.problem;
  const Candidate plain = parse_candidate(options.candidate, problem, device.limits);
  std::vector<Run> runs;
  for (const Variant& variant : variants()) {
    if (!options.variants.empty() &&
        std::find(options.variants.begin(), options.variants.end(), variant.name) == options.variants.end())
      continue;
    runs.push_back({&variant, plant(variant, plain, problem, device.limits), {}});
  }
  return runs;
}

EvaluateRequest plain_request(const InvertOptions& options, int process) {
  EvaluateRequest request;
  request.problem = options.problem.problem;
  request.problem_name = options.problem.name;
  request.suite = options.suite;
  request.candidate = options.candidate;
  request.phase = Phase::kBench;
  request.seed = seed_of_process(options.seed, process);
  request.time = false;
  if (process == 0) ask_full_gate(request);
  else ask_quick_gate(request);
  return request;
}

PairRequest inversion_request(const InvertOptions& options, const Run& run, int process, std::size_t variants,
                              bool counts) {
  PairRequest request;
  request.problem = options.problem.problem;
  request.problem_name = options.problem.name;
  request.suite = options.suite;
  request.baseline = options.candidate;
  request.candidate = run.planted.candidate;
  if (run.planted.patch) request.patches = {*run.planted.patch};
  request.wrong_on_purpose = run.variant->wrong_on_purpose;
  request.count = counts;
  ask_quick_gate(request);
  // The plain one has passed its gates in this process; a variant that computes the same passes them once.
  request.gates = !run.variant->wrong_on_purpose && process == 0;
  request.baseline_gates = false;
  request.past_resources = run.variant->past_resources;
  MeasureOptions& measure = request.measure;
  measure.spec() = options.spec();
  measure.seed = seed_of_process(options.seed, process);
  measure.min_blocks = kMinInversionBlocks;
  measure.max_blocks = kMaxInversionBlocks;
  measure.max_seconds =
      std::max(options.max_seconds / (options.processes * static_cast<double>(variants)), kMinPairSeconds);
  measure.target_half_width = kTargetHalfWidth;
  return request;
}

const json* counters_of(const Trial& trial) {
  const Verdict* verdict = find_gate(trial, Gate::kCounters);
  return verdict && verdict->evidence.is_object() ? &verdict->evidence : nullptr;
}

Sensitivity judge_run(const InvertOptions& options, Run& run, const DeviceLimits& limits) {
  const bool counts = limits.emulated;
  Variant variant = *run.variant;
  if (limits.kind == DeviceKind::kCpu && !variant.with_on_cpu.empty()) variant.with = variant.with_on_cpu;
  const std::string& candidate = run.planted.candidate;
  if (!run.planted.why_not.empty()) return no_sensitivity(variant, candidate, run.planted.why_not);
  if (counts) {
    const PairOutcome& outcome = run.outcomes.front();
    const json* plain = counters_of(outcome.baseline);
    const json* changed = counters_of(outcome.candidate);
    if (outcome.ended == PairEnded::kNotTimed && plain && changed)
      return sensitivity_of_counts(variant, candidate, *plain, *changed);
  }
  AbOptions pair;
  pair.spec() = options.spec();
  pair.problem = options.problem;
  pair.baseline = options.candidate;
  pair.candidate = candidate;
  pair.processes = options.processes;
  return sensitivity_of_times(variant, candidate, judge_ab(pair, std::move(run.outcomes)));
}

}  // namespace

InvertResult invert(const InvertOptions& options, const std::function<void(int, int, const std::string&)>& progress,
                    const std::function<bool()>& stop) {
  FC_CHECK(options.processes > 0);
  for (const std::string& name : options.variants) variant_by_name(name);
  InvertResult result;
  std::vector<Run> runs;
  bool counts = false;
  result.processes = options.processes;
  int done = 0;
  try {
    for (int process = 0; process < result.processes; ++process) {
      Worker worker(options.device, options.worker_executable);
      worker.cancel_when(stop);
      if (process == 0) {
        result.device = worker.device();
        runs = plan(options, result.device);
        counts = result.device.limits.emulated;
        if (counts) result.processes = 1;  // what is counted does not vary
      }
      const auto judged = static_cast<std::size_t>(
          std::count_if(runs.begin(), runs.end(), [](const Run& run) { return run.planted.why_not.empty(); }));
      const int total = result.processes * static_cast<int>(judged + 1);
      const auto tell = [&](const std::string& what) {
        if (progress) progress(done++, total, what);
      };
      tell("gates of " + options.candidate);
      const Trial plain = worker.evaluate(plain_request(options, process));
      if (plain.ended != Ended::kPassed) {
        result.why_not =
            fmt::format("{} did not pass its gates ({}): {}", options.candidate, plain.ended, plain.message);
        return result;
      }
      result.machine = plain.machine;
      for (Run& run : runs) {
        if (!run.goes_on()) continue;
        tell(std::string(run.variant->name));
        run.outcomes.push_back(worker.measure_pair(inversion_request(options, run, process, judged, counts)));
        if (run.outcomes.back().ended == PairEnded::kMeasured)
          result.environment = run.outcomes.back().candidate.environment;
        result.readings.push_back(run.outcomes.back().candidate.machine);
      }
    }
  } catch (const Cancelled&) {
    if (std::all_of(runs.begin(), runs.end(), [](const Run& run) { return run.outcomes.empty(); })) throw;
    result.stopped = true;
    for (Run& run : runs)
      if (run.outcomes.empty() && run.planted.why_not.empty()) run.planted.why_not = "stopped before it was measured";
  }
  for (Run& run : runs) result.all.push_back(judge_run(options, run, result.device.limits));
  result.ranked = ranking(result.all);
  result.answer = answer(result.ranked);
  return result;
}

json invert_json(const InvertOptions& options, const InvertResult& r) {
  json not_judged = json::array();
  for (const Sensitivity& s : r.all)
    if (!s.judged()) not_judged.push_back(s);
  return encode_nonfinite({{"problem", options.problem.problem.id()},
                           {"name", options.problem.name},
                           {"suite", options.suite},
                           {"device", r.device},
                           {"candidate", options.candidate},
                           {"measured_at", now_iso8601()},
                           {"source_hash", source_hash()},
                           {"unit", r.device.limits.emulated ? "count" : "time"},
                           {"answer", r.answer},
                           {"failed", r.why_not},
                           {"ranking", r.ranked},
                           {"not_judged", not_judged},
                           {"variants", options.variants},
                           {"margin", options.margin},
                           {"regime", to_string(options.regime)},
                           {"condition", to_string(options.condition)},
                           {"processes", r.processes},
                           {"seed", options.seed},
                           {"environment", r.environment},
                           {"machine", r.machine},
                           {"stopped", r.stopped},
                           {"busy", busy_words(r.readings)}});
}

}  // namespace flashcore
