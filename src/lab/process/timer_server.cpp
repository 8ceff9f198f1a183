#include "lab/process/timer_server.h"

#include <istream>
#include <map>
#include <memory>
#include <ostream>

#include "core/error.h"
#include "kernels/source_hash.h"
#include "lab/gates/evaluate.h"
#include "lab/harness/oracle.h"
#include "lab/measure/floor.h"
#include "lab/measure/prepared_candidate.h"
#include "lab/record/store.h"
#include "lab/statistics/statistics.h"

namespace flashcore {
namespace {

using nlohmann::json;

// A candidate on buffers of its own, for as long as the asker samples it.
class Session {
 public:
  Session(Device& device, const PlacedProblem& problem, const CompiledCandidate& compiled, Regime regime,
          std::shared_ptr<const Oracle> oracle)
      : problem_(problem),
        oracle_(std::move(oracle)),
        buffers_(device, problem, regime, oracle_->inputs),
        prepared_(device, problem, compiled, {.regime = regime}, {&buffers_}) {}
  Sample sample() { return prepared_.sample(0); }
  int launches_per_sample() const { return prepared_.launches_per_sample(); }

  // The timed launches' outputs against the reference, after the fact.
  json check() {
    prepared_.refresh_outputs(0);
    const JudgedOutputs judged = prepared_.judge_outputs(0, problem_, *oracle_);
    return {{"within", judged.wrong.empty()}, {"rel_error", judged.error.rel}, {"bound", oracle_->bound.rel}};
  }

 private:
  PlacedProblem problem_;
  std::shared_ptr<const Oracle> oracle_;
  BufferSet buffers_;
  PreparedCandidate prepared_;
};

class TimerServer {
 public:
  explicit TimerServer(const std::string& device) : device_(open_device(device)) {}

  json answer(const json& request) {
    const std::string op = request.at("op").get<std::string>();
    if (op == "device") return describe();
    if (op == "prepare") return prepare(request);
    if (op == "environment") return device_->read_environment();
    if (op == "record") return record(request);
    if (op == "sample") {
      const Sample sample = find(request).sample();
      return {{"time_us", sample.time_us}, {"clock_mhz", sample.clock_mhz}};
    }
    if (op == "check") return find(request).check();
    if (op == "release") {
      find(request);
      return {{"released", sessions_.erase(request.at("handle").get<int>())}};
    }
    throw_bad_input("unknown op '{}'; known: device, prepare, sample, check, release, environment, record", op);
  }

 private:
  json describe() {
    json described = device_->info();
    described["source_hash"] = source_hash();
    described["ceilings"] = device_->ceilings();
    return described;
  }

  json prepare(const json& message) {
    EvaluateRequest request;
    request.problem = PlacedProblem::parse(message.at("problem").get<std::string>());
    request.phase = Phase::kBench;
    request.time = false;
    ask_full_gate(request);
    request.regime = parse_regime(message.value("regime", "graph"));
    request.seed = message.value("seed", std::uint64_t{1});
    request.max_reference_flops = message.value("max_reference_flops", request.max_reference_flops);
    const Choice choice = message.contains("candidate") && message.at("candidate").is_string()
                              ? Choice{parse_candidate(message.at("candidate").get<std::string>(), request.problem,
                                                       device_->info().limits),
                                       "pinned", ChosenBy::kCaller}
                              : dispatch(request.problem, device_->info());
    request.candidate = choice.candidate.print();
    // A sweep over many configs judges each by its timed outputs ("check") instead of by every gate.
    Trial trial = blank_trial(device_->info(), request);
    if (message.value("gates", true)) trial = evaluate(*device_, request);
    else trial.ended = Ended::kPassed;
    trial.chosen_by = choice.chosen_by;
    json answer = {{"trial", trial},
                   {"why", choice.reason},
                   {"flops", request.problem.flops()},
                   {"bytes", request.problem.bytes()},
                   {"decode", request.problem.is_decode()},
                   {"floor_us", floor_us(request.problem, device_->info(), device_->ceilings())}};
    if (trial.ended != Ended::kPassed) return answer;
    // Other inputs than the gates saw: a result kept from there would show in `check`.
    auto oracle = oracles_.get(request.problem, Pattern::kNormal, request.seed + 1, request.max_reference_flops / 10);
    const CompiledCandidate compiled = compiled_candidate(choice.candidate, request.problem, device_->info().limits);
    sessions_[next_] =
        std::make_unique<Session>(*device_, request.problem, compiled, request.regime, std::move(oracle));
    answer["handle"] = next_;
    answer["launches_per_sample"] = sessions_[next_]->launches_per_sample();
    ++next_;
    return answer;
  }

  // A trial that was timed elsewhere, beside somebody else's kernel, by the same rules.
  static json record(const json& request) {
    Trial trial = request.at("trial").get<Trial>();
    std::vector<double> sorted = request.at("times_us").get<std::vector<double>>();
    if (sorted.empty()) throw_bad_input("a trial to record has no times; give at least one in times_us");
    Timing timing;
    const double clock_mhz = request.value("clock_mhz", 0.0);
    for (const double time_us : sorted) timing.samples.push_back({time_us, clock_mhz});
    std::sort(sorted.begin(), sorted.end());
    timing.p10_us = quantile(sorted, 0.1);
    timing.p50_us = quantile(sorted, 0.5);
    timing.p90_us = quantile(sorted, 0.9);
    timing.launches_per_sample = request.value("launches", 1);
    timing.regime = parse_regime(request.at("regime").get<std::string>());
    timing.condition = parse_condition(request.at("condition").get<std::string>());
    timing.floor_us = request.at("floor_us").get<double>();
    timing.kcycles = timing.p50_us * clock_mhz * 1e-3;
    trial.timing = timing;
    if (request.contains("comparison")) trial.comparison = request["comparison"].get<Comparison>();
    trial.run = request.at("run").get<std::string>();
    trial.phase = Phase::kBench;
    return {{"id", Store(request.at("store").get<std::string>()).append(trial)}};
  }

  Session& find(const json& request) {
    const auto found = sessions_.find(request.at("handle").get<int>());
    if (found == sessions_.end())
      throw_bad_input("no session has the handle {}; 'prepare' gives one", request.at("handle").dump());
    return *found->second;
  }

  std::unique_ptr<Device> device_;
  OracleCache oracles_;
  std::map<int, std::unique_ptr<Session>> sessions_;
  int next_ = 0;
};

}  // namespace

int timer_server_main(const std::string& device, std::istream& in, std::ostream& out) {
  TimerServer server(device);
  for (std::string line; std::getline(in, line);) {
    json answer;
    try {
      answer = server.answer(json::parse(line));
    } catch (const DeviceFault& fault) {
      out << json{{"error", std::string("the device context is lost: ") + fault.what()}} << std::endl;
      return 4;
    } catch (const std::exception& e) {
      answer = {{"error", e.what()}};
    }
    out << answer << std::endl;
  }
  return 0;
}

}  // namespace flashcore
