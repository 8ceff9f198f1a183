#pragma once
// Hardware counters of one launch: Nsight Compute (`ncu`) as a child process around a program that launches the
// candidate.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/diagnose/metrics.h"
#include "lab/measure/ncu_csv.h"

namespace flashcore {

// Of several launches the one that takes longest, the last of that name: the first ones warm the caches.
const ProfiledKernel& main_kernel(const std::vector<ProfiledKernel>& kernels);

struct CollectedCounters {
  CounterValues counters;            // empty: `why_none` says why
  std::string kernel;                // that they are of
  std::vector<std::string> others;   // kernels of the same program, which are left out
  std::vector<std::string> unknown;  // metrics that this Nsight Compute, or this GPU, does not know
  std::string why_none;              // one sentence with what to do; empty: there are counters
};

struct NsightOptions {
  std::string ncu;                   // a path, or a name to find on PATH
  std::vector<std::string> metrics;  // profile_metrics() and further ones
  double timeout_seconds = 300;
  std::function<bool()> stop = {};  // ends the run: there are no counters then
};

// Where Nsight Compute is: `asked` if it is not empty, else ncu on PATH or in the folders of CUDA's packages. Empty:
// nowhere.
std::string find_ncu(const std::string& asked);

// Runs `launcher` (a program and its arguments) under Nsight Compute. A metric that it does not know makes it refuse
// the whole run: it is left out then, and the run repeated. Never throws for what a profiler does.
CollectedCounters collect_counters(const NsightOptions& options, const std::vector<std::string>& launcher);

}  // namespace flashcore
