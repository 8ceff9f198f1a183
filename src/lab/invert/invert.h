#pragma once
// Inversion: a candidate beside variants of itself, interleaved, in worker processes. On an emulated GPU the variants'
// counters take the place of times.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/suite.h"
#include "lab/invert/sensitivity.h"

namespace flashcore {

struct InvertOptions : MeasurementSpec {  // max_seconds: of timing, of all variants and processes together
  InvertOptions() { max_seconds = 20; }

  std::string device;  // as open_device
  std::string suite;   // where the problem comes from, for the record
  NamedProblem problem;
  std::string candidate;              // text
  std::vector<std::string> variants;  // names; empty: all
  int processes = 3;
  std::string worker_executable;  // as Worker; tests give their own
};

struct InvertResult {
  std::string why_not;  // the plain candidate failed: nothing is known
  DeviceInfo device;
  int processes = 0;                // that were asked for; on an emulated GPU one, for counts do not vary
  std::vector<Sensitivity> all;     // in the order of the variants
  std::vector<Sensitivity> ranked;  // those judged
  std::string answer;
  EnvironmentReading environment;
  MachineReading machine;
  std::vector<MachineReading> readings;  // beside each variant's race
  bool stopped = false;                  // before the end: what was measured until then is judged
};

// Progress: a line for each step. `stop` is polled; Cancelled passes through where nothing has been measured yet. A
// variant that fails is said, and the others go on. Errors as Worker; kBadInput for a name that is no variant.
InvertResult invert(const InvertOptions& options,
                    const std::function<void(int done, int total, const std::string&)>& progress = {},
                    const std::function<bool()>& stop = {});

// One of the results of flashcore.invert/1.
inline constexpr const char* kInvertSchema = "flashcore.invert/1";
nlohmann::json invert_json(const InvertOptions& options, const InvertResult& result);

}  // namespace flashcore
