// Recording a timeline: both builds of a candidate on one device, with the same operands.

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "kernels/instrumented.h"
#include "lab/diagnose/timeline.h"
#include "lab/gates/evaluate.h"
#include "lab/harness/operands.h"
#include "lab/measure/race.h"
#include "lab/record/number_text.h"
#include "lab/statistics/quantiles.h"

namespace flashcore {
namespace {

constexpr std::size_t kLeastTrackBytes = 1 << 10, kMostTrackBytes = 256 << 10;

// Which CTAs are recorded, and how much room each of their warps has.
struct TrackPlan {
  std::uint64_t launched_ctas = 0, recorded_ctas = 0, tracks = 0;
  unsigned stride = 1;
  std::size_t track_bytes = 0;
};

// The launch that does the work: lists of blocks are made by others before it.
const LaunchSpec& main_launch(const Program& program) {
  const auto found = std::find_if(program.steps.begin(), program.steps.end(),
                                  [](const Step& step) { return step.launch.kernel == 0; });
  FC_CHECK(found != program.steps.end());
  return found->launch;
}

TrackPlan plan_of(const LaunchSpec& launch, const TimelineOptions& options) {
  TrackPlan plan;
  plan.launched_ctas = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  if (plan.launched_ctas == 0) throw_bad_input("the problem has no query rows: nothing is launched; give one that has");
  const auto wanted = std::min(plan.launched_ctas, static_cast<std::uint64_t>(options.ctas));
  plan.stride = static_cast<unsigned>((plan.launched_ctas + wanted - 1) / wanted);
  plan.recorded_ctas = (plan.launched_ctas + plan.stride - 1) / plan.stride;
  const std::uint64_t warps = std::max<std::uint64_t>(launch.block.x * launch.block.y * launch.block.z / 32, 1);
  plan.tracks = plan.recorded_ctas * warps;
  plan.track_bytes = std::min(std::bit_floor(options.buffer_bytes / plan.tracks), kMostTrackBytes);
  if (plan.track_bytes < kLeastTrackBytes)
    throw_bad_input(
        "{} CTAs of {} warps are {} tracks, and the buffer of {} holds {} of at least {}; record fewer CTAs with "
        "--ctas, as --ctas 16",
        plan.recorded_ctas, warps, plan.tracks, text::bytes(static_cast<double>(options.buffer_bytes)),
        options.buffer_bytes / kLeastTrackBytes, text::bytes(kLeastTrackBytes));
  return plan;
}

// The plain build and the instrumented one, bound to the same operands.
class BothBuilds {
 public:
  BothBuilds(Device& device, const PlacedProblem& problem, const Candidate& candidate, const Operands& operands,
             const TrackPlan& plan)
      : device_(device),
        plan_(plan),
        family_(*candidate.family, static_cast<int>(plan.track_bytes)),
        plain_artifact(compile_candidate(candidate, problem, device.info().limits)),
        instrumented_artifact(compile_candidate({&family_, candidate.config}, problem, device.info().limits)),
        plain_(device, candidate, problem, plain_artifact) {
    const DeviceLimits& limits = device.info().limits;
    const AttentionArgs args = operands.args();
    plain = plain_.bind(args);
    module_ = device.load(instrumented_artifact);
    instrumented = bind_program(device, candidate.family->program(candidate.config, problem, limits, args.layouts),
                                module_, args.addresses());
    const std::size_t bytes = plan.tracks * plan.track_bytes;
    memory_ = device.allocate(bytes + plan.track_bytes);
    const auto address = reinterpret_cast<std::uintptr_t>(memory_->data());
    first_track_ = (address + plan.track_bytes - 1) / plan.track_bytes * plan.track_bytes;
    place_ = family_.place_tracks(candidate.config, problem, limits,
                                  {first_track_, static_cast<unsigned>(plan.tracks), plan.stride});
  }

  void place_tracks() {
    device_.launch(*module_, place_);
    device_.synchronize();
  }
  std::vector<std::byte> record() {
    std::vector<std::byte> tracks(plan_.tracks * plan_.track_bytes);
    void* const first = reinterpret_cast<void*>(first_track_);
    device_.fill(first, 0, tracks.size());
    instrumented();
    device_.synchronize();
    device_.download(tracks.data(), first, tracks.size());
    return tracks;
  }

 private:
  Device& device_;
  TrackPlan plan_;
  InstrumentedFamily family_;

 public:
  const Artifact plain_artifact, instrumented_artifact;
  Launch plain, instrumented;

