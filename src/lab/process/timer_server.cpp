#include "lab/process/timer_server.h"

#include <algorithm>
#include <istream>
#include <map>
#include <memory>
#include <ostream>

#include "core/error.h"
#include "core/problem_row.h"
#include "device/repeated_sample.h"
#include "lab/gates/evaluate.h"
#include "lab/harness/oracle.h"
#include "lab/measure/engine.h"
#include "lab/measure/prepared_candidate.h"
#include "lab/process/peer_process.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;

// A candidate on two sets of buffers, which its samples use in turn, as those of the other parties do.
class Session {
 public:
  Session(Device& device, const PlacedProblem& problem, const CompiledCandidate& compiled,
          const PrepareOptions& options, std::shared_ptr<const Oracle> oracle)
      : device_(device),
        problem_(problem),
        oracle_(std::move(oracle)),
        first_(device, problem, options.regime, oracle_->inputs),
        second_(device, problem, options.regime, oracle_->inputs),
        prepared_(device, problem, compiled, options, {&first_, &second_}) {}

  Sample sample(double warm_up_ms, double measure_ms) {
    const int set = turn_++ % prepared_.sets();
    return sample_for([&] { return prepared_.sample(set); }, warm_up_ms, measure_ms,
                      [&] { return device_.now_seconds(); });
  }
  void use_launches(int launches) { prepared_.use_launches(launches); }
  int launches_per_sample() const { return prepared_.launches_per_sample(); }
  // What is wrong with the timed outputs, empty if nothing is, and the largest of their relative errors.
  json judge() {
    double rel_error = 0;
    for (int set = 0; set < prepared_.sets(); ++set) {
      prepared_.refresh_outputs(set);
      device_.synchronize();
      const JudgedOutputs judged = prepared_.judge_outputs(set, problem_, *oracle_);
      // A NaN is wrong, and no number of JSON.
      if (!judged.wrong.empty()) return {{"wrong", judged.wrong}, {"rel_error", 0.0}};
      rel_error = std::max(rel_error, judged.error.rel);
    }
    return {{"wrong", ""}, {"rel_error", rel_error}};
  }

 private:
  Device& device_;
  PlacedProblem problem_;
  std::shared_ptr<const Oracle> oracle_;
  BufferSet first_, second_;
  PreparedCandidate prepared_;
  int turn_ = 0;
};

class TimerServer {
 public:
  explicit TimerServer(const std::string& device) : device_(open_device(device)) {}

  json answer(const json& request) {
    const std::string op = request.at("op").get<std::string>();
    if (op == "hello")
      return {{"protocol", PeerProcess::kProtocol},
              {"name", "laboratory"},
              {"parties", {{{"name", "laboratory"}, {"version", "flashcore " FLASHCORE_VERSION}}}}};
    if (op == "device") return {{"device", device_->info()}, {"ceilings", device_->ceilings()}};
    if (op == "judge") return judge(request);
    if (op == "prepare") return prepare(request);
    if (op == "environment") return device_->read_environment();
    if (op != "sample" && op != "output" && op != "release")
      throw_bad_input("unknown op '{}'; known: hello, device, judge, prepare, sample, output, release, environment",
                      op);
    Session& session = find(request);
    if (op == "sample") {
      const Sample sample = session.sample(request.value("warm_up_ms", 0.0), request.value("measure_ms", 0.0));
      return {{"time_us", sample.time_us}, {"clock_mhz", sample.clock_mhz}};
    }
    if (op == "output") return session.judge();
    return {{"released", sessions_.erase(request.at("handle").get<int>())}};
  }

 private:
  EvaluateRequest read_request(const json& message) {
    EvaluateRequest request;
    request.problem = problem_of(message);
    request.problem_name = message.value("name", "");
    request.suite = message.value("suite", "");
    request.phase = Phase::kBench;
    ask_full_gate(request);  // what is timed beside a peer is published
    request.regime = parse_regime(message.value("regime", "graph"));
    request.seed = message.value("seed", std::uint64_t{1});
    return request;
  }

  Choice choose(const json& message, const PlacedProblem& problem) {
    if (message.contains("candidate") && message.at("candidate").is_string())
      return {parse_candidate(message.at("candidate").get<std::string>(), problem, device_->info().limits), "pinned",
              ChosenBy::kCaller};
    return dispatch(problem, device_->info());
  }

  json judge(const json& message) {
    EvaluateRequest request = read_request(message);
    const Choice choice = choose(message, request.problem);
    request.candidate = choice.candidate.print();
    Trial trial = evaluate(*device_, request);
    trial.chosen_by = choice.chosen_by;
    return {{"trial", trial}, {"why", choice.reason}};
  }

  json prepare(const json& message) {
    const EvaluateRequest request = read_request(message);
    const Choice choice = choose(message, request.problem);
    auto oracle = shared_oracles().get(request.problem, Pattern::kNormal, timing_seed(request.seed),
                                       request.max_reference_flops / 10);
    const CompiledCandidate compiled{choice.candidate,
                                     compile_candidate(choice.candidate, request.problem, device_->info().limits)};
    auto session =
        std::make_unique<Session>(*device_, request.problem, compiled,
                                  PrepareOptions{request.regime, message.value("sample_us", 0.0)}, std::move(oracle));
    // Of timers with different numbers of launches, one has more of the slow first ones.
    if (const int launches = message.value("launches", 0); launches > 0) session->use_launches(launches);
    sessions_[next_] = std::move(session);
    return {{"handle", next_}, {"launches", sessions_[next_++]->launches_per_sample()}};
  }

  Session& find(const json& request) {
    const auto found = sessions_.find(request.at("handle").get<int>());
    if (found == sessions_.end())
      throw_bad_input("no session has the handle {}; 'prepare' gives one", request.at("handle").dump());
    return *found->second;
  }

  std::unique_ptr<Device> device_;
  std::map<int, std::unique_ptr<Session>> sessions_;
  int next_ = 0;
};

}  // namespace

int timer_server_main(const std::string& device, std::istream& in, std::ostream& out) {
  std::unique_ptr<TimerServer> server;
  try {
    server = std::make_unique<TimerServer>(device);
  } catch (const Error& e) {
    out << dump_line({{"error", e.what()}}) << std::endl;
    return 4;
  }
  for (std::string line; std::getline(in, line);) {
    json answer;
    try {
      answer = server->answer(json::parse(line));
    } catch (const DeviceFault& fault) {
      // The context is lost: nothing more can be asked of this process.
      out << dump_line({{"error", std::string("the device context is lost: ") + fault.what()}}) << std::endl;
      return 4;
    } catch (const std::exception& e) {
      answer = {{"error", e.what()}};
    }
    out << dump_line(answer) << std::endl;
  }
  return 0;
}

}  // namespace flashcore
