#include "lab/compare/aa.h"

#include <numeric>

#include "core/error.h"
#include "lab/compare/ab.h"
#include "lab/gates/pair.h"
#include "lab/measure/race.h"
#include "lab/process/worker.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr int kMinBlocksAa = 16, kMaxBlocksAa = 400;

// So many launches hold a whole number of extra ones.
int launches_for(int permille) { return 1000 / std::gcd(1000, permille); }

PairRequest request_for(const AaOptions& options, int repeat, bool first_of_process, double launch_us) {
  PairRequest request;
  request.problem = options.problem.problem;
  request.problem_name = options.problem.name;
  request.candidate = request.baseline = options.candidate;
  ask_quick_gate(request);  // the measurement is judged here, not the candidate
  request.same_code = true;
  request.gates = first_of_process;
  MeasureOptions& measure = request.measure;
  measure.spec() = options.spec();
  // The order of blocks differs from repeat to repeat; the inputs only from process to process, for their reference
  // costs more than a repeat.
  measure.seed = options.seed + static_cast<std::uint64_t>(repeat / options.per_process) * 7919;
  measure.order_seed = options.seed * 1000003 + static_cast<std::uint64_t>(repeat);
  measure.min_blocks = kMinBlocksAa;
  measure.max_blocks = kMaxBlocksAa;
  measure.target_half_width = kTargetHalfWidth;
  measure.gap_ms = options.gap_ms;
  if (options.planted_permille > 0) {
    measure.launches_multiple = launches_for(options.planted_permille);
    measure.sample_us = measure.launches_multiple * launch_us;
  }
  return request;
}

void count(const AaOptions& options, const PairOutcome& outcome, std::uint64_t seed, AaResult& r) {
  const Comparison c = compare_blocks(outcome.log_ratios, options.margin, seed);
  count_race({c.speedup, c.ci95_low, c.ci95_high}, options.margin, r);
  r.launches_per_sample = outcome.candidate.timing->launches_per_sample;
  // A graph repeats the extra launches that were captured with it, and no part of one.
  r.planted = r.launches_per_sample * options.planted_permille / 1000 / static_cast<double>(r.launches_per_sample);
  r.device_key = outcome.candidate.device.key;
}

}  // namespace

AaResult repeat_aa(const AaOptions& options, const std::function<void(int, int)>& progress,
                   const std::function<bool()>& stop) {
  FC_CHECK(options.repeats > 0 && options.per_process > 0);
  AaResult result;
  const double start = steady_seconds();
  std::optional<Worker> worker;
  double launch_us = 0;
  for (int repeat = 0; repeat < options.repeats && !(stop && stop()); ++repeat) {
    if (progress) progress(repeat, options.repeats);
    const bool fresh = repeat % options.per_process == 0;
    if (fresh) {
      worker.emplace(options.device, options.worker_executable);
      worker->cancel_when(stop);
    }
    if (options.planted_permille > 0 && launch_us == 0) {
      // How long a launch takes, to know how long a sample of enough of them does.
      AaOptions honest = options;
      honest.planted_permille = 0;
      const PairOutcome look = worker->measure_pair(request_for(honest, repeat, true, 0));
      if (look.ended == PairEnded::kMeasured) launch_us = look.candidate.timing->p50_us;
    }
    const PairRequest request = request_for(options, repeat, fresh, launch_us);
    const PairOutcome outcome = worker->measure_slowed_pair(request, options.planted_permille);
    if (outcome.ended != PairEnded::kMeasured) {
      result.failure = fmt::format("repeat {} ended in '{}': {}", repeat, outcome.ended, outcome.message);
      break;
    }
    count(options, outcome, request.measure.order_seed, result);
  }
  result.seconds = steady_seconds() - start;
  return result;
}

json aa_json(const AaOptions& options, const AaResult& r) {
  return encode_nonfinite(
      {{"problem", options.problem.problem.id()},
       {"candidate", options.candidate},
       {"device", r.device_key},
       {"planted", r.planted},
       {"planted_wanted", options.planted_permille / 1000.0},
       {"measured", r.measured()},
       {"margin", options.margin},
       {"alpha", options.alpha},
       {"repeats", r.repeats},
       {"alarms", r.alarms},
       {"alarm_rate", r.alarm_rate()},
       {"verdicts", {{"FASTER", r.faster}, {"SLOWER", r.slower}, {"SAME", r.same}, {"INCONCLUSIVE", r.inconclusive}}},
       {"speedups", r.effects},
       {"ci95_low", r.lows},
       {"ci95_high", r.highs},
       {"launches_per_sample", r.launches_per_sample},
       {"regime", to_string(options.regime)},
       {"condition", to_string(options.condition)},
       {"seconds", r.seconds},
       {"failure", r.failure}});
}

}  // namespace flashcore
