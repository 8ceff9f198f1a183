#include "lab/measure/engine.h"

#include <algorithm>

#include "core/error.h"
#include "lab/measure/floor.h"
#include "lab/measure/prepared_candidate.h"
#include "lab/record/machine.h"

namespace flashcore {
namespace {

constexpr double kWarmUpSeconds = 0.1, kSustainedSeconds = 0.2;
// A reading of power and throttle reasons may cost as much as a sample, and the driver averages over longer than this.
constexpr double kReadingSeconds = 0.01;
constexpr int kMaxLaunchRatio = 4;
constexpr int kFastLaunches = 8;
// Gap before a burst: long enough on a GPU for the clock to come back from a power dip, on a CPU to hand the core over
// once.
constexpr double kGapMsCuda = 10, kGapMsCpu = 1;
// On a CPU that others use too, short samples are mostly either undisturbed or outliers, which a median drops; with two
// milliseconds every second one is a little disturbed.
constexpr double kRaceSampleUsCpu = 500;

class Engine {
 public:
  Engine(Device& device, const PlacedProblem& problem, const Oracle& oracle, const MeasureOptions& options)
      : device_(device), problem_(problem), oracle_(oracle), options_(options) {
    const bool cuda = device.info().limits.kind == DeviceKind::kCuda;
    gap_ms_ = options.gap_ms >= 0 ? options.gap_ms : cuda ? kGapMsCuda : kGapMsCpu;
  }

  Measurement alone(const CompiledCandidate& compiled) {
    BufferSet set(device_, problem_, options_.regime, oracle_.inputs);
    PreparedCandidate prepared(device_, problem_, compiled, prepare_options(), {&set}, options_.wrapper);
    warm_up([&] { prepared.sample(0); });
    const std::vector<Sample> samples = sample_alone(prepared);
    Measurement out;
    finish(out, set.copies());
    out.candidate = timing_of(samples, prepared.launches_per_sample());
    out.candidate_wrong = judge(prepared, 0);
    if (options_.audit) options_.audit(prepared, 0);
    return out;
  }

  Measurement pair(const CompiledCandidate& candidate, const CompiledCandidate& baseline) {
    BufferSet first(device_, problem_, options_.regime, oracle_.inputs),
        second(device_, problem_, options_.regime, oracle_.inputs);
    // A rotation through many copies evens out their places by itself.
    const bool trade = first.copies() == 1;
    const auto sets_of = [&](BufferSet& own, BufferSet& other) {
      return trade ? std::vector<BufferSet*>{&own, &other} : std::vector<BufferSet*>{&own};
    };
    PrepareOptions racing = prepare_options();
    if (racing.sample_us <= 0 && device_.info().limits.kind == DeviceKind::kCpu) racing.sample_us = kRaceSampleUsCpu;
    PreparedCandidate ours(device_, problem_, candidate, racing, sets_of(first, second), options_.wrapper);
    PreparedCandidate theirs(device_, problem_, baseline, racing, sets_of(second, first));

    equalise_launches(ours, theirs);
    round_up_launches(ours, theirs);

    // Each takes two samples a block: the first on its own set, the second on the other's.
    int our_turn = 0, their_turn = 0;
    const auto sample_ours = [&] { return ours.sample(our_turn++ % ours.sets()); };
    const auto sample_theirs = [&] { return theirs.sample(their_turn++ % theirs.sets()); };
    warm_up([&] {
      for (int set = 0; set < ours.sets(); ++set) {
        ours.sample(set);
        theirs.sample(set);
      }
    });
    RaceOptions race_options = options_of_race();
    const int every = blocks_per_binding(ours);
    race_options.before_block = [&](int block) {
      if (block == 0 || block % every != 0) return;
      ours.bind_again();
      theirs.bind_again();
    };
    Measurement out;
    out.race = race(sample_ours, sample_theirs, race_options);
    finish(out, first.copies());
    out.candidate = timing_of(out.race.candidate, ours.launches_per_sample());
    out.baseline = timing_of(out.race.incumbent, theirs.launches_per_sample());
    out.candidate_wrong = judge(ours, 0);
    out.baseline_wrong = judge(theirs, 0);
    if (options_.audit) options_.audit(ours, 0);
    return out;
  }

 private:
  PrepareOptions prepare_options() const { return {options_.regime, options_.sample_us}; }

  std::uint64_t order_seed() const { return options_.order_seed ? options_.order_seed : options_.seed; }

  RaceOptions options_of_race() {
    RaceOptions race;
    race.seed = order_seed();
    race.min_blocks = options_.min_blocks;
    race.max_blocks = options_.max_blocks;
    race.max_seconds = options_.max_seconds;
    race.margin = options_.margin;
    race.target_half_width = options_.target_half_width;
    race.early_drop = options_.early_drop;
    race.before_sample = [this] { gap(); };
    race.after_sample = [this](Sample& sample) { note_environment(sample); };
    race.now_seconds = [this] { return device_.now_seconds(); };
    return race;
  }

