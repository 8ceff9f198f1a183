#pragma once
// Worker: evaluates candidates in a child process. A compiler crash, an illegal address or a hang ends the child and
// becomes a Trial; the next request gets a fresh child.

#include <functional>
#include <memory>
#include <string>

#include "lab/gates/evaluate.h"
#include "lab/gates/pair.h"

namespace flashcore {

// evaluate() was told to stop: the child is ended and there is no Trial.
class Cancelled : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
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

// The child's loop: reads requests from stdin until end of file. Returns the exit code.
int worker_main(const std::string& device);
// The same with a device that is already open.
int serve(Device& device);

}  // namespace flashcore
