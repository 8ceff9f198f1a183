#pragma once
// The planted-fault corpus: dishonest or broken candidates, each with the gate that must catch it. Entries are data
// (tests/planted/*.yaml); those of GPU kernels are built into the program, so that they run wherever there is a GPU.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data.h"
#include "core/operands.h"
#include "lab/harness/patch.h"
#include "lab/record/checks.h"
#include "lab/record/trial.h"

namespace flashcore {

struct PlantedFault {
  std::string name;
  std::string does;             // what is dishonest or broken about it
  std::vector<std::string> on;  // where it can show: nvrtc (compiling, no GPU), emulator, cuda, test (the test program)
  Gate gate = Gate::kValid;     // that must catch it
  std::optional<Check> check;   // none where the gate has no checks (valid, compile)
  std::optional<Ended> ended;   // how the trial must end; none: any failure
  std::string candidate;        // text; of a patched kernel without "+name"
  std::string incumbent;        // raced against it, if given
  std::string twin;             // a second candidate whose code must differ (inert parameters)
  PlacedProblem problem;
  std::optional<Patch> patch;
  double margin = 0.02;
  double timeout_seconds = 0;         // of the watchdog; 0: the default
  double max_reference_flops = 2e10;  // fp64 rows are sampled beyond this
  std::vector<Pattern> patterns = {Pattern::kNormal};
  std::vector<Check> escapes_without;      // the checks without which nothing else catches it
  std::vector<Check> escapes_without_all;  // each of several catches it: it escapes with all of them off
  bool slow = false;                       // only those checks are switched off in turn

  bool runs_on(std::string_view where) const;
};

// A list under `faults:`. Error kBadInput with file and line.
std::vector<PlantedFault> parse_planted(std::string_view yaml, const std::string& origin);
// Those of GPU kernels, as built in.
const std::vector<PlantedFault>& gpu_planted_faults();

// What became of one: `caught` by the gate and the check that it names, or why not.
struct PlantedOutcome {
  bool caught = false;
  std::string what;      // the gate's reason, or what happened instead
  bool lacking = false;  // the machine could not try it
};
PlantedOutcome judge_planted(const PlantedFault& fault, const Trial& trial);

// Compiles for `arch` and passes through the resource gate and the inert-parameter detection only. Needs NVRTC, no GPU;
// isolates nothing.
PlantedOutcome run_planted_compilation(const PlantedFault& fault, const std::string& arch = "sm_90");
// On a device, through a worker process. Throws Cancelled when told to stop.
PlantedOutcome run_planted(const PlantedFault& fault, const std::string& device,
                           const std::string& worker_executable = {}, const std::function<bool()>& stop = {});

}  // namespace flashcore