  // The first launches after a pause are slow: timers with different numbers of them would differ by that alone. Where
  // one candidate is several times slower than the other, no such trifle matters and its samples would take too long.
  static void equalise_launches(PreparedCandidate& a, PreparedCandidate& b) {
    const int one = a.launches_per_sample(), other = b.launches_per_sample(), more = std::max(one, other);
    if (more > kMaxLaunchRatio * std::min(one, other)) return;
    a.use_launches(more);
    b.use_launches(more);
  }

  void round_up_launches(PreparedCandidate& a, PreparedCandidate& b) const {
    const int multiple = options_.launches_multiple;
    if (multiple <= 1) return;
    for (PreparedCandidate* prepared : {&a, &b})
      prepared->use_launches((prepared->launches_per_sample() + multiple - 1) / multiple * multiple);
  }

  // What a candidate allocates for itself has its place too, and buffers can be traded but that cannot: on a CPU it
  // made one of two equal candidates 1% to 4% slower for as long as they lived, and on an H200 two graphs of one kernel
  // differed by 0.025%, so that with four blocks of each 29 of 200 intervals of A against A excluded 1. So it moves, as
  // often as is cheap.
  static int blocks_per_binding(const PreparedCandidate& prepared) {
    return prepared.launches_per_sample() >= kFastLaunches ? 1 : 4;
  }

  void gap() {
    if (options_.condition == Condition::kBurst && gap_ms_ > 0) device_.idle(gap_ms_);
  }

  void note_environment(Sample& sample) {
    const double now = device_.now_seconds();
    if (!reading_ || now - reading_at_ > kReadingSeconds) {
      reading_ = device_.read_environment();
      reading_at_ = now;
    }
    sample.power_w = reading_->power_w;
    sample.throttle = reading_->throttle_reasons;
  }

  // Until the clock has settled under load; once in any case, for the first run after a pause is another one.
  template <class Body>
  void warm_up(Body&& body) {
    const double wanted = options_.condition == Condition::kSustained ? kWarmUpSeconds : 0;
    const double start = device_.now_seconds();
    do body();
    while (device_.now_seconds() - start < wanted);
  }

  std::vector<Sample> sample_alone(PreparedCandidate& prepared) {
    std::vector<Sample> samples;
    const double start = device_.now_seconds();
    const double at_least = options_.condition == Condition::kSustained ? kSustainedSeconds : 0;
    for (;;) {
      gap();
      samples.push_back(prepared.sample(0));
      if (!(samples.back().time_us > 0))
        throw_internal("a timer returned {} us; a sample must be positive", samples.back().time_us);
      note_environment(samples.back());
      const double elapsed = device_.now_seconds() - start;
      const int count = static_cast<int>(samples.size());
      if (elapsed < at_least) continue;
      if (count >= 4 * options_.min_samples || (count >= options_.min_samples && elapsed >= options_.max_seconds))
        return samples;
      // A launch so slow that the plan's samples would take minutes: fewer, but never fewer than a quartile needs.
      if (count >= 4 && elapsed >= 3 * options_.max_seconds) return samples;
    }
  }

  std::string judge(PreparedCandidate& prepared, int set) {
    prepared.refresh_outputs(set);
    return prepared.judge_outputs(set, problem_, oracle_).wrong;
  }

  void finish(Measurement& out, int copies) {
    out.environment = device_.read_environment();
    out.buffer_copies = copies;
    device_.synchronize();
  }

  Timing timing_of(const std::vector<Sample>& samples, int launches_per_sample) {
    std::vector<double> times, clocks;
    for (const Sample& s : samples) {
      times.push_back(s.time_us);
      if (s.clock_mhz > 0) clocks.push_back(s.clock_mhz);
    }
    Timing timing;
    timing.p10_us = quantile(times, 0.1);
    timing.p50_us = quantile(times, 0.5);
    timing.p90_us = quantile(times, 0.9);
    timing.samples = samples;
    timing.launches_per_sample = launches_per_sample;
    timing.regime = options_.regime;
    timing.condition = options_.condition;
    timing.floor_us = floor_us(problem_, device_.info(), device_.ceilings());
    timing.kcycles = clocks.empty() ? 0 : timing.p50_us * median(clocks) / 1000;
    return timing;
  }

  Device& device_;
  const PlacedProblem& problem_;
  const Oracle& oracle_;
  const MeasureOptions& options_;
  double gap_ms_ = 0;
  std::optional<EnvironmentReading> reading_;
  double reading_at_ = 0;
};

}  // namespace

Measurement measure(Device& device, const PlacedProblem& problem, const Oracle& oracle,
                    const CompiledCandidate& candidate, const CompiledCandidate* baseline,
                    const MeasureOptions& options) {
  Engine engine(device, problem, oracle, options);
  return baseline ? engine.pair(candidate, *baseline) : engine.alone(candidate);
}

std::optional<std::string> why_below_floor(const Timing& timing) {
  if (timing.p50_us >= kFloorTolerance * timing.floor_us) return std::nullopt;
  return fmt::format(
      "measurement error: {:.3f} us is faster than the floor of {:.3f} us (measured ceilings); the time is rejected",
      timing.p50_us, timing.floor_us);
}

int count_throttled(const std::vector<Sample>& samples) {
  return static_cast<int>(
      std::count_if(samples.begin(), samples.end(), [](const Sample& s) { return lowers_clocks(s.throttle); }));
}

}  // namespace flashcore
