// flashcore ab: one candidate against another, interleaved and judged.

#include "lab/compare/ab.h"

#include "cli/ab_self_test.h"
#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/stored.h"
#include "cli/timing_flags.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "lab/compare/aa.h"
#include "lab/compare/calibration.h"
#include "lab/process/worker.h"
#include "lab/record/store.h"

namespace flashcore::cli {

namespace {

struct AbArguments {
  Common common;
  std::vector<std::string> candidates;
  TimingFlags timing{.margin = "3%"};
  bool calibrate = false, self_test = false;
  int repeats = 0;
};

AbOptions ab_options(const AbArguments& options, const Suite& suite, const NamedProblem& problem,
                     const DeviceInfo& device) {
  AbOptions out;
  out.device = device.id;
  out.suite = suite.name;
  out.problem = problem;
  out.baseline = parse_candidate(options.candidates[0], problem.problem, device.limits).print();
  out.candidate = parse_candidate(options.candidates[1], problem.problem, device.limits).print();
  out.processes = options.timing.processes;
  out.spec() = spec_of(options.timing);
  return out;
}

Tone tone_of(int code) { return code == kDone ? Tone::kGood : code == kFailed ? Tone::kBad : Tone::kWarn; }

// The trial of the first process carries the verdict of all: a report or the ledger reads it like any other.
void keep(Store& store, const std::string& run, const AbResult& result) {
  if (result.processes.front().ended != PairEnded::kMeasured) return;
  Trial trial = result.processes.front().candidate;
  trial.run = run;
  trial.comparison = result.comparison;
  trial.ended = ended_of(result.verdict);
  trial.message = trial.ended == Ended::kPassed ? "" : result.sentence;
  trial.seconds.emplace();
  for (const PairOutcome& process : result.processes) *trial.seconds += seconds_of(process);
  store.append_or_note(trial);
}

int compare(const AbArguments& options) {
  if (options.candidates.size() != 2)
    throw_bad_input(
        "{} candidate{} given; ab needs two, A (the baseline) and B, each written family or family:key=value,...",
        options.candidates.size(), options.candidates.size() == 1 ? " was" : "s were");
  const Common& common = options.common;
  check_json_target(common);
  const Suite suite = select_problems(common, "quick");
  const DeviceInfo device = describe_device(common.device);
  if (device.limits.emulated)
    throw_bad_input("--device {}: an emulated GPU has no time; use cuda or cpu", common.device);
  std::vector<AbOptions> all;
  for (const NamedProblem& problem : suite.problems) all.push_back(ab_options(options, suite, problem, device));

  Console console(common.quiet, json_on_stdout(common));
  const auto calibration =
      find_calibration(calibration_file(common.store), device.key, all.front().regime, all.front().condition);
  Store store(common.store);
  const std::string run = new_run_id("ab");
  nlohmann::json results = nlohmann::json::array();
  int worst = kDone, judged = 0;
  bool stopped = false;
  for (AbOptions& one : all) {
    if (calibration) one.refusal = calibration->why_not_trusted();
    try {
      const AbResult result = ab(
          one,
          [&](int done, int total) {
            console.progress(done, total, one.problem.name + ": processes, each racing A and B");
          },
          interrupted);
      console.end_progress();
      const int code = ab_exit_code(result);
      // A crash report has lines of its own.
      const std::size_t line = std::min(result.sentence.find('\n'), result.sentence.size());
      console.summary("{}  {}: {}", console.paint(to_string(result.verdict), tone_of(code)), one.problem.name,
                      result.sentence.substr(0, line));
      if (line < result.sentence.size()) console.block(std::string_view(result.sentence).substr(line + 1));
      if (result.verdict == SpeedVerdict::kInconclusive)
        console.line("  --seconds N and --processes N give it more time");
      std::vector<MachineReading> readings;
      for (const PairOutcome& process : result.processes) readings.push_back(process.candidate.machine);
      if (const std::string load = load_words(readings); !load.empty()) console.line("  {}", load);
      if (const std::string busy = busy_words(readings); !busy.empty())
        console.summary("  warning: {}; both candidates alike, and the interval is wider for it", busy);
      if (result.throttled > 0)
        console.line("  {} of {} samples ran throttled; both candidates did alike", result.throttled, result.samples);
      results.push_back(ab_json(one, result));
      keep(store, run, result);
      judged += code != kNotJudged;
      worst = worst == kFailed || code == kFailed ? kFailed : std::max(worst, code);
    } catch (const Cancelled&) {
      stopped = true;
      break;
    }
  }
  if (!calibration) console.line("this machine's false alarms are not known: `flashcore ab --calibrate` measures them");
  if (options.timing.processes < 3) console.line("fewer than 3 processes: not for publishing");
  nlohmann::json document = {
      {"schema", "flashcore.ab/1"}, {"run", run}, {"results", results}, {"interrupted", stopped}};
  if (calibration) document["calibration"] = *calibration;
  write_json(common, document);
  if (all.size() > 1 || stopped)
    console.summary("{} of {} judged{}", judged, plural(static_cast<std::int64_t>(all.size()), "problem"),
                    stopped ? stopped_by() : "");
  if (!tell_store_fault(store) && worst != kFailed) return kNoEnvironment;
  return stopped && worst == kDone ? static_cast<int>(kNotJudged) : worst;
}

int run_ab(const AbArguments& options) {
  if (!options.calibrate && !options.self_test) return compare(options);
  if (options.candidates.size() > 1)
    throw_bad_input("--calibrate and --self-test race one candidate against itself; {} were given",
                    options.candidates.size());
  SelfTest test;
  test.common = options.common;
  test.candidate = options.candidates.empty() ? "" : options.candidates.front();
  test.spec = spec_of(options.timing);
  test.repeats = options.repeats > 0 ? options.repeats : options.self_test ? kLeastSelfTestRaces : kLeastRaces;
  return options.self_test ? run_self_test(test) : run_calibration(test);
}

}  // namespace

Run add_ab(CLI::App& app) {
  auto options = std::make_shared<AbArguments>();
  app.add_option("candidates", options->candidates, "A (the baseline) and B: family or family:key=value,...")
      ->type_name("A B")
      ->expected(0, 2);
  add_common(app, options->common, kDevice | kSuite | kProblem | kStore | kJson);
  tell_default_suite(app, "quick");
  add_timing_flags(app, options->timing, "what counts as a difference");
  auto* calibrate = app.add_flag("--calibrate", options->calibrate,
                                 "race A against itself; false alarms beyond 10% make later verdicts refused");
  app.add_flag("--self-test", options->self_test,
               "the same, and against itself with 3% and 0.5% more work planted: is it called what it is?")
      ->excludes(calibrate);
  app.add_option("--repeats", options->repeats,
                 "races of --calibrate (100) and --self-test (200); fewer judge nothing (exit 2)")
      ->type_name("N")
      ->check(whole_between(1, 100000));
  add_examples(app, {"ab cpu_fwd cpu_fwd --device cpu --problem b1_h2_s128_d64_fp32",
                     "ab cpu_fwd cpu_fwd:block_n=128 --device cpu --problem b1_h2_s128_d64_fp32 --seconds 2 "
                     "--json ab.json  # exit 0 or 1 or 2",
                     "ab --calibrate --repeats 4 --device cpu --store elsewhere/trials.db  # exit 2"});
  return [options] {
    watch_interrupts();
    return run_ab(*options);
  };
}

}  // namespace flashcore::cli
