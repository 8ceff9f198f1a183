#include "lab/compare/bench.h"

#include <unistd.h>

#include <algorithm>

#include "core/error.h"
#include "core/problem_row.h"
#include "kernels/family.h"
#include "kernels/source_hash.h"
#include "lab/compare/peer_rows.h"
#include "lab/process/worker.h"
#include "lab/record/digest.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;

json environment_json(const Trial& t) {
  json environment = t.environment;
  environment["driver"] = t.device.driver;
  environment["flashcore"] = FLASHCORE_VERSION;
  environment["measured_at"] = t.created_at;
  if (t.machine.load_after >= 0) environment["load_average"] = json(t.machine).at("load_average");
  if (t.machine.others_busy >= 0) environment["others_busy"] = t.machine.others_busy;
  return environment;
}

json config_json(const Trial& t) {
  json config = json::object();
  for (std::size_t at = 0; at < t.config.size();) {
    const std::size_t comma = std::min(t.config.find(',', at), t.config.size());
    const std::string pair = t.config.substr(at, comma - at);
    const std::size_t equals = pair.find('=');
    // A trial that ended "invalid" may carry any text here.
    if (equals != std::string::npos) config[pair.substr(0, equals)] = std::atoi(pair.c_str() + equals + 1);
    at = comma + 1;
  }
  return config;
}

json peer_json(const Trial& t) {
  if (!t.comparison) return json::array();
  const Comparison& c = *t.comparison;
  return json::array({{{"name", c.against},
                       {"version", FLASHCORE_VERSION},
                       {"speedup", c.speedup},
                       {"ci95", {c.ci95_low, c.ci95_high}},
                       {"verdict", c.verdict}}});
}

// On some data pattern rows were judged that are a sample, and nothing was compared with the others.
bool has_unseen_rows(const Trial& t) {
  const Verdict* verdict = find_gate(t, Gate::kCorrectness);
  if (!verdict || !verdict->evidence.is_object()) return false;
  const json patterns = verdict->evidence.value("patterns", json::array());
  return std::any_of(patterns.begin(), patterns.end(), [](const json& pattern) {
    return pattern.value("all_rows", json(true)) == json(false) && !pattern.contains("every_element_against");
  });
}

// They are larger than Operands::kInputCheckLimit. Trials from before that was recorded say nothing.
bool has_unchecked_inputs(const Trial& t) {
  const Verdict* verdict = find_gate(t, Gate::kCorrectness);
  return verdict && verdict->evidence.is_object() && verdict->evidence.value("inputs_checked", json()) == json(false);
}

}  // namespace

json bench_row(const Trial& t) {
  json result = {{"schema", kBenchSchema},
                 {"name", t.problem_name},
                 {"decode", t.problem.is_decode()},
                 {"suite", t.suite},
                 {"device", t.device},
                 {"chosen_by", t.chosen_by},
                 {"source_hash", t.source_hash},
                 {"launch_hash", t.launch_hash},
                 {"code_hash", t.artifact ? json(t.artifact->code_hash) : json()},
                 {"compiler", t.artifact ? json(t.artifact->compiler) : json()},
                 {"family", t.family},
                 {"config", config_json(t)},
                 {"ended", t.ended},
                 {"message", t.message},
                 {"time_us", nullptr},
                 {"correct", nullptr},
                 {"peers", peer_json(t)},
                 {"environment", environment_json(t)}};
  put_problem(result, t.problem);
  if (t.error && t.bound)
    result["correct"] = {
        {"rel_error", t.error->rel}, {"bound", t.bound->rel}, {"passed", passed_gate(t, Gate::kCorrectness)}};
  if (const Verdict* counters = find_gate(t, Gate::kCounters)) result["counters"] = counters->evidence;
  // "full": every data pattern, every row, and all that a call may differ in.
  if (const auto level = gate_level(t); level && result["correct"].is_object())
    result["correct"]["level"] = word_of(*level) + (has_unseen_rows(t) ? ", rows sampled" : "") +
                                 (has_unchecked_inputs(t) ? ", inputs unchecked" : "");
  if (t.timing) {
    const Timing& timing = *t.timing;
    result["time_us"] = {{"p10", timing.p10_us}, {"p50", timing.p50_us}, {"p90", timing.p90_us}};
    result["samples"] = timing.samples.size();
    result["tflops"] = t.problem.flops() / timing.p50_us * 1e-6;
    result["gbps"] = t.problem.bytes() / timing.p50_us * 1e-3;
    result["floor_us"] = timing.floor_us;
    result["regime"] = to_string(timing.regime);
    result["condition"] = to_string(timing.condition);
    result["kcycles"] = timing.kcycles;
  }
  return encode_nonfinite(result);
}

