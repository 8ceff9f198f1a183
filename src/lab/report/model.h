#pragma once
// What the report says, before any format: page, Markdown and JSON are written from this.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/economics/account.h"
#include "lab/record/trial.h"
#include "lab/report/funnel.h"
#include "lab/report/report.h"

namespace flashcore::report {

// Where a quoted time comes from, best first.
enum class Basis {
  kHoldout,    // held-out data: what the leaderboard quotes
  kBench,      // a bench run
  kDiscovery,  // search or default only: not a result yet (the best of many is lucky)
  kNone,       // nothing that passed correctness was timed
};
const char* words(Basis basis);

struct ProblemRow {
  std::string device_key, device_name;
  std::string problem_id, name;  // name: the suite's word, else the id
  std::string label;             // name, with the device if the report covers several
  std::string suite;
  PlacedProblem problem;
  Basis basis = Basis::kNone;
  std::optional<Trial> winner;    // has a timing
  std::optional<Trial> baseline;  // the family's default config, timed
  // Winner over `speedup->against`, interleaved. None if the winner is the default itself or they never met.
  std::optional<Comparison> speedup;
  bool default_won = false;
  bool stale = false;
  int ties = 0;
  Funnel funnel;
  std::string no_winner_reason;  // when there is none
};

struct DeviceSummary {
  DeviceInfo info;
  std::optional<Ceilings> ceilings;  // if a gate left them as evidence
  double clock_low_mhz = 0, clock_high_mhz = 0, power_high_w = 0, temperature_high_c = 0;  // 0: not known
  std::vector<std::string> throttle_reasons;
  // Load averages seen around the timed trials, and how far the winners' medians may be off (noise(), the median of
  // them); below 0: not known.
  double load_low = -1, load_high = -1, noise = -1;
  int cores = 0;
};
// "machine load", "0.4 to 3.1 (of 16 cores)" and the like; text.
std::vector<std::pair<std::string, std::string>> machine_facts(const DeviceSummary& device);

struct Model {
  std::vector<DeviceSummary> devices;
  std::vector<std::string> suites;
  std::vector<std::string> conditions;  // "graph, burst"
  bool any_stale = false;
  std::string first_at, last_at;
  int trials = 0, candidates = 0, stopped_by_gate = 0;
  std::vector<ProblemRow> rows;           // in order of first appearance
  std::vector<RejectedGroup> rejected;    // most frequent first
  std::vector<Account> accounts;          // what the trials cost, by device
  std::optional<double> geomean_speedup;  // over the default, rows with a winner; a kept default counts as 1
};

Model make_model(const std::vector<Trial>& trials, const IsCurrent& is_current);

// --- numbers of a row ---
double tflops(const Problem& problem, double time_us);
double gbps(const Problem& problem, double time_us);
double intensity(const Problem& problem);                        // FLOPs per byte that must move
std::string throughput(const Problem& problem, double time_us);  // "57.2 TFLOP/s"; decode in "GB/s"
// Half of the median's 95% interval as a share of it: 0.01 is ±1%. Not finite with too few samples.
double noise(const Timing& timing);
inline constexpr const char* kFloorNote =
    "× floor: the time over the fastest that this machine's measured arithmetic and bandwidth allow for the problem. "
    "1.00× cannot be beaten.";
// floor / time: 1 would be the fastest honest time. None without a floor.
std::optional<double> floor_fraction(const Timing& timing);
// "block_m=128" for every config value in which the winner differs from the default of the same family; none if they
// are of different families or there is no default.
std::vector<std::string> config_parts(const std::string& config);
std::vector<std::string> changed_parts(const ProblemRow& row);
// One plain sentence: who won, by how much, how sure.
std::string sentence(const ProblemRow& row);
std::string verdict_words(const ProblemRow& row);
// How those words are to be taken.
enum class RowTone { kNeutral, kGood, kWarn, kBad };
RowTone tone_of(const ProblemRow& row);
std::string bench_command(const ProblemRow& row);  // re-measures the winner
// "flashcore tune --device cpu --suite quick --store trials.db": what made the trials, problem by problem where they
// are not of a whole suite.
std::vector<std::string> commands_to_repeat(const std::vector<Trial>& trials);

}  // namespace flashcore::report
