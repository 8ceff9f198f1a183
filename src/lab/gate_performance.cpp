#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/error.h"
#include "core/hash.h"
#include "lab/checks.h"
#include "lab/gates.h"
#include "lab/kept_results.h"
#include "lab/race.h"
#include "lab/self_test.h"

namespace flashcore {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// Inputs that differ from those of the correctness gate: a result kept from there shows.
constexpr std::uint64_t kTimingSeed = 0x74696d65;
// Rows of the timed outputs that are judged after the fact; they were judged in full, or by sample, before.
constexpr double kTimedReferenceFlops = 5e8;
// A ceiling is itself measured, to about this much.
constexpr double kFloorTolerance = 0.97;
constexpr double kWarmUpMs = 100, kSustainedMs = 200;
// Gap before a burst: long enough on a GPU for the clock to come back from a power dip, on a CPU to hand the core over
// once.
constexpr double kGapMsCuda = 10, kGapMsCpu = 1;
constexpr int kMaxCopies = 64;

struct Plan {
  int min_blocks, max_blocks;  // of a race
  int min_samples;             // of a candidate alone
  double max_seconds;
};

Plan plan_of(const EvaluateRequest& request) {
  Plan plan{};
  switch (request.phase) {
    case Phase::kSearch: plan = {kMinBlocks, 24, 12, 1.5}; break;
    case Phase::kHoldout: plan = {12, 60, 24, 5}; break;
    case Phase::kBench: plan = {12, 60, 24, 3}; break;
    case Phase::kDefault:
    case Phase::kCheck: plan = {8, 24, 16, 2}; break;
  }
  if (request.min_samples > 0) {
    plan.min_samples = request.min_samples;
    plan.min_blocks = std::max(kMinBlocks, (request.min_samples + 1) / 2);  // a block holds two samples of each
    plan.max_blocks = std::max(plan.max_blocks, plan.min_blocks);
  }
  if (request.max_seconds > 0) plan.max_seconds = request.max_seconds;
  return plan;
}

// How many sets of buffers a cold measurement rotates through: more than twice the last-level cache, while they fit
// into a quarter of the memory.
int copies_for(const Problem& problem, const DeviceInfo& device, Regime regime) {
  if (regime != Regime::kCold) return 1;
  const auto each = static_cast<double>(std::max<std::size_t>(Operands::total_bytes(problem), 1));
  const double wanted = std::floor(2.0 * static_cast<double>(device.limits.l2_bytes) / each) + 2;
  const double affordable = device.memory_bytes > 0 ? 0.25 * static_cast<double>(device.memory_bytes) / each : wanted;
  return static_cast<int>(std::clamp(std::min(wanted, affordable), 1.0, static_cast<double>(kMaxCopies)));
}

// A contestant on its own buffers, with its timer.
class Stand {
 public:
  Stand(Device& device, const EvaluateRequest& request, const Contestant& contestant, const Oracle& oracle)
      : loaded_(device, contestant.candidate, request.problem, contestant.artifact) {
    const int copies = copies_for(request.problem, device.info(), request.regime);
    for (int i = 0; i < copies; ++i) {
      operands_.push_back(std::make_unique<Operands>(device, request.problem));
      operands_.back()->upload(oracle.inputs);
      operands_.back()->poison_outputs();
      launches_.push_back(loaded_.bind(operands_.back()->args()));
    }
    timer_ = device.make_timer(launches_, request.regime);
  }
  Sample sample() { return timer_->sample(); }
  // Times launches on the first set of buffers, whose inputs change and come back.
  std::string kept_results(Device& device, const Oracle& oracle) {
    return find_kept_results(device, *operands_.front(), launches_.front(), oracle.inputs);
  }
  // What the sample after this leaves is of that sample.
  void poison_outputs() {
    for (const auto& operands : operands_) operands->poison_outputs();
  }
  int launches_per_sample() const { return timer_->launches_per_sample(); }
  int copies() const { return static_cast<int>(operands_.size()); }

  // What is wrong with the outputs that the timed launches left; empty if nothing is. Only buffers that the timer came
  // to are judged: a rotation may be longer than the run.
  std::string judge_outputs(const Problem& problem, const Oracle& oracle, std::int64_t launches) const {
    const std::size_t used =
        std::min<std::size_t>(operands_.size(), static_cast<std::size_t>(std::max<std::int64_t>(launches, 1)));
    AttentionOutputs first;
    for (std::size_t i = 0; i < used; ++i) {
      if (const auto name = is_on(Check::kRedZones) ? operands_[i]->broken_red_zone() : std::nullopt)
        return fmt::format("the red zone around {} is broken", *name);
      const AttentionOutputs outputs = operands_[i]->download_outputs();
      if (i > 0) {
        if (!bitwise_equal(first, outputs)) return "two copies of the same inputs gave different bits";
        continue;
      }
      if (const std::int64_t unwritten = is_on(Check::kUnwritten) ? count_unwritten(outputs) : 0)
        return fmt::format("{} elements were never written", unwritten);
      const OutputError error = compare(problem, oracle.reference, gather_rows(outputs.o, oracle.rows),
                                        gather_lse(problem, outputs.lse, oracle.rows));
      if (is_on(Check::kErrorBound) && !within(error, oracle.bound))
        return fmt::format("relative error {:.3g}, worst row {:.3g}, {} non-finite; bounds {:.3g}, {:.3g}, 0",
                           error.rel, error.worst_row_rel, error.nonfinite, oracle.bound.rel,
                           oracle.bound.worst_row_rel);
      first = outputs;
    }
    return "";
  }