namespace {

// What its figures follow from, so that anyone can compute them again: `flashcore verify` does.
void keep_samples(json& row, const Timing& timing) {
  std::vector<double> times, clocks;
  for (const Sample& sample : timing.samples) {
    times.push_back(sample.time_us);
    if (sample.clock_mhz > 0) clocks.push_back(sample.clock_mhz);
  }
  if (times.empty()) return;
  row["samples_us"] = round_samples(std::move(times));
  if (!clocks.empty()) row["clock_mhz"] = median(clocks);
  derive_figures(row, 0);
}

Trial bench_one(Worker& worker, const BenchOptions& options, const NamedProblem& named) {
  EvaluateRequest request;
  request.problem = named.problem;
  request.problem_name = named.name;
  request.suite = options.suite.name;
  request.phase = Phase::kBench;
  request.spec() = options.spec();
  ask_full_gate(request);
  request.min_samples = options.min_samples;
  ChosenBy chosen_by = ChosenBy::kCaller;
  try {
    if (options.candidate) {
      request.candidate = *options.candidate;
    } else {
      const Choice choice = dispatch(named.problem, worker.device());
      request.candidate = choice.candidate.print();
      chosen_by = choice.chosen_by;
    }
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kBadInput) throw;
    Trial trial = blank_trial(worker.device(), request);
    trial.ended = Ended::kInvalid;
    trial.message = e.what();
    trial.gates.push_back({Gate::kValid, GateStatus::kFailed, e.what(), nullptr});
    return trial;
  }
  Trial trial = worker.evaluate(request);
  trial.chosen_by = chosen_by;
  return trial;
}

}  // namespace

BenchResult bench(const BenchOptions& options, Store* store, const std::function<void(const Trial&)>& progress,
                  const std::function<bool()>& stop) {
  if (options.suite.problems.empty())
    throw_bad_input("suite '{}' has no problems; there is nothing to time", options.suite.name);
  if (options.candidate) family_by_name(options.candidate->substr(0, options.candidate->find(':')));
  BenchResult result;
  result.run = fmt::format("bench-{}-{}", now_iso8601(), getpid());
  Worker worker(options.device, options.worker_executable);
  worker.cancel_when(stop);
  try {
    for (const NamedProblem& named : options.suite.problems) {
      if (stop && stop()) throw Cancelled("stopped between two problems");
      Trial trial = bench_one(worker, options, named);
      trial.run = result.run;
      if (store) trial.id = store->append_or_note(trial);
      if (progress) progress(trial);
      result.trials.push_back(std::move(trial));
    }
  } catch (const Cancelled&) {
    result.interrupted = true;
  }
  return result;
}

json bench_json(const std::vector<Trial>& trials, const std::optional<Checkout>& checkout) {
  json results = json::array();
  for (const Trial& t : trials) {
    json row = bench_row(t);
    if (t.timing) keep_samples(row, *t.timing);
    if (checkout) put_checkout(row["environment"], *checkout);
    results.push_back(std::move(row));
  }
  json document = {{"schema", kBenchSchema}, {"source_hash", source_hash()}, {"results", results}};
  seal_results(document, true);
  return document;
}

}  // namespace flashcore
