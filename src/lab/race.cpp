#include "lab/race.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/error.h"

namespace flashcore {
namespace {

constexpr int kDropBlocks = 2;  // blocks before drop_ratio may end a race: one could be an interrupt

// Launches of seconds each would hold a race for minutes: beyond this multiple of its time it ends with what it has,
// which below kMinBlocks is INCONCLUSIVE.
constexpr double kPatience = 4;

double log_time(const std::vector<Sample>& samples, std::size_t from_end) {
  return std::log(samples[samples.size() - from_end].time_us);
}

void take(const Sampler& sampler, const RaceOptions& options, std::vector<Sample>& into) {
  options.before_sample();
  into.push_back(sampler());
  const double time = into.back().time_us;
  if (!(time > 0) || !std::isfinite(time))
    throw_internal("a timer returned {} us; a sample must be positive and finite", time);
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
  result.log_ratios.push_back(0.5 * (log_time(result.incumbent, 1) + log_time(result.incumbent, 2)) -
                              0.5 * (log_time(result.candidate, 1) + log_time(result.candidate, 2)));
}

}  // namespace

Comparison compare_blocks(const std::vector<double>& log_ratios, double margin, std::uint64_t seed) {
  const Interval log_interval = bootstrap_median(log_ratios, seed);
  Comparison comparison;
  comparison.speedup = std::exp(log_interval.estimate);
  comparison.ci95_low = std::exp(log_interval.low);
  comparison.ci95_high = std::exp(log_interval.high);
  comparison.verdict = verdict_of({comparison.speedup, comparison.ci95_low, comparison.ci95_high}, margin);
  comparison.blocks = static_cast<int>(log_ratios.size());
  comparison.margin = margin;
  comparison.p_value = wilcoxon_signed_rank(log_ratios);
  comparison.detectable = std::expm1(0.5 * (log_interval.high - log_interval.low));
  return comparison;
}

RaceResult race(const Sampler& candidate, const Sampler& incumbent, const RaceOptions& options) {
  RaceResult result;
  SplitMix random(options.seed);
  const auto started = std::chrono::steady_clock::now();
  const int min_blocks = std::max(options.min_blocks, kMinBlocks);
  const int max_blocks = std::max(options.max_blocks, min_blocks);
  for (int block = 1; block <= max_blocks; ++block) {
    run_block(candidate, incumbent, options, random.below(2) == 0, result);
    if (options.early_drop && block >= kDropBlocks && median(result.log_ratios) < -std::log(options.drop_ratio)) {
      result.dropped = true;
      break;
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
    if (elapsed.count() > kPatience * options.max_seconds) break;
    if (block < kMinBlocks || (block < min_blocks && !options.early_drop)) continue;
    const Comparison so_far = compare_blocks(result.log_ratios, options.margin, options.seed);
    if (options.early_drop && so_far.ci95_high < 1 / (1 + options.margin)) {
      result.dropped = true;
      break;
    }
    if (block < min_blocks) continue;
    if (so_far.detectable < options.target_half_width * options.margin || elapsed.count() > options.max_seconds) break;
  }
  result.comparison = compare_blocks(result.log_ratios, options.margin, options.seed);
  // Three times slower in every one of two blocks is beyond what any interval has to settle.
  if (result.dropped) result.comparison.verdict = "SLOWER";
  return result;
}

}  // namespace flashcore