 private:
  LoadedCandidate loaded_;
  std::vector<std::unique_ptr<Operands>> operands_;
  std::vector<Launch> launches_;
  std::unique_ptr<Timer> timer_;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Both, in turn, until the clock has settled under load.
void warm_up(Stand& candidate, Stand* incumbent, Condition condition) {
  const double wanted = condition == Condition::kSustained ? kWarmUpMs / 1000 : 0;
  const auto start = Clock::now();
  do {
    candidate.sample();
    if (incumbent) incumbent->sample();
  } while (seconds_since(start) < wanted);
}

std::vector<Sample> sample_alone(Stand& stand, const Plan& plan, Condition condition,
                                 const std::function<void()>& gap) {
  std::vector<Sample> samples;
  const auto start = Clock::now();
  const double at_least = condition == Condition::kSustained ? kSustainedMs / 1000 : 0;
  for (;;) {
    gap();
    samples.push_back(stand.sample());
    if (!(samples.back().time_us > 0))
      throw_internal("a timer returned {} us; a sample must be positive", samples.back().time_us);
    const double elapsed = seconds_since(start);
    const int count = static_cast<int>(samples.size());
    if (elapsed < at_least) continue;
    if (count >= 4 * plan.min_samples || (count >= plan.min_samples && elapsed >= plan.max_seconds)) return samples;
    // A launch so slow that the plan's samples would take minutes: fewer, but never fewer than a quartile needs.
    if (count >= 4 && elapsed >= 3 * plan.max_seconds) return samples;
  }
}

Timing timing_of(const std::vector<Sample>& samples, const EvaluateRequest& request, int launches_per_sample,
                 double floor) {
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
  timing.regime = request.regime;
  timing.condition = request.condition;
  timing.floor_us = floor;
  timing.kcycles = clocks.empty() ? 0 : timing.p50_us * median(clocks) / 1000;
  return timing;
}

RaceOptions race_options(const EvaluateRequest& request, const Plan& plan, const std::function<void()>& gap) {
  RaceOptions options;
  options.seed = request.seed;
  options.min_blocks = plan.min_blocks;
  options.max_blocks = plan.max_blocks;
  options.max_seconds = plan.max_seconds;
  options.margin = request.margin;
  options.early_drop = request.phase == Phase::kSearch;
  options.before_sample = gap;
  return options;
}

void conclude(Verdict& verdict, Trial& trial, GateStatus status, std::string ended, std::string reason) {
  verdict.status = status;
  verdict.reason = std::move(reason);
  trial.ended = std::move(ended);
}

void judge_comparison(const RaceResult& raced, Verdict& verdict, Trial& trial) {
  const Comparison& c = *trial.comparison;
  const std::string numbers = fmt::format("speed-up {:.4f} [{:.4f}, {:.4f}] over {} blocks against {}", c.speedup,
                                          c.ci95_low, c.ci95_high, c.blocks, c.against);
  if (c.verdict == "FASTER" || c.verdict == "SAME")
    return conclude(verdict, trial, GateStatus::kPassed, "passed", c.verdict + ": " + numbers);
  if (c.verdict == "SLOWER") verdict.evidence["check"] = to_string(Check::kComparison);
  if (c.verdict == "SLOWER" && is_on(Check::kComparison))
    return conclude(verdict, trial, GateStatus::kFailed, "slower",
                    (raced.dropped ? "SLOWER (stopped early): " : "SLOWER: ") + numbers);
  conclude(
      verdict, trial, GateStatus::kSkipped, "inconclusive",
      fmt::format("INCONCLUSIVE: {}; this run could tell a change of {:.1f}% from none", numbers, 100 * c.detectable));
}

// A time below what the hardware can do was not measured, whatever the timer says.
bool below_floor(const Timing& timing, Verdict& verdict, Trial& trial) {
  if (!is_on(Check::kFloor) || timing.p50_us >= kFloorTolerance * timing.floor_us) return false;
  verdict.evidence["check"] = to_string(Check::kFloor);
  conclude(verdict, trial, GateStatus::kError, "error",
           fmt::format("measurement error: {:.3f} us is faster than the floor of {:.3f} us (measured ceilings); the "
                       "time is rejected",
                       timing.p50_us, timing.floor_us));
  trial.timing.reset();
  trial.comparison.reset();
  return true;
}

}  // namespace

std::string execution_identity(const Contestant& contestant, const Problem& problem, const DeviceLimits& limits) {
  Hasher hasher;
  hasher.add(contestant.artifact.code_hash);
  if (contestant.candidate.family->kind() == DeviceKind::kCpu) return hasher.hex();
  AttentionArgs nowhere;
  nowhere.layouts = make_layouts(problem);
  const LaunchSpec spec =
      contestant.candidate.family->launch_spec(contestant.candidate.config, problem, limits, nowhere);
  for (const Dim3& d : {spec.grid, spec.block, spec.cluster}) hasher.add(fmt::format("{} {} {}", d.x, d.y, d.z));
  hasher.add(fmt::format("{} {}", spec.shared_bytes, spec.programmatic));
  for (const TensorMapSpec& map : spec.tensor_maps) {
    for (const std::uint32_t extent : map.box) hasher.add(std::to_string(extent) + " ");
    hasher.add(fmt::format("swizzle {}", static_cast<unsigned>(map.swizzle)));
  }
  hasher.add({reinterpret_cast<const char*>(spec.params.data()), spec.params.size()});
  return hasher.hex();
}

Verdict judge_performance(Device& device, OracleCache& oracles, const EvaluateRequest& request,
                          const Contestant& contestant, const Contestant* incumbent, Trial& trial) {
  Verdict verdict;
  verdict.gate = "performance";
  const Problem& problem = request.problem;
  if (problem.batch * problem.heads_q * problem.seqlen_q == 0) {
    conclude(verdict, trial, GateStatus::kSkipped, "passed", "there is nothing to compute, so nothing to time");
    return verdict;
  }
  const auto oracle = oracles.get(problem, Pattern::kNormal, request.seed ^ kTimingSeed,
                                  std::min(request.max_reference_flops, kTimedReferenceFlops));
  if (incumbent && !race_self_test().empty()) throw_internal("{}", race_self_test());
  const Plan plan = plan_of(request);
  Stand ours(device, request, contestant, *oracle);
  std::optional<Stand> theirs;
  if (incumbent) theirs.emplace(device, request, *incumbent, *oracle);

  const double gap_ms = device.info().limits.kind == DeviceKind::kCuda ? kGapMsCuda : kGapMsCpu;
  const bool burst = request.condition == Condition::kBurst;
  const std::function<void()> gap = [&] {
    if (burst) device.idle(gap_ms);
  };
  warm_up(ours, theirs ? &*theirs : nullptr, request.condition);
  RaceResult raced;
  std::vector<Sample> samples;
  if (theirs) {
    raced = race([&] { return ours.sample(); }, [&] { return theirs->sample(); }, race_options(request, plan, gap));
    samples = raced.candidate;
  } else {
    samples = sample_alone(ours, plan, request.condition, gap);
  }
  trial.environment = device.read_environment();
  device.synchronize();

  trial.timing =
      timing_of(samples, request, ours.launches_per_sample(), floor_us(problem, device.info(), device.ceilings()));
  verdict.evidence = {{"samples", samples.size()},          {"launches_per_sample", ours.launches_per_sample()},
                      {"buffer_copies", ours.copies()},     {"p50_us", trial.timing->p50_us},
                      {"floor_us", trial.timing->floor_us}, {"ceilings", device.ceilings()}};
  const auto launches = static_cast<std::int64_t>(samples.size()) * ours.launches_per_sample();
  if (is_on(Check::kTimedPoison)) {
    // One sample more, untimed: a rotation's every buffer is written again.
    ours.poison_outputs();
    for (int i = 0; i < ours.copies(); ++i) ours.sample();
    device.synchronize();
  }
  if (const std::string wrong = is_on(Check::kTimedOutputs) ? ours.judge_outputs(problem, *oracle, launches) : "";
      !wrong.empty()) {
    verdict.evidence["check"] = to_string(Check::kTimedOutputs);
    conclude(verdict, trial, GateStatus::kFailed, "incorrect", "the timed launches left wrong outputs: " + wrong);
    trial.timing.reset();
    return verdict;
  }
  if (theirs) {
    if (const std::string wrong = theirs->judge_outputs(problem, *oracle, launches); !wrong.empty()) {
      conclude(verdict, trial, GateStatus::kError, "error",
               fmt::format("the incumbent {} is wrong, so nothing can be judged against it: {}",
                           incumbent->candidate.print(), wrong));
      return verdict;
    }
    trial.comparison = raced.comparison;
    trial.comparison->against = incumbent->candidate.print();
  }
  if (below_floor(*trial.timing, verdict, trial)) return verdict;
  if (const std::string kept = is_on(Check::kContentTiming) ? ours.kept_results(device, *oracle) : ""; !kept.empty()) {
    conclude(verdict, trial, GateStatus::kFailed, "incorrect", kept);
    verdict.evidence["check"] = to_string(Check::kContentTiming);
    trial.timing.reset();
    trial.comparison.reset();
    return verdict;
  }
  if (theirs) judge_comparison(raced, verdict, trial);
  else conclude(verdict, trial, GateStatus::kPassed, "passed", "");
  return verdict;
}

}  // namespace flashcore
