#pragma once
// Why a candidate takes the time it takes: facts from every source that is there, held against targets and ranked.
// diagnose() is a pure function of the facts; lab/diagnose/gather.h collects them.

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/operands.h"
#include "core/words.h"
#include "device/artifact.h"
#include "device/device.h"
#include "lab/diagnose/counts.h"
#include "lab/gates/occupancy.h"
#include "lab/record/machine.h"

namespace flashcore {

// What slows a kernel, and can be changed in the kernel, its config or its launch; then what bounds it after that.
enum class Cause {
  kSpills,
  kStack,
  kLowOccupancy,
  kSmallGrid,
  kLastWave,
  kBankConflicts,
  kUncoalesced,
  kNoOverlap,
  kDivergence,
  kBarriers,
  kExtraWork,
  kBusyMachine,
  // limits
  kTensorCores,
  kSpecialFunctions,
  kFmaUnits,
  kSharedMemory,
  kL2,
  kDram,
  kLatency,
};
template <>
struct WordsOf<Cause> {
  static constexpr std::string_view what = "bottleneck";
  static constexpr std::pair<Cause, std::string_view> table[] = {
      {Cause::kSpills, "spills"},
      {Cause::kStack, "stack"},
      {Cause::kLowOccupancy, "low occupancy"},
      {Cause::kSmallGrid, "small grid"},
      {Cause::kLastWave, "last wave"},
      {Cause::kBankConflicts, "bank conflicts"},
      {Cause::kUncoalesced, "uncoalesced"},
      {Cause::kNoOverlap, "no overlap"},
      {Cause::kDivergence, "divergence"},
      {Cause::kBarriers, "barriers"},
      {Cause::kExtraWork, "extra work"},
      {Cause::kBusyMachine, "busy machine"},
      {Cause::kTensorCores, "tensor cores"},
      {Cause::kSpecialFunctions, "special functions"},
      {Cause::kFmaUnits, "FMA units"},
      {Cause::kSharedMemory, "shared memory"},
      {Cause::kL2, "L2"},
      {Cause::kDram, "DRAM"},
      {Cause::kLatency, "latency"},
  };
};
inline bool is_limit(Cause cause) { return cause >= Cause::kTensorCores; }

// A source that gave nothing, and why; what it would have told is unknown.
struct LostSource {
  std::string source;  // "time", or kCountersSource: those that are left are used
  std::string why;     // one sentence: what is missing, and what still holds
};

inline constexpr const char* kCountersSource = "hardware counters";

struct ProfileFacts {
  PlacedProblem problem;
  std::string candidate;
  // The GPU or CPU that occupancy, rates and roofs are of. Of the emulator: a GPU of the emulated architecture.
  DeviceLimits limits;
  std::optional<EmulatorCounts> counts;  // maybe of a smaller problem: counts->problem
  std::optional<Artifact> artifact;      // facts only
  std::optional<Occupancy> occupancy;
  std::map<std::string, double> counters;  // of hardware, by Nsight Compute's name
  std::string foreign_kernel;              // what they are of, where that is not the candidate's kernel
  std::optional<Ceilings> ceilings;
  std::string ceilings_from;
  std::optional<double> time_us;
  std::string time_from;
  int threads = 0;         // of a CPU candidate; 0: not known
  MachineReading machine;  // while it was timed
  std::vector<LostSource> lost;
};

// Rows by whose name others find them.
inline constexpr const char* kSmBusyIndicator = "SM busy";
inline constexpr const char* kBankPassesIndicator = "bank passes over the fewest";

// One row of the table of targets.
struct Indicator {
  std::string name;
  std::optional<double> value;  // none: no source gave it
  std::string unit;             // "%", "warps", ...
  std::string target;           // in words, ">= 70"; empty: none is set
  std::optional<bool> met;      // none without a value or a target
  std::string source;           // where the value is from, or which source would give it
};

// The shortest time that one resource alone allows.
struct Roof {
  Cause cause = Cause::kTensorCores;
  double least_us = 0;
  std::string basis;
};

struct Bottleneck {
  int rank = 0;  // from 1
  Cause cause = Cause::kSpills;
  // Of the time, 0 to 1: an estimate of the fault's part; of a limit, how much of the time it explains. Made to rank
  // by, from a model where nothing measured it.
  double share = 0;
  std::string sentence;
  std::vector<std::string> evidence;
  std::string share_of = "the time";
};

struct Profile {
  std::vector<Indicator> indicators;
  std::vector<Roof> roofs;  // the highest first
  // Faults first, then limits; of each kind the largest share first. Empty: no source names one.
  std::vector<Bottleneck> bottlenecks;
};

Profile diagnose(const ProfileFacts& facts);

// Its three parts.
std::vector<Indicator> indicators_of(const ProfileFacts& facts);
std::vector<Roof> roofs_of(const ProfileFacts& facts);
std::vector<Bottleneck> faults_of(const ProfileFacts& facts);
// Whether a source is there that this fault would show in: without it, not naming the fault says nothing.
bool could_show(Cause fault, const ProfileFacts& facts);
// What is left when no fault is repaired: roofs against the time, hardware's throughputs, or the counts' cycles.
std::vector<Bottleneck> limits_of_profile(const ProfileFacts& facts, const std::vector<Roof>& roofs);

// One of the results of flashcore.profile/1.
inline constexpr const char* kProfileSchema = "flashcore.profile/1";
nlohmann::json profile_json(const ProfileFacts& facts, const Profile& profile);

}  // namespace flashcore
