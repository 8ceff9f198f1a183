#pragma once
// Worker: evaluates candidates in a child process. A compiler crash, an illegal address or a hang ends the child and
// becomes a Trial; the next request gets a fresh child.

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "lab/gates/evaluate.h"
#include "lab/gates/pair.h"

namespace flashcore {

// evaluate() was told to stop: the child is ended and there is no Trial.
class Cancelled : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a worker's child does besides trials and races, by name: work of rooms that this one does not know
// (lab/verify/worker_tasks.h). `stage` as evaluate() is told it. Whose answer says `"faulted": true` has lost its
// device: the next request gets a fresh child.
using WorkerTask =
    std::function<nlohmann::json(Device&, const nlohmann::json& request, const std::function<void(Gate)>& stage)>;
using WorkerTasks = std::map<std::string, WorkerTask>;

struct TaskOutcome {
  nlohmann::json answer;  // null: there is none
  // Why there is none: "no answer after 183 s, in stage correctness: the worker process was ended".
  std::string failure;
};

class Worker {
 public:
  // `device` as open_device. `executable`: what to run as the child (default: this program, /proc/self/exe, called
  // with the hidden verb `worker --device <device>`); one JSON document per line on its stdin and stdout.
  // The child dies with the thread that started it (PR_SET_PDEATHSIG): use a Worker from one thread that lives on.
  explicit Worker(std::string device, std::string executable = {});
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Ends the child after `timeout_seconds` (0: from the request). Never throws for a candidate's failure; Error
  // kEnvironment or kBadInput if the device cannot be opened or the child cannot be started, or if patches that are not
  // trusted would run on this host without a sandbox.
  Trial evaluate(const EvaluateRequest& request, double timeout_seconds = 0);
  // The same for two candidates and their race. A crash or hang is an outcome: "baseline_failed" or "candidate_failed"
  // if it was in the gates of one of them, else "crashed" or "timeout".
  PairOutcome measure_pair(const PairRequest& request, double timeout_seconds = 0);
  // The same with the candidate slowed by a known amount (measure/slowdown.h).
  PairOutcome measure_slowed_pair(const PairRequest& request, int repeat_permille);
  // One of the child's tasks. Ends the child after `timeout_seconds`; throws as evaluate().
  TaskOutcome run_task(const std::string& task, const nlohmann::json& request, double timeout_seconds);
  // The child's device; starts the child if there is none. Errors as evaluate().
  const DeviceInfo& device();
  // Polled while a candidate runs; when it returns true the child is ended and evaluate() throws Cancelled.
  void cancel_when(std::function<bool()> cancelled);
  int restarts() const;  // children after the first

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What an evaluation may take before it counts as hung.
double default_timeout_seconds(const EvaluateRequest& request);
// The same of one launch and the judgement of its outputs by fp64, every row of it. An emulated GPU has time for the
// launch as well.
double launch_timeout_seconds(const PlacedProblem& problem, const DeviceLimits& limits);

// The child's loop: reads requests from stdin until end of file. Returns the exit code.
int worker_main(const std::string& device, const WorkerTasks& tasks = {});
// The same with a device that is already open.
int serve(Device& device, const WorkerTasks& tasks = {});

}  // namespace flashcore
