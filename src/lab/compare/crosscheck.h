#pragma once
// Crosscheck: the same launch timed by the engine and by other means. Who disagrees by more than a limit is a finding,
// with its likely cause. docs/campaign.md has the rules.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/suite.h"
#include "lab/gates/pair.h"
#include "lab/process/worker.h"
#include "lab/statistics/statistics.h"

namespace flashcore {

// kExplained: it disagrees, and a known difference between the two ways of timing accounts for it.
enum class Agreement { kAgrees, kExplained, kDisagrees, kNotJudged };
template <>
struct WordsOf<Agreement> {
  static constexpr std::string_view what = "agreement";
  static constexpr std::pair<Agreement, std::string_view> table[] = {{Agreement::kAgrees, "agrees"},
                                                                     {Agreement::kExplained, "explained"},
                                                                     {Agreement::kDisagrees, "disagrees"},
                                                                     {Agreement::kNotJudged, "could not judge"}};
};

// How one tool timed the launch. Times are of one launch, in microseconds.
struct MethodReading {
  std::string method;        // "steady clock loop"
  std::string version = {};  // of the tool; empty: it is ours
  std::vector<double> times_us = {};
  bool in_process = false;   // a loop of ours: it is no other tool
  bool interleaved = false;  // the i-th was taken beside the engine's i-th
  bool cold = false;         // its inputs are not in the cache
  bool host_launch = false;  // what the host spends on a launch lies inside
  double host_us = 0;        // that a launch takes the host by itself; 0: not known
  double empty_us = 0;       // what the same tool tells of a launch that does nothing; 0: not known
  int launches = 0;          // of a loop that is timed as a whole; 0: it is none
  double around_us = 0;      // what a loop takes beside its launches: it begins, and waits for the device
  double clock_mhz = 0;      // 0: not known
  double others_busy = -1;   // as the engine's, while it ran by itself; below 0: not known, or in its rounds
  std::string why_not = {};  // there are no times: what was lost
  bool missing = false;      // for its program is not here
  bool out_of_time = false;  // for it was ended after the seconds that it had
};

struct EngineReading {
  std::vector<double> warm_us, cold_us;     // cold: empty where it was not timed
  double clock_mhz = 0;                     // 0: not known
  double slowest_mhz = 0, fastest_mhz = 0;  // of its samples
  double empty_launch_us = 0;
  int throttled = 0;        // samples
  double others_busy = -1;  // cores that other programs kept busy meanwhile; below 0: not known, or of a GPU
};

struct MethodVerdict {
  MethodReading reading;
  Agreement agreement = Agreement::kNotJudged;
  Interval ratio;     // its time over the engine's, in the same state of the cache
  std::string cause;  // of a disagreement, or why nothing was judged
};
// Agrees: the whole 95% interval of the ratio lies within 1 +- limit. Disagrees: none of it does.
MethodVerdict judge_method(const EngineReading& engine, const MethodReading& method, double limit);

// A matrix multiply by somebody else, beside the ceiling that floors rest on.
struct MatmulReading {
  std::string what;   // "fp16 4096 x 4096 x 4096, PyTorch 2.9 (cuBLAS)"
  double tflops = 0;  // 0: not measured
  bool large = true;  // large enough to come near a ceiling; else it can only refute one, and never agrees
  bool is_16bit = false;
  std::string why_not = {};
};
struct CeilingVerdict {
  MatmulReading reading;
  double ceiling_tflops = 0;
  Agreement agreement = Agreement::kNotJudged;
  std::string cause;
};
CeilingVerdict judge_ceiling(const MatmulReading& reading, const Ceilings& ceilings);
// What the ceiling of such a multiply was measured with, and that neither that nor a library's multiply has the tiles
// of the candidate: the check is of the ceiling, and says nothing of what these tiles could reach.
std::string words_of_ceiling(const DeviceLimits& limits, bool is_16bit, const std::string& candidate);

struct CrosscheckResult {
  std::string wrong;         // what is wrong with the timed outputs: then nothing is judged
  std::string failed;        // the kernel did not compile, faulted, crashed or hung: nothing was timed
  bool interrupted = false;  // before all had their turn
  EngineReading engine;
  std::vector<MethodVerdict> methods;
  std::vector<CeilingVerdict> ceilings;
  std::string ceiling_is_of;  // words_of_ceiling(); empty where no multiply was held against one
  // Disagrees if any does; agrees if another tool agrees with the engine; else could not judge, for which why() is the
  // reason. Neither a loop of ours nor a matrix multiply says that another tool measures the same.
  Agreement agreement() const;
  std::string why() const;
};
nlohmann::json crosscheck_json(const CrosscheckResult& result);

// Why a candidate must not be launched in this process: it crashed or hung in the worker's. Empty: it did not. An
// incorrect one is left to time_in_process, which says so of the timed outputs. Throws as Worker::evaluate.
std::string why_not_launched(Worker& worker, const NamedProblem& named, const Candidate& candidate,
                             double timeout_seconds = 0);

// The engine, a plain loop around the launch, and repetitions as Google Benchmark makes them, in rounds of random
// order. On a GPU the engine's cold regime, too. `stop` is asked between rounds; fewer rounds are an honest answer.
struct InProcessTimes {
  EngineReading engine;
  std::vector<MethodReading> methods;
  std::string wrong;
  Ceilings ceilings;
};
struct InProcessOptions {
  int rounds = 24;
  std::uint64_t seed = 1;
};
InProcessTimes time_in_process(Device& device, const PlacedProblem& problem, const Candidate& candidate,
                               const InProcessOptions& options, const std::function<bool()>& stop);

}  // namespace flashcore
