#include "lab/measure/race.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace flashcore {
namespace {

constexpr int kDropBlocks = 2;  // blocks before drop_ratio may end a race: one could be an interrupt

// Launches of seconds each would hold a race for minutes: beyond this multiple of its time it ends with what it has,
// which below kMinBlocks is INCONCLUSIVE.
constexpr double kPatience = 4;

// Looks at the interval are this far apart, relatively: a bootstrap over hundreds of blocks costs more than a block.
constexpr double kLookSpacing = 1.1;
constexpr int kLookResamples = 500;

double log_time(const std::vector<Sample>& samples, std::size_t from_end) {
  return std::log(samples[samples.size() - from_end].time_us);
}

void take(const Sampler& sampler, const RaceOptions& options, std::vector<Sample>& into) {
  options.before_sample();
  into.push_back(sampler());
  const double time = into.back().time_us;
  if (!(time > 0) || !std::isfinite(time))
    throw_internal("a timer returned {} us; a sample must be positive and finite", time);
  options.after_sample(into.back());
}

void run_block(const Sampler& candidate, const Sampler& incumbent, const RaceOptions& options, bool candidate_outside,
               RaceResult& result) {
  const auto& outside = candidate_outside ? candidate : incumbent;
  const auto& inside = candidate_outside ? incumbent : candidate;
  auto& outside_samples = candidate_outside ? result.candidate : result.incumbent;
  auto& inside_samples = candidate_outside ? result.incumbent : result.candidate;
  take(outside, options, outside_samples);
  take(inside, options, inside_samples);
  take(inside, options, inside_samples);
  take(outside, options, outside_samples);
  result.candidate_outside.push_back(candidate_outside);
  result.log_ratios.push_back(0.5 * (log_time(result.incumbent, 1) + log_time(result.incumbent, 2)) -
                              0.5 * (log_time(result.candidate, 1) + log_time(result.candidate, 2)));
}

Comparison comparison_of(const Interval& log_interval, const std::vector<double>& log_ratios, double margin) {
  Comparison comparison;
  comparison.speedup = std::exp(log_interval.estimate);
  comparison.ci95_low = std::exp(log_interval.low);
  comparison.ci95_high = std::exp(log_interval.high);
  comparison.verdict = verdict_of({comparison.speedup, comparison.ci95_low, comparison.ci95_high}, margin);
  comparison.blocks = static_cast<int>(log_ratios.size());
  comparison.margin = margin;
  comparison.p_value = wilcoxon_signed_rank(log_ratios);
  comparison.detectable = detectable_change(log_interval, comparison.blocks);
  return comparison;
}

// Whether a look at the blocks so far ends the race.
bool is_over(const RaceOptions& options, int block, int min_blocks, double elapsed, RaceResult& result) {
  const Interval log_interval = bootstrap_median(result.log_ratios, options.seed, kLookResamples);
  if (options.early_drop && log_interval.high < -std::log1p(options.margin)) result.dropped = true;
  if (result.dropped) return true;
  if (block < min_blocks) return false;
  return std::expm1(log_interval.half_width()) < options.target_half_width * options.margin ||
         elapsed > options.max_seconds;
}

}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double detectable_change(const Interval& log_interval, int blocks) {
  if (blocks < 2 || !std::isfinite(log_interval.half_width())) return std::numeric_limits<double>::infinity();
  // The interval's own half width, turned back into the deviation of one block.
  const double n = blocks;
  const double deviation = log_interval.half_width() / student_quantile(0.975, n - 1) * std::sqrt(n);
  return std::expm1(minimum_detectable_effect(deviation, n));
}

Comparison compare_blocks(const std::vector<double>& log_ratios, double margin, std::uint64_t seed) {
  return comparison_of(bootstrap_median(log_ratios, seed), log_ratios, margin);
}

Comparison compare_processes(const std::vector<std::vector<double>>& log_ratios,
                             const HierarchicalInterval& over_processes, double margin) {
  std::vector<double> all;
  for (const auto& blocks : log_ratios) all.insert(all.end(), blocks.begin(), blocks.end());
  Comparison comparison = comparison_of(over_processes.interval, all, margin);
  comparison.processes = static_cast<int>(log_ratios.size());
  if (comparison.processes > 1) comparison.p_value = over_processes.p_value;
  return comparison;
}

Comparison compare_processes(const std::vector<std::vector<double>>& log_ratios, double margin, std::uint64_t seed) {
  return compare_processes(log_ratios, hierarchical_bootstrap_median(log_ratios, seed), margin);
}

RaceResult race(const Sampler& candidate, const Sampler& incumbent, const RaceOptions& options) {
  RaceResult result;
  SplitMix random(options.seed);
  const double started = options.now_seconds();
  const int min_blocks = std::max(options.min_blocks, kMinBlocks);
  const int max_blocks = std::max(options.max_blocks, min_blocks);
  int next_look = options.early_drop ? kMinBlocks : min_blocks;
  for (int block = 1; block <= max_blocks; ++block) {
    options.before_block(block - 1);
    run_block(candidate, incumbent, options, random.below(2) == 0, result);
    if (options.early_drop && block >= kDropBlocks && median(result.log_ratios) < -std::log(options.drop_ratio)) {
      result.dropped = true;
      break;
    }
    const double elapsed = options.now_seconds() - started;
    if (elapsed > kPatience * options.max_seconds) break;
    const bool out_of_time = elapsed > options.max_seconds && block >= min_blocks;
    if (block < next_look && !out_of_time) continue;
    next_look = std::max(block + 1, static_cast<int>(block * kLookSpacing));
    if (is_over(options, block, min_blocks, elapsed, result)) break;
  }
  result.comparison = compare_blocks(result.log_ratios, options.margin, options.seed);
  // Three times slower in every one of two blocks is beyond what any interval has to settle.
  if (result.dropped) result.comparison.verdict = SpeedVerdict::kSlower;
  return result;
}

}  // namespace flashcore
