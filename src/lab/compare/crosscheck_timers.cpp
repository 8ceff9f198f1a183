#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "core/random.h"
#include "lab/compare/crosscheck.h"
#include "lab/gates/gates.h"
#include "lab/measure/engine.h"
#include "lab/record/machine.h"

// The ways to time a launch that need no other program.
namespace flashcore {
namespace {

using SteadyClock = std::chrono::steady_clock;

// What one repetition of Google Benchmark's way lasts at least; its default is half a second, for a single one. A GPU
// at its power cap lowers its clock within some milliseconds, and it is the burst that the engine's times are of: with
// repetitions of 20 ms and gaps of 1 ms the engine's own median rose from 361 to 411 us on an H200.
constexpr double kRepetitionSecondsCpu = 0.02, kRepetitionSecondsCuda = 0.002;
constexpr int kMostIterations = 1'000'000;
constexpr double kRoundGapMsCpu = 1, kRoundGapMsCuda = 20;

double whole_loop_us(Device& device, const Launch& launch, int launches) {
  device.synchronize();
  const auto start = SteadyClock::now();
  for (int i = 0; i < launches; ++i) launch();
  device.synchronize();
  return std::chrono::duration<double, std::micro>(SteadyClock::now() - start).count();
}
double loop_us(Device& device, const Launch& launch, int launches) {
  return whole_loop_us(device, launch, launches) / launches;
}

// As Google Benchmark finds it: ten times as many until the time is not too short to extrapolate from.
int iterations_for(Device& device, const Launch& launch, double seconds) {
  int iterations = 1;
  while (iterations < kMostIterations) {
    const double took = loop_us(device, launch, iterations) * iterations * 1e-6;
    if (took >= seconds) return iterations;
    const double grow = took > seconds / 10 ? 1.4 * seconds / took : 10;
    iterations = std::min(kMostIterations, static_cast<int>(std::ceil(iterations * grow)));
  }
  return iterations;
}

}  // namespace

InProcessTimes time_in_process(Device& device, const PlacedProblem& problem, const Candidate& candidate,
                               const InProcessOptions& options, const std::function<bool()>& stop) {
  const CompiledCandidate compiled = compiled_candidate(candidate, problem, device.info().limits);
  const auto oracle = shared_oracles().get(problem, Pattern::kNormal, timing_seed(options.seed), kTimedReferenceFlops);
  const bool on_gpu = device.info().limits.kind == DeviceKind::kCuda;
  BufferSet warm(device, problem, Regime::kGraph, oracle->inputs);
  PreparedCandidate engine(device, problem, compiled, {Regime::kGraph, 0}, {&warm});
  // On a CPU the plain loop and the others take the inputs as the last launch left them, so there is no cold one.
  std::optional<BufferSet> cold_set;
  std::optional<PreparedCandidate> cold;
  if (on_gpu) {
    cold_set.emplace(device, problem, Regime::kCold, oracle->inputs);
    cold.emplace(device, problem, compiled, PrepareOptions{Regime::kCold, 0}, std::vector<BufferSet*>{&*cold_set});
  }
  const Launch& launch = engine.launch(0, 0);
  engine.sample(0);  // warm-up
  InProcessTimes out;
  out.ceilings = device.ceilings();
  out.engine.empty_launch_us = out.ceilings.empty_launch_us;
  out.methods = {
      {.method = "steady clock loop", .in_process = true, .interleaved = true, .host_launch = on_gpu},
      {.method = "repetitions as Google Benchmark's", .in_process = true, .interleaved = true, .host_launch = on_gpu}};
  const int iterations = iterations_for(device, launch, on_gpu ? kRepetitionSecondsCuda : kRepetitionSecondsCpu);
  std::vector<double> clocks, ones, twos;  // loops of one launch and of two
  const auto keep = [&](const Sample& sample, std::vector<double>& times) {
    times.push_back(sample.time_us);
    if (sample.clock_mhz > 0) clocks.push_back(sample.clock_mhz);
    const std::string throttle = device.read_environment().throttle_reasons;
    out.engine.throttled += lowers_clocks(throttle) ? 1 : 0;
  };
  const std::vector<std::function<void()>> ways = {
      [&] { keep(engine.sample(0), out.engine.warm_us); },
      [&] { out.methods[0].times_us.push_back(loop_us(device, launch, engine.launches_per_sample())); },
      [&] { out.methods[1].times_us.push_back(loop_us(device, launch, iterations)); },
      [&] {
        if (cold) keep(cold->sample(0), out.engine.cold_us);
      },
      [&] { ones.push_back(whole_loop_us(device, launch, 1)); },
      [&] { twos.push_back(whole_loop_us(device, launch, 2)); }};
  const LoadMeter load;
  SplitMix random(options.seed);
  std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5};
  for (int round = 0; round < options.rounds && !(stop && stop()); ++round) {
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    for (const std::size_t way : order) {
      device.idle(on_gpu ? kRoundGapMsCuda : kRoundGapMsCpu);
      ways[way]();
    }
  }
  if (on_gpu && !ones.empty()) {
    out.methods[0].launches = engine.launches_per_sample(), out.methods[1].launches = iterations;
    for (MethodReading& method : out.methods) method.around_us = std::max(0.0, 2 * median(ones) - median(twos));
  }
  if (!on_gpu) {
    MachineReading reading;
    load.read(reading);
    out.engine.others_busy = reading.others_busy;
  }
  if (!clocks.empty()) {
    out.engine.clock_mhz = median(clocks);
    const auto [slowest, fastest] = std::minmax_element(clocks.begin(), clocks.end());
    out.engine.slowest_mhz = *slowest, out.engine.fastest_mhz = *fastest;
  }
  engine.refresh_outputs(0);
  out.wrong = engine.judge_outputs(0, problem, *oracle).wrong;
  return out;
}

}  // namespace flashcore
