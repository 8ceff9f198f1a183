#pragma once
// Collects the facts of a profile: runs the candidate where it can run, compiles it where it cannot, and notes which
// sources gave nothing.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/diagnose/profile.h"
#include "lab/diagnose/sass.h"
#include "lab/gates/request.h"
#include "lab/harness/patch.h"

namespace flashcore {

struct GatherOptions {
  DeviceInfo device;
  bool is_here = true;                      // false: a GPU known by its tables only; nothing runs
  bool emulate = false;                     // beside a GPU: the emulator's counts too
  std::string ncu;                          // path of Nsight Compute; empty: look for it
  std::vector<std::string> metrics;         // hardware counters beyond profile_metrics()
  std::optional<std::string> counters_csv;  // text that Nsight Compute wrote elsewhere, in place of running it
  bool sass = false;                        // the machine code of hot lines; needs counts
  std::string nvdisasm;                     // path; empty: look for it
  std::vector<Patch> patches;               // that the candidate is made from
  std::vector<Trial> stored;                // of the user's, for a GPU that is not here
  double max_seconds = 1;                   // of timing
  std::uint64_t seed = 1;                   // of the data
  std::string executable;                   // as Worker; tests give their own
  std::function<bool()> stop = {};
  std::function<void(const std::string&)> progress = [](const std::string&) {};
};

struct Gathered {
  ProfileFacts facts;
  std::optional<SourceSass> sass;  // where it was asked for and could be had
  std::string failure;             // the candidate did not pass its gates: why; empty: it did, or nothing ran
  std::string nothing;             // there is nothing to compute, in a sentence; empty: there is. Nothing ran then
  bool lacking = false;            // nothing could be learnt for want of something on this machine
};

// `candidate`: valid for the problem on that device. Throws Cancelled when told to stop; Error as Worker.
Gathered gather_facts(const PlacedProblem& problem, const std::string& candidate, const GatherOptions& options);

// What the emulator runs in place of a problem that would take it minutes: the same where that is small enough, else a
// small one of its kind; smaller still where the candidate refuses that on an emulated GPU.
PlacedProblem counted_problem(const PlacedProblem& problem, const std::string& candidate, const DeviceLimits& limits);

// The GPU that a profile on the emulator is of: one of that architecture, with all its SMs.
DeviceLimits limits_of_emulated(const DeviceLimits& emulator);

// What Nsight Compute runs: the candidate of a request launched twice on a device, the first time to warm its caches.
void launch_for_counters(Device& device, const EvaluateRequest& request, int launches);

}  // namespace flashcore
