// flashcore bench: times the problems of a suite.

#include "lab/compare/bench.h"

#include <cmath>

#include "cli/arguments.h"
#include "cli/bench_counters.h"
#include "cli/common.h"
#include "cli/stored.h"
#include "cli/timing_flags.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "lab/report/model.h"
#include "lab/report/text.h"

namespace flashcore::cli {

namespace {

struct BenchArguments {
  Common common;
  TimingFlags timing{.seconds = 0};
  int repeats = 0;
};

// A candidate that cannot be is the giver's mistake: said before anything runs. In a suite, a problem that it merely
// does not suit is a row of the table.
void check_pinned(const std::string& text, const BenchArguments& options, const Suite& suite,
                  const DeviceInfo& device) {
  if (!options.common.problem.empty()) {
    parse_candidate(text, suite.problems.front().problem, device.limits);
    return;
  }
  const std::size_t colon = text.find(':');
  const Family& family = family_by_name(text.substr(0, colon));
  if (colon != std::string::npos)
    family.space().parse(std::string_view(text).substr(colon + 1), family.space().at(0), family.name());
}

std::string title_of(const Trial& trial) {
  return fmt::format("{} {}: {}", trial.problem_name, trial.candidate(), trial.ended);
}

std::string noise_of(const Timing& timing) {
  const double noise = report::noise(timing);
  return std::isfinite(noise) ? report::percent(noise) : "-";
}

void add_row(Table& table, const Trial& trial) {
  if (!trial.timing) {
    const Tone tone = trial.ended == Ended::kInvalid || trial.problem.seqlen_q == 0 ? Tone::kWarn : Tone::kBad;
    table.add({trial.problem_name, "-", "-", "-", "-", "-", "-", "-", {word_of(trial.ended), tone}});
    table.add_detail(title_of(trial), trial.message, tone);
    return;
  }
  const Timing& t = *trial.timing;
  const bool passed = trial.ended == Ended::kPassed;
  if (!passed) table.add_detail(title_of(trial), trial.message);
  table.add({trial.problem_name, fmt::format("{:.2f}", t.p50_us), fmt::format("{:.2f}..{:.2f}", t.p10_us, t.p90_us),
             noise_of(t), fmt::format("{} x {}", t.samples.size(), t.launches_per_sample),
             fmt::format("{:.2f}", t.floor_us), fmt::format("{:.3f}", trial.problem.flops() / t.p50_us * 1e-6),
             fmt::format("{:.1f}", trial.problem.bytes() / t.p50_us * 1e-3),
             trial.error ? fmt::format("{:.1e}", trial.error->rel) : "-",
             passed ? Cell(trial.candidate()) : Cell(word_of(trial.ended), Tone::kBad)});
}

void print_times(Console& console, const std::vector<Trial>& trials) {
  Table table(
      {"problem", "p50 us", "p10..p90", "p50 +-", "samples", "floor us", "TFLOP/s", "GB/s", "rel error", "candidate"});
  bool timed = false;
  for (const Trial& trial : trials) {
    add_row(table, trial);
    timed = timed || trial.timing;
  }
  console.table(table);
  if (!timed) return;
  console.line(
      "p50 +-: half of the 95% interval of the median, within this run; from run to run it is more; samples x launches "
      "of each");
  std::vector<MachineReading> readings;
  for (const Trial& trial : trials) readings.push_back(trial.machine);
  if (const std::string load = load_words(readings); !load.empty()) console.line("{}", load);
  if (const std::string busy = busy_words(readings); !busy.empty())
    console.summary("warning: {}; measure again on a quiet machine before quoting them", busy);
}

int run_bench(const BenchArguments& options) {
  check_json_target(options.common);
  BenchOptions bench_options;
  bench_options.suite = select_problems(options.common, "quick");
  require_something_to_time(bench_options.suite);
  bench_options.spec() = spec_of(options.timing);
  bench_options.min_samples = options.repeats;
  const std::string pinned = candidate_text(options.common);
  const DeviceInfo device = describe_device(options.common.device);
  bench_options.device = device.id;
  if (!options.common.problem.empty() && pinned.empty()) dispatch(bench_options.suite.problems.front().problem, device);
  if (!pinned.empty()) {
    check_pinned(pinned, options, bench_options.suite, device);
    bench_options.candidate = pinned;
  }
  Console console(options.common.quiet, json_on_stdout(options.common));
  Store store(options.common.store);
  const auto total = static_cast<std::int64_t>(bench_options.suite.problems.size());
  if (device.limits.emulated)
    console.line("{} ({}): {}, one launch each, counted and not timed", device.name, device.id,
                 problems_of(bench_options.suite, options.common));
  else
    console.line("{} ({}): {}, {} regime, {} condition", device.name, device.id,
                 problems_of(bench_options.suite, options.common), options.timing.regime, options.timing.condition);
  std::int64_t done = 0;
  const BenchResult result = bench(
      bench_options, &store,
      [&](const Trial& trial) { console.progress(++done, total, trial.problem_name + "  " + word_of(trial.ended)); },
      interrupted);
  console.end_progress();

  int done_well = 0, failed = 0, skipped = 0, lacking = 0;
  for (const Trial& trial : result.trials) {
    const bool ok = trial.ended == Ended::kPassed && (trial.timing || device.limits.emulated);
    done_well += ok ? 1 : 0;
    const bool empty = trial.ended == Ended::kPassed && trial.problem.seqlen_q == 0;
    skipped += trial.ended == Ended::kInvalid || empty ? 1 : 0;
    lacking += trial.ended == Ended::kEnvironment ? 1 : 0;
    failed += !ok && !empty && trial.ended != Ended::kInvalid && trial.ended != Ended::kInconclusive &&
                      trial.ended != Ended::kEnvironment
                  ? 1
                  : 0;
  }
  if (device.limits.emulated) print_counters(console, result.trials);
  else print_times(console, result.trials);
  write_rows(options.common, bench_json(result.trials, present_checkout()));
  const bool all_stored = tell_store_fault(store);
  console.summary("{} {}, {} failed, {} skipped{}; run {}, store {}{}", done_well,
                  device.limits.emulated ? "counted" : "timed", failed, skipped, lacking_words(lacking), result.run,
                  store.path().string(), result.interrupted ? stopped_by() : "");
  if (failed > 0) return kFailed;
  if (lacking > 0 || !all_stored) return kNoEnvironment;
  return unless_interrupted(done_well > 0 ? kDone : kNotJudged);
}

}  // namespace

Run add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchArguments>();
  add_common(app, options->common, kDevice | kSuite | kProblem | kFamily | kConfig | kStore | kJson);
  tell_default_suite(app, "quick");
  app.add_option("--regime", options->timing.regime,
                 "graph (replays of many launches) | cold (inputs not in cache) | warm (one launch)")
      ->capture_default_str();
  app.add_option("--condition", options->timing.condition,
                 "burst (a few milliseconds after a pause) | sustained (as hot as it gets)")
      ->capture_default_str();
  app.add_option("--repeats", options->repeats, "at least so many samples of each problem")
      ->type_name("N")
      ->check(whole_between(1, 100000));
  app.add_option("--seed", options->timing.seed, "of the data")->check(seed_number())->capture_default_str();
  add_examples(app, {"bench --device cpu --problem b1_h2_s128_d64_fp32",
                     "bench --device cpu --problem b1_h2_s128_d64_fp32 --family cpu_fwd --json bench.json"});
  return [options] {
    watch_interrupts();
    return run_bench(*options);
  };
}

}  // namespace flashcore::cli
