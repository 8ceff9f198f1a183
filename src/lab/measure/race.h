#pragma once
// Race: two candidates timed against each other in randomised ABBA blocks. Clocks drift by more than the differences we
// look for, so a block's log-ratio, in which linear drift cancels, is the unit; two runs one after the other are not.

#include <cstdint>
#include <functional>
#include <vector>

#include "device/device.h"
#include "lab/record/trial.h"
#include "lab/statistics/statistics.h"

namespace flashcore {

using Sampler = std::function<Sample()>;

// Steady time, in seconds from any origin.
double steady_seconds();

struct RaceOptions {
  std::uint64_t seed = 1;  // order of each block (ABBA or BAAB) and the bootstrap
  int min_blocks = 8;      // before any verdict; at least kMinBlocks
  int max_blocks = 60;
  double max_seconds = 2;  // ends the race once min_blocks are done; at four times this it ends in any case
  double margin = 0.03;
  // Ends the race once the interval is narrower than this share of the margin on either side. A width says nothing of
  // which candidate is ahead, so stopping on it does not favour a verdict; stopping on significance would.
  double target_half_width = 1.0 / 3;
  bool early_drop = true;                                      // see RaceResult::dropped
  double drop_ratio = 3;                                       // of the medians, after two blocks
  std::function<void(int)> before_block = [](int) {};          // told the block's number, from 0
  std::function<void()> before_sample = [] {};                 // the idle gap, the same for both
  std::function<void(Sample&)> after_sample = [](Sample&) {};  // notes power and throttling
  std::function<double()> now_seconds = steady_seconds;        // what max_seconds is measured by
};

struct RaceResult {
  std::vector<Sample> candidate, incumbent;  // in the order taken
  std::vector<double> log_ratios;            // per block: log(incumbent's time / candidate's time)
  std::vector<bool> candidate_outside;       // per block: candidate, incumbent, incumbent, candidate; else the reverse
  Comparison comparison;                     // `against` left empty
  // The candidate was clearly slower (beyond drop_ratio, or the whole interval below 1 / (1 + margin)) and the race was
  // cut short.
  bool dropped = false;
};

// Samples that are not positive and finite are Error kInternal.
RaceResult race(const Sampler& candidate, const Sampler& incumbent, const RaceOptions& options);

// The verdict on block log-ratios alone: what race() ends with, and what a report recomputes.
Comparison compare_blocks(const std::vector<double>& log_ratios, double margin, std::uint64_t seed);
// The same for several processes' blocks; `over_processes`: hierarchical_bootstrap_median() of them.
Comparison compare_processes(const std::vector<std::vector<double>>& log_ratios,
                             const HierarchicalInterval& over_processes, double margin);
Comparison compare_processes(const std::vector<std::vector<double>>& log_ratios, double margin, std::uint64_t seed);

// The smallest change (0.012: 1.2%) that a run with such an interval over `blocks` blocks would have told from none
// with a power of 80% at 5%; infinite if the interval is.
double detectable_change(const Interval& log_interval, int blocks);

}  // namespace flashcore
