#include "lab/process/worker.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <random>

#include "core/child_process.h"
#include "core/error.h"
#include "device/sandbox/sandbox.h"
#include "lab/measure/slowdown.h"
#include "lab/process/worker_line.h"
#include "lab/record/checks.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;
using Clock = ChildProcess::Clock;
using Talk = ChildProcess::Talk;

// Opening a device: loading libcuda and making a context takes seconds on a node with eight GPUs.
constexpr double kStartSeconds = 120;
// Two gates of a pair, each with its stages, are a dozen. A child that tells more is broken or hostile.
constexpr std::size_t kMaxStages = 1000;

// Marks a request's answers (lab/process/worker_line.h).
std::string fresh_nonce() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

json error_message(const Error& e) {
  const char* kind = e.kind() == ErrorKind::kBadInput      ? "bad_input"
                     : e.kind() == ErrorKind::kEnvironment ? "environment"
                                                           : "internal";
  return {{"error", {{"kind", kind}, {"message", e.what()}}}};
}

// Takes the document that the child was asked for; false or an exception if it is none such.
using Accept = std::function<bool(const json& message)>;

// Where a candidate was: at a gate, or, of two, at a gate "of the baseline" or "of the candidate".
struct Stage {
  Gate gate = Gate::kStart;
  std::string side;  // " of the baseline"; empty: neither
};
std::string to_text(const Stage& stage) { return word_of(stage.gate) + stage.side; }
constexpr const char *kOfBaseline = " of the baseline", *kOfCandidate = " of the candidate";
// Throws for anything that is no stage: the child may say what it likes.
Stage parse_stage(std::string_view text) {
  for (const std::string_view side : {kOfBaseline, kOfCandidate})
    if (text.ends_with(side)) return {parse_word<Gate>(text.substr(0, text.size() - side.size())), std::string(side)};
  return {parse_word<Gate>(text), ""};
}

// What one conversation with the child came to.
struct Answer {
  bool accepted = false;
  Ended ended = Ended::kCrashed;  // if nothing was accepted
  std::string message;
  Stage stage;                // the last one the child told
  std::vector<Stage> passed;  // those before it
  GateClock clock;
};

}  // namespace

double default_timeout_seconds(const EvaluateRequest& request) {
  // Generous on purpose: it tells a hang from slow work, it does not judge speed. 2e8: fp64 reference on one slow core.
  const double reference = static_cast<double>(request.patterns.size() + 1) *
                           std::min(request.problem.flops(), request.max_reference_flops) / 2e8;
  // Every row in fp32, where fp64 covers a sample, on a slow core.
  const bool every_row = request.level == GateLevel::kFull && request.problem.flops() > request.max_reference_flops;
  const double rows =
      every_row ? static_cast<double>(request.patterns.size()) * std::min(request.problem.flops(), 4e12) / 1e10 : 0;
  return 120 + 20 * std::max(request.max_seconds, 3.0) + reference + rows;
}

double launch_timeout_seconds(const PlacedProblem& problem, const DeviceLimits& limits) {
  // 128 rows and 4096 keys of head dim 64 took an emulated kernel 0.6 s on two cores: 2e8 a second.
  constexpr double kSlowEmulation = 1e7;
  EvaluateRequest request;
  request.problem = problem;
  request.level = GateLevel::kQuick;
  request.max_reference_flops = problem.flops();
  return default_timeout_seconds(request) + (limits.emulated ? problem.flops() / kSlowEmulation : 0);
}

struct Worker::Impl {
  std::string device_name, executable;
  std::unique_ptr<ChildProcess> child;
  std::optional<DeviceInfo> device;
  std::function<bool()> cancelled;
  std::string nonce;  // of the request in hand
  int starts = 0;