 private:
  LoadedCandidate plain_;
  std::shared_ptr<Module> module_;
  std::unique_ptr<Buffer> memory_;
  std::uintptr_t first_track_ = 0;
  LaunchSpec place_;
};

AttentionOutputs outputs_of(Device& device, Operands& operands, const Launch& launch) {
  operands.poison_outputs();
  launch();
  device.synchronize();
  return operands.download_outputs();
}

std::uint64_t counted_steps(Device& device) { return device.counters().value("steps", std::uint64_t{0}); }

// Interleaved samples of both. Returns the clock that they ran at.
double measure_distortion(Device& device, const BothBuilds& builds, std::uint64_t seed, Distortion& distortion) {
  const auto instrumented = device.make_timer({&builds.instrumented, 1}, Regime::kGraph);
  const auto plain = device.make_timer({&builds.plain, 1}, Regime::kGraph);
  const int launches = std::min(plain->launches_per_sample(), instrumented->launches_per_sample());
  plain->use_launches(launches), instrumented->use_launches(launches);
  RaceOptions options;
  options.seed = seed, options.early_drop = false;
  options.before_sample = [&] { device.idle(2); };
  options.now_seconds = [&] { return device.now_seconds(); };
  const RaceResult result = race([&] { return instrumented->sample(); }, [&] { return plain->sample(); }, options);
  std::vector<double> ours, theirs, clocks;
  for (const Sample& sample : result.candidate) ours.push_back(sample.time_us), clocks.push_back(sample.clock_mhz);
  for (const Sample& sample : result.incumbent) theirs.push_back(sample.time_us);
  distortion.comparison = result.comparison;
  distortion.instrumented_us = median(ours), distortion.plain_us = median(theirs);
  return median(clocks);
}

// What the quick gate has against the candidate; empty: nothing. Of a kernel that computes the wrong thing no time says
// anything.
std::string why_not_judged_right(Device& device, const PlacedProblem& problem, const Candidate& candidate,
                                 std::uint64_t seed) {
  EvaluateRequest request;
  request.problem = problem;
  request.problem_name = problem.id();
  request.suite = "timeline";
  request.candidate = candidate.print();
  request.phase = Phase::kCheck;
  request.seed = seed;
  request.time = false;
  request.past_resources = true;
  ask_quick_gate(request);
  // On the emulator another device: launches of this one are counted.
  const auto other = device.info().limits.emulated ? open_device(device.info().id) : nullptr;
  const Trial trial = evaluate(other ? *other : device, request);
  const Verdict* correct = find_gate(trial, Gate::kCorrectness);
  if (correct && correct->status == GateStatus::kPassed) return "";
  if (trial.ended == Ended::kEnvironment) throw_environment("{}", trial.message);
  return fmt::format("the quick gate does not pass the candidate ({}: {}), so nothing was recorded", trial.ended,
                     trial.message);
}

}  // namespace

Timeline record_timeline(Device& device, const PlacedProblem& problem, const Candidate& candidate,
                         const TimelineOptions& options) {
  const DeviceLimits& limits = device.info().limits;
  if (const auto why = why_no_marks(*candidate.family))
    throw_bad_input("no timeline: {}; with --device cuda or --device emulator, {} have marks (--family)", *why,
                    text::join(families_with_marks(), ", "));
  const ProblemLayouts layouts = make_layouts(problem);
  const Program program = candidate.family->program(candidate.config, problem, limits, layouts);
  const TrackPlan plan = plan_of(main_launch(program), options);

  Timeline timeline;
  timeline.problem = problem;
  timeline.candidate = candidate.print();
  timeline.device = device.info();
  timeline.launched_ctas = plan.launched_ctas;
  if (options.judge) {
    if (std::string why = why_not_judged_right(device, problem, candidate, options.seed); !why.empty()) {
      timeline.faults.push_back(std::move(why));
      return timeline;
    }
  }

  Operands operands(device, problem);
  operands.upload(make_inputs(problem, Pattern::kNormal, options.seed));
  BothBuilds builds(device, problem, candidate, operands, plan);

  timeline.recorded_ctas = plan.recorded_ctas;
  Distortion& distortion = timeline.distortion;
  const AttentionOutputs expected = outputs_of(device, operands, builds.plain);
  if (limits.emulated) {
    distortion.plain_steps = counted_steps(device);
    builds.plain();  // the odd launch, so that the one that is recorded is counted
  } else {
    distortion.plain_build = builds.plain_artifact, distortion.instrumented_build = builds.instrumented_artifact;
  }
  builds.place_tracks();
  if (options.compare && !limits.emulated)
    timeline.clock_mhz = measure_distortion(device, builds, options.seed, distortion);
  operands.poison_outputs();
  const std::vector<std::byte> bytes = builds.record();
  if (limits.emulated) distortion.instrumented_steps = counted_steps(device);
  if (!bitwise_equal(operands.download_outputs(), expected))
    timeline.faults.emplace_back("the instrumented build's outputs are not those of the plain one");

  std::vector<RawTrack> raw = decode_tracks(bytes, plan.track_bytes, timeline.faults);
  if (!limits.emulated) {
    if (timeline.clock_mhz <= 0) timeline.clock_mhz = clock_of_tracks(raw);
    align_clocks(raw, timeline.clock_mhz);
  }
  for (RawTrack& track : raw) {
    timeline.dropped += track.track.dropped;
    timeline.tracks.push_back(std::move(track.track));
  }
  if (timeline.tracks.empty()) timeline.faults.emplace_back("no warp has left a mark");
  return timeline;
}

}  // namespace flashcore
