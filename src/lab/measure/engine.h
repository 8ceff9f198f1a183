#pragma once
// The measurement engine: one candidate alone, or two against each other, on any Device. It owns buffers, clock and
// order; a candidate only gets launched.
//
// Two candidates run in randomised ABBA blocks (race.h) and trade buffers in the middle of each: where a tensor lies
// in memory makes a kernel faster or slower, and would else be taken for a difference between them. In a block's
// log-ratio both the drift of the clock and the places cancel.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "lab/harness/compiled_candidate.h"
#include "lab/harness/oracle.h"
#include "lab/measure/prepared_candidate.h"
#include "lab/measure/race.h"
#include "lab/measure/spec.h"

namespace flashcore {

struct MeasureOptions : MeasurementSpec {  // the seed is of the inputs
  MeasureOptions() { max_seconds = 3; }
  std::uint64_t order_seed = 0;         // of the order in blocks and of resampling; 0: as `seed`
  int min_blocks = 8, max_blocks = 60;  // of a race
  int min_samples = 24;                 // of a candidate alone; it ends at four times this
  double target_half_width = 1.0 / 3;
  bool early_drop = false;
  double gap_ms = -1;    // idle time before each sample of a burst; negative: the device's default
  double sample_us = 0;  // as PrepareOptions
  // Of a race: every sample has so many launches or a multiple, as near as the timer allows. For a wrapper that does
  // something once in so many.
  int launches_multiple = 1;
  // Of the candidate's launches, not of the baseline's.
  LaunchWrapper wrapper = {};
  // Called with the candidate as prepared and the set it ran on last, once all is timed: for audits that launch it
  // again.
  std::function<void(PreparedCandidate& candidate, int set)> audit = {};
};

struct Measurement {
  Timing candidate;
  std::optional<Timing> baseline;
  RaceResult race;                              // with a baseline
  std::string candidate_wrong, baseline_wrong;  // what is wrong with the timed outputs; empty: nothing
  int buffer_copies = 1;
  EnvironmentReading environment;  // after the last sample
};

// Both inputs are the oracle's, which must not be those that a gate has shown to the candidates before.
// Samples that are not positive are Error kInternal; DeviceFault passes through.
Measurement measure(Device& device, const PlacedProblem& problem, const Oracle& oracle,
                    const CompiledCandidate& candidate, const CompiledCandidate* baseline,
                    const MeasureOptions& options);

// The inputs that candidates are timed on: of another seed than those that the correctness gate showed them.
constexpr std::uint64_t timing_seed(std::uint64_t seed) { return seed ^ 0x74696d65; }

// Why the time cannot be, in words; none if it can. A time below what the hardware can do was not measured, whatever
// the timer says; a ceiling is itself measured, to about 3%.
std::optional<std::string> why_below_floor(const Timing& timing);

// Samples that ran under a throttle reason that lowers clocks.
int count_throttled(const std::vector<Sample>& samples);

}  // namespace flashcore