  // Hello: the child's first line names its device, or says why it has none.
  void start() {
    child = std::make_unique<ChildProcess>(std::vector<std::string>{executable, "worker", "--device", device_name});
    ++starts;
    std::string line;
    const auto read = child->read_line(line, after(kStartSeconds), cancelled);
    if (read == Talk::kCancelled) cancel();
    std::optional<DeviceInfo> hello;
    try {
      if (read == Talk::kDone) hello = parse_worker_hello(line);
    } catch (const Error&) {
      child.reset();
      throw;
    }
    if (hello) {
      device = std::move(hello);
      return;
    }
    const std::string how = read == Talk::kTimeout ? fmt::format("did not answer within {:.0f} s", kStartSeconds)
                            : read == Talk::kDone  ? "answered something else than its device"
                            : read == Talk::kFlood ? "wrote without end"
                                                   : child->how_it_ended();
    child->kill();
    const std::string message =
        fmt::format("the worker process {} before it had opened device '{}'{}", how, device_name, quoted_stderr_tail());
    child.reset();
    throw_environment("{}; run `flashcore doctor` to see what is missing", message);
  }

  std::string quoted_stderr_tail() const {
    const std::string words = child->stderr_tail();
    return words.empty() ? "" : ": " + words;
  }

  [[noreturn]] void cancel() {
    child.reset();
    throw Cancelled("stopped while a candidate was being evaluated");
  }

  // Others' kernels run on this host only where they can be contained; a GPU's stay on the GPU (docs/security.md).
  void require_containment(const std::vector<Patch>& patches) {
    if (!device) start();
    for (const Patch& patch : patches)
      if (device->limits.emulated && !patch.trusted)
        sandbox::require("the patched kernel " + patch.family_name(), "give --trust-code");
  }

  // Asks, and listens until what was asked for has come or cannot come any more.
  Answer converse(json document, const Accept& accept, double timeout_seconds) {
    const auto deadline = after(is_on(Check::kWatchdog) ? timeout_seconds : 1e6);
    Answer answer;
    nonce = fresh_nonce();
    document["nonce"] = nonce;
    const std::string request = dump_line(document);
    if (!child) start();
    Talk talk = child->send_line(request, deadline, cancelled);
    if (talk == Talk::kClosed) {
      // A child that died between two requests did not die of this one.
      start();
      talk = child->send_line(request, deadline, cancelled);
    }
    for (std::string line; talk == Talk::kDone;) {
      talk = child->read_line(line, deadline, cancelled);
      if (talk == Talk::kDone && take(line, accept, answer)) return answer;
    }
    if (talk == Talk::kCancelled) cancel();
    if (talk == Talk::kClosed) {
      answer.message = fmt::format("the worker process {} in stage {}{}", child->how_it_ended(), to_text(answer.stage),
                                   quoted_stderr_tail());
      return answer;
    }
    child->kill();
    if (talk == Talk::kTimeout) answer.ended = Ended::kTimeout;
    answer.message =
        fmt::format("{}, in stage {}: the worker process was ended{}",
                    talk == Talk::kTimeout ? fmt::format("no answer after {:.0f} s", timeout_seconds)
                                           : fmt::format("{} MiB without a newline", ChildProcess::kMaxLine >> 20),
                    to_text(answer.stage), quoted_stderr_tail());
    return answer;
  }

  // True when the conversation is over.
  bool take(const std::string& line, const Accept& accept, Answer& answer) {
    const WorkerLine read = parse_worker_line(line, nonce);
    if (read.kind == WorkerLine::Kind::kUnasked) {
      child->kill();
      answer.message = fmt::format("a line without this request's number came over the protocol in stage {}: {}",
                                   to_text(answer.stage), line.substr(0, 200));
      return true;
    }
    try {
      if (read.kind == WorkerLine::Kind::kStage && answer.passed.size() < kMaxStages) {
        const Stage stage = parse_stage(read.text);
        if (answer.stage.gate != Gate::kStart) answer.passed.push_back(answer.stage);
        answer.stage = stage;
        answer.clock.enter(stage.gate);
        return false;
      }
      const bool answered = read.kind == WorkerLine::Kind::kMessage;
      if (answered && accept(read.message)) return answer.accepted = true;
      if (answered && read.message.contains("fault")) {
        answer.message = fmt::format("device fault in stage {}: {}", to_text(answer.stage),
                                     read.message.at("fault").get<std::string>());
        child->how_it_ended();
        return true;
      }
    } catch (const std::exception&) {
      // Falls through: a document of the wrong shape is no better than none.
    }
    child->kill();
    answer.message = fmt::format("the worker process answered something else than a trial in stage {}: {}",
                                 to_text(answer.stage), line.substr(0, 200));
    return true;
  }

