#pragma once
// Worker: evaluates candidates in a child process. A compiler crash, an illegal address or a hang ends the child and
// becomes a Trial; the next request gets a fresh child.

#include <memory>
#include <string>

#include "lab/evaluate.h"

namespace flashcore {

class Worker {
 public:
  // `device` as open_device. `executable`: what to run as the child (default: this program, /proc/self/exe, called
  // with the hidden verb `worker`); one JSON document per line on its stdin and stdout.
  explicit Worker(std::string device, std::string executable = {});
  ~Worker();
  // Ends the child after `timeout_seconds` (0: from the request). Never throws for a candidate's failure.
  Trial evaluate(const EvaluateRequest& request, double timeout_seconds = 0);
  int restarts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The child's loop: reads requests from stdin until end of file. Returns the exit code.
int worker_main(const std::string& device);

}  // namespace flashcore
