#pragma once
#include <string>
#include <vector>

namespace flashcore::emulator {

struct ProcessResult {
  bool started = false;
  int exit_code = -1;
  std::string output;  // stdout and stderr together
};
// Runs a program found on PATH and waits for it. No shell, so no quoting.
ProcessResult run_process(const std::vector<std::string>& arguments);

}  // namespace flashcore::emulator