  PairOutcome measure_pair(json document, const PairRequest& request, double timeout_seconds);

  // Whose gate it died in says who failed; in the race that cannot be known.
  PairOutcome failed_pair(const PairRequest& request, const Answer& answer) const {
    EvaluateRequest side;
    side.problem = request.problem;
    side.problem_name = request.problem_name;
    side.suite = request.suite;
    side.phase = Phase::kBench;
    side.seed = request.measure.seed;
    PairOutcome outcome;
    side.candidate = request.candidate;
    outcome.candidate = blank_trial(*device, side);
    side.candidate = request.baseline;
    outcome.baseline = blank_trial(*device, side);
    outcome.ended = answer.ended == Ended::kTimeout ? PairEnded::kTimeout : PairEnded::kCrashed;
    outcome.message = answer.message;
    const auto blame = [&](Trial& trial, PairEnded ended) {
      trial.ended = answer.ended;
      trial.message = answer.message;
      trial.seconds = answer.clock.read();
      outcome.ended = ended;
    };
    if (answer.stage.side == kOfBaseline) blame(outcome.baseline, PairEnded::kBaselineFailed);
    else if (answer.stage.side == kOfCandidate) blame(outcome.candidate, PairEnded::kCandidateFailed);
    else outcome.candidate.seconds = answer.clock.read();
    return outcome;
  }

  Trial failed_trial(const EvaluateRequest& request, const Answer& answer) const {
    Trial trial = blank_trial(*device, request);
    trial.ended = answer.ended;
    trial.message = answer.message;
    trial.seconds = answer.clock.read();
    for (const Stage& stage : answer.passed) trial.gates.push_back({stage.gate, GateStatus::kPassed, "", nullptr});
    trial.gates.push_back({answer.stage.gate, GateStatus::kError, answer.message, nullptr});
    return trial;
  }
};

Worker::Worker(std::string device, std::string executable) : impl_(std::make_unique<Impl>()) {
  impl_->device_name = std::move(device);
  impl_->executable = executable.empty() ? "/proc/self/exe" : std::move(executable);
}

Worker::~Worker() = default;

int Worker::restarts() const { return std::max(0, impl_->starts - 1); }
void Worker::cancel_when(std::function<bool()> cancelled) { impl_->cancelled = std::move(cancelled); }

const DeviceInfo& Worker::device() {
  if (!impl_->device) impl_->start();
  return *impl_->device;
}

Trial Worker::evaluate(const EvaluateRequest& request, double timeout_seconds) {
  impl_->require_containment(request.patches);
  Trial trial;
  const Accept accept = [&](const json& message) {
    if (!message.contains("trial")) return false;
    trial = message.at("trial").get<Trial>();
    return trial.problem == request.problem;
  };
  const Answer answer =
      impl_->converse(request, accept, timeout_seconds > 0 ? timeout_seconds : default_timeout_seconds(request));
  if (answer.accepted) return trial;
  impl_->child.reset();
  return impl_->failed_trial(request, answer);
}

