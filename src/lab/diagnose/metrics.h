#pragma once
// Hardware counters by Nsight Compute's names: those that a profile asks for, and what each answers.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flashcore {

enum class Metric {
  kDuration,     // ns
  kSmBusy,       // % of the busiest pipe's peak
  kSmsWithWork,  // % of cycles in which an SM has a warp
  kWarpsPerSm,   // active, while the SM has any
  // pipes, % of their peak
  kTensor,
  kSpecial,
  kFma,
  // % of the peak throughput
  kDram,
  kL2,
  // % of sectors
  kL1Hits,
  kL2Hits,
  // of each sector that a global access touches, % that is asked for; copied: cp.async
  kLoadedBytes,
  kStoredBytes,
  kCopiedBytes,
  // sectors that these accesses touch
  kLoadedSectors,
  kStoredSectors,
  kCopiedSectors,
  kCopiedSectorsPastL1,  // of the copied ones, where a version counts the two ways apart
  kL2Sectors,            // of all kinds, TMA's too
  kBankConflicts,        // further passes over the banks
  kSharedPasses,
  kSmCycles,       // elapsed, summed over the SMs
  kLanesPerIssue,  // of 32
  kIssueSlots,     // % of cycles with an instruction issued
  // instructions of warps; local: of spills and of arrays indexed at run time
  kLocalLoads,
  kLocalStores,
  kInstructions,
  kRegistersPerThread
};

// The first that Nsight Compute gave counts.
const std::vector<std::string>& names_of(Metric metric);
// Which metric a name is; none: not one of ours.
std::optional<Metric> metric_of(std::string_view name);

// Why warps did not issue, as Nsight Compute names it, in % of the time that a warp is active.
struct StallReason {
  std::string_view name;    // "long_scoreboard"
  std::string_view words;   // what a warp waits for
  bool for_others = false;  // for memory or other warps; else for its own turn to issue, which computing costs anyhow
};
const std::vector<StallReason>& stall_reasons();
std::string stall_metric(std::string_view reason);

// All names to ask Nsight Compute for.
std::vector<std::string> profile_metrics();

using CounterValues = std::map<std::string, double>;
// Takes out what no GPU can count (a negative number, 180% of a peak, 40 lanes of 32), as a torn file or a profiler
// with a fault gives it: "lts__t_sector_hit_rate.pct is 180, and at most 110 is possible". A cause must not rest on
// one.
std::vector<std::string> drop_impossible(CounterValues& counters);
std::optional<double> value_of(const CounterValues& counters, Metric metric);
// Which of its names the value is of; empty: none.
std::string name_of_value(const CounterValues& counters, Metric metric);

// What loads, copies and stores of threads do with the sectors that they touch.
struct SectorUse {
  double touched = 0, needed = 0;
  std::vector<std::string> words;  // a line for each kind of access

  double excess() const { return needed > 0 ? touched / needed : 1; }
};
// None where a kind of access that happens was not counted: a percentage alone does not say of how much it is.
std::optional<SectorUse> sector_use(const CounterValues& counters);

// The reasons that were measured, the longest first; "selected" and "not_selected", which are no waits, left out.
std::vector<std::pair<StallReason, double>> stalls_of(const CounterValues& counters);

// Whether `name` has the form of a metric: "sm__cycles_active.avg". Error kBadInput if not.
void check_metric_name(std::string_view name);

}  // namespace flashcore