TaskOutcome Worker::run_task(const std::string& task, const json& request, double timeout_seconds) {
  if (!impl_->device) impl_->start();
  TaskOutcome outcome;
  const Accept accept = [&](const json& message) {
    if (!message.contains("answer")) return false;
    outcome.answer = message.at("answer");
    return outcome.answer.is_object();
  };
  const Answer answer = impl_->converse({{"task", task}, {"request", request}}, accept, timeout_seconds);
  if (answer.accepted && outcome.answer.value("faulted", json()) != json(true)) return outcome;
  impl_->child.reset();
  if (!answer.accepted) outcome = {nullptr, answer.message};
  return outcome;
}

PairOutcome Worker::measure_pair(const PairRequest& request, double timeout_seconds) {
  return impl_->measure_pair({{"pair", request}}, request, timeout_seconds);
}

PairOutcome Worker::measure_slowed_pair(const PairRequest& request, int repeat_permille) {
  return impl_->measure_pair({{"pair", request}, {"repeat_permille", repeat_permille}}, request, 0);
}

PairOutcome Worker::Impl::measure_pair(json document, const PairRequest& request, double timeout_seconds) {
  require_containment(request.patches);
  PairOutcome outcome;
  const Accept accept = [&](const json& message) {
    if (!message.contains("pair")) return false;
    outcome = message.at("pair").get<PairOutcome>();
    return outcome.candidate.problem == request.problem;
  };
  EvaluateRequest work;  // for the time it may take: two candidates' gates and the race
  work.problem = request.problem;
  work.patterns = request.patterns;
  work.level = request.level;
  work.max_seconds = request.measure.max_seconds;
  work.max_reference_flops = request.max_reference_flops;
  const Answer answer =
      converse(std::move(document), accept, timeout_seconds > 0 ? timeout_seconds : 2 * default_timeout_seconds(work));
  if (answer.accepted) return outcome;
  child.reset();
  return failed_pair(request, answer);
}

int serve(Device& device, const WorkerTasks& tasks) {
  // The protocol keeps stdout to itself: whatever a library prints there goes to stderr, where the parent shows it.
  const int protocol = dup(STDOUT_FILENO);
  if (protocol < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return 4;
  std::string nonce;
  const auto tell = [&](json message) {
    if (!nonce.empty()) message["nonce"] = nonce;
    const std::string line = dump_line(message) + "\n";
    for (std::size_t sent = 0; sent < line.size();) {
      const ssize_t n = write(protocol, line.data() + sent, line.size() - sent);
      if (n <= 0 && errno != EINTR) _exit(4);  // nobody is listening any more
      if (n > 0) sent += static_cast<std::size_t>(n);
    }
  };
  tell({{"device", device.info()}});
  for (std::string line; std::getline(std::cin, line);) {
    try {
      const json request = json::parse(line);
      nonce = request.at("nonce").get<std::string>();
      const auto stage = [&](const auto& name) { tell({{"stage", name}}); };
      if (request.contains("pair")) {
        auto pair = request.at("pair").get<PairRequest>();
        pair.measure.wrapper = repeat_launches(request.value("repeat_permille", 0));
        tell({{"pair", measure_pair(device, pair, stage)}});
      } else if (request.contains("task")) {
        const WorkerTask& task = tasks.at(request.at("task").get<std::string>());
        tell({{"answer", task(device, request.at("request"), stage)}});
      } else tell({{"trial", evaluate(device, request.get<EvaluateRequest>(), stage)}});
    } catch (const DeviceFault& e) {
      tell({{"fault", e.what()}});
      // The context is lost, and taking it down in order may fault again.
      _exit(4);
    } catch (const std::exception& e) {
      // Only a request that is none: parent and child are of different builds.
      tell({{"fault", fmt::format("the request could not be read: {}", e.what())}});
      return 4;
    }
  }
  return 0;
}

int worker_main(const std::string& device_name, const WorkerTasks& tasks) {
  std::unique_ptr<Device> device;
  try {
    device = open_device(device_name);
  } catch (const Error& e) {
    std::cout << dump_line(error_message(e)) << std::endl;
    return 4;
  }
  return serve(*device, tasks);
}

}  // namespace flashcore
