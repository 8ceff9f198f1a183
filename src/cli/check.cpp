// flashcore check: correctness of a suite, or of random problems with --fuzz.

#include "cli/check.h"

#include <atomic>
#include <mutex>

#include "cli/arguments.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/parallel.h"
#include "lab/process/worker.h"
#include "lab/record/machine.h"
#include "lab/verify/needle_data.h"
#include "lab/verify/neighbours_file.h"

namespace flashcore::cli {

namespace {

// fp64 rows are sampled beyond this, so that one problem costs seconds, not minutes.
constexpr double kReferenceFlops = 2e9;

struct Job {
  NamedProblem problem;
  Candidate candidate;
};

std::vector<Pattern> chosen_patterns(const CheckOptions& options, const Problem& problem) {
  if (options.patterns.empty()) return patterns_of(problem);
  std::vector<Pattern> patterns;
  for (const std::string& name : options.patterns) patterns.push_back(parse_word<Pattern>(name));
  return patterns;
}

// An emulated GPU takes no time of a real one: a suite there tries more than the default.
int random_configs(const CheckOptions& options, const DeviceLimits& limits) {
  if (options.random_configs >= 0) return options.random_configs;
  return limits.emulated && options.common.problem.empty() ? 2 : 0;
}

// The candidates of one problem; if there is none, why. `seed` of the first random config.
std::vector<Candidate> candidates_of(const CheckOptions& options, const PlacedProblem& problem,
                                     const DeviceLimits& limits, std::uint64_t seed, std::string& why_none) {
  const std::string text = candidate_text(options.common);
  std::vector<std::string> reasons;
  std::vector<const Family*> families = supporting_families(problem, limits, &reasons);
  if (!text.empty()) {
    const Family& pinned = family_by_name(text.substr(0, text.find(':')));
    if (const auto reason = pinned.why_unsupported(problem, limits)) {
      why_none = fmt::format("{} cannot: {}", pinned.name(), *reason);
      return {};
    }
    if (text.find(':') != std::string::npos) return {parse_candidate(text, problem, limits)};
    families = {&pinned};
  }
  why_none = fmt::format("no family supports it: {}", fmt::join(reasons, "; "));
  std::vector<Candidate> candidates;
  for (const Family* family : families) {
    candidates.push_back({family, family->default_config(problem, limits)});
    for (int i = 0; i < random_configs(options, limits); ++i) {
      const Candidate random{family,
                             random_judged_config(*family, problem, limits, seed + static_cast<std::uint64_t>(i))};
      if (std::find(candidates.begin(), candidates.end(), random) == candidates.end()) candidates.push_back(random);
    }
  }
  return candidates;
}

std::vector<Job> make_jobs(const CheckOptions& options, const Suite& suite, const DeviceLimits& limits,
                           std::map<std::string, int>& skipped) {
  std::vector<Job> jobs;
  std::uint64_t seed = options.seed;
  for (const NamedProblem& named : suite.problems) {
    named.problem.validate();
    std::string why_none;
    const std::vector<Candidate> candidates = candidates_of(options, named.problem, limits, seed, why_none);
    seed += 101;  // other configs for the next problem
    if (candidates.empty()) {
      // One problem asked for by name is a request that cannot be met; one of a suite is a gap to report.
      if (!options.common.problem.empty())
        throw_bad_input("{} cannot be computed on {}: {}", named.problem.id(),
                        options.common.device.empty() ? "this device" : options.common.device, why_none);
      ++skipped[why_none];
    }
    for (const Candidate& candidate : candidates) jobs.push_back({named, candidate});
  }
  return jobs;
}

std::string repeat_command(const CheckOptions& options, const Job& job, const DeviceInfo& device) {
  const Family& family = *job.candidate.family;
  return fmt::format("{}flashcore check --device {} --problem {} --family {} --config {}{} --seed {}",
                     repro_prefix(repro_variables(), device.id), device.id, shell_quote(job.problem.problem.portable()),
                     family.name(), family.space().print(job.candidate.config),
                     options.patterns.empty() ? "" : fmt::format(" --patterns {}", fmt::join(options.patterns, ",")),
                     options.seed);
}

std::string describe_error(const Trial& trial) {
  if (!trial.error || !trial.bound) return "-";
  return fmt::format("{:.2e} / {:.2e}", trial.error->rel, trial.bound->rel);
}

int check_suite(const CheckOptions& options, const DeviceInfo& device) {
  Console console(options.common.quiet, json_on_stdout(options.common));
  CheckTally tally;
  const Suite suite = select_problems(options.common, "smoke");
  const std::vector<Job> jobs = make_jobs(options, suite, device.limits, tally.skipped);
  std::size_t patterns = 0;
  for (const Job& job : jobs) patterns = std::max(patterns, chosen_patterns(options, job.problem.problem).size());
  const auto count = [](std::size_t n, const char* word) { return plural(static_cast<std::int64_t>(n), word); };
  console.line("{} ({}): {} for {}, {} of data each", device.name, device.id, count(jobs.size(), "candidate"),
               problems_of(suite, options.common), count(patterns, "pattern"));

  std::vector<std::optional<Trial>> trials(jobs.size());
  std::int64_t done = 0;
  for_each_with_worker(
      options, device, static_cast<std::int64_t>(jobs.size()), [&](Worker& worker, std::mutex& mutex, std::int64_t i) {
        const auto at = static_cast<std::size_t>(i);
        const NamedProblem& problem = jobs[at].problem;
        const Trial trial = worker.evaluate(check_request(problem, suite.name, jobs[at].candidate,
                                                          chosen_patterns(options, problem.problem), options.seed));
        const std::lock_guard lock(mutex);
        trials[at] = trial;
        console.progress(++done, static_cast<std::int64_t>(jobs.size()),
                         jobs[at].problem.problem.id() + "  " + jobs[at].candidate.family->name());
      });
  console.end_progress();

  Table table({"problem", "family", "rel error / bound", "verdict", "config"});
  nlohmann::json results = nlohmann::json::array();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!trials[i]) continue;
    const Trial& trial = *trials[i];
    const Judgement judgement = tally.count(trial);
    const bool passed = judgement == Judgement::kPassed;
    table.add({jobs[i].problem.name,
               trial.family,
               describe_error(trial),
               {passed ? "pass" : word_of(trial.ended), passed ? Tone::kGood : Tone::kBad},
               trial.config});
    if (!passed)
      table.add_detail(fmt::format("{} {}: {}", jobs[i].problem.name, trial.candidate(), trial.ended), trial.message,
                       Tone::kBad, repeat_command(options, jobs[i], device));
    results.push_back(trial);
  }
  console.table(table);
  return finish(options, console, tally, results);
}

// A run of a flag of its own, and the flags that it reads beside --device and --json. A flag that would be ignored
// misleads.
struct CheckMode {
  const char* flag;
  std::vector<std::string> reads;
};

void refuse_unread_flags(const CLI::App& app) {
  static const CheckMode modes[] = {{"--fuzz", {"--family", "--kinds", "--seed", "--jobs", "--again"}},
                                    {"--neighbours", {"--family", "--config", "--seed"}},
                                    {"--needles", {"--family", "--config", "--seed", "--seq-kv", "--head-dims"}},
                                    {"--planted", {"--problem"}},
                                    {"--conformance", {"--record", "--recording"}}};
  const CheckMode* asked = nullptr;
  for (const CheckMode& mode : modes) {
    if (app.count(mode.flag) == 0) continue;
    if (asked) throw_bad_input("{} and {} are runs of their own: give one of them", asked->flag, mode.flag);
    asked = &mode;
  }
  if (!asked) return;
  std::vector<std::string> unread;
  for (const char* flag : {"--suite", "--problem", "--family", "--config", "--patterns", "--configs", "--seed",
                           "--jobs", "--kinds", "--again", "--seq-kv", "--head-dims", "--record", "--recording"})
    if (app.count(flag) > 0 && std::find(asked->reads.begin(), asked->reads.end(), flag) == asked->reads.end())
      unread.emplace_back(flag);
  if (!unread.empty())
    throw_bad_input("{} has its own problems and data and does not read {}: leave {} out; it reads {}", asked->flag,
                    fmt::join(unread, ", "), unread.size() == 1 ? "it" : "them", fmt::join(asked->reads, ", "));
}

}  // namespace

Judgement CheckTally::count(const Trial& trial) {
  if (trial.ended == Ended::kEnvironment) {
    ++lacking;
    return Judgement::kSkipped;
  }
  if (trial.ended != Ended::kPassed) {
    ++failed;
    return Judgement::kFailed;
  }
  // "passed" without having been judged correct is nothing this verb may count.
  if (!passed_gate(trial, Gate::kCorrectness)) {
    ++skipped["the correctness gate did not run"];
    return Judgement::kSkipped;
  }
  ++passed;
  return Judgement::kPassed;
}

EvaluateRequest check_request(const NamedProblem& problem, const std::string& suite, const Candidate& candidate,
                              const std::vector<Pattern>& patterns, std::uint64_t seed) {
  EvaluateRequest request;
  request.problem = problem.problem;
  request.problem_name = problem.name;
  request.suite = suite;
  request.candidate = candidate.print();
  request.phase = Phase::kCheck;
  request.seed = seed;
  request.patterns = patterns;
  request.time = false;
  request.max_reference_flops = kReferenceFlops;
  return request;
}

void for_each_with_worker(const CheckOptions& options, const DeviceInfo& device, std::int64_t count,
                          const std::function<void(Worker&, std::mutex&, std::int64_t)>& body) {
  // A CPU candidate takes every core by itself. On a GPU most of a check is compiling and the fp64 reference; on an
  // emulated one a small problem's few CTAs leave cores idle.
  const int by_default = device.limits.kind == DeviceKind::kCpu ? 1
                         : device.limits.emulated               ? hardware_threads()
                                                                : std::clamp(hardware_threads() / 2, 1, 8);
  const int jobs = static_cast<int>(
      std::min<std::int64_t>(options.jobs > 0 ? options.jobs : by_default, std::max<std::int64_t>(count, 1)));
  std::mutex mutex;
  std::atomic<std::int64_t> next{0};
  parallel_for(jobs, jobs, [&](std::int64_t) {
    Worker worker(device.id);
    worker.cancel_when(interrupted);
    try {
      for (std::int64_t i = next++; i < count && !interrupted(); i = next++) body(worker, mutex, i);
    } catch (const Cancelled&) {
      // Ctrl-C: the case in hand is neither passed nor failed
    }
  });
}

int conclude(Console& console, const CheckTally& tally) {
  int skipped = 0;
  for (const auto& [reason, times] : tally.skipped) {
    skipped += times;
    console.line("skipped {}: {}", times, reason);
  }
  console.summary("{} passed, {} failed, {} skipped{}{}", tally.passed, tally.failed, skipped,
                  lacking_words(tally.lacking), stopped_by());
  if (tally.failed > 0) return kFailed;
  if (tally.lacking > 0) return kNoEnvironment;
  return unless_interrupted(tally.passed > 0 ? kDone : kNotJudged);
}

int finish(const CheckOptions& options, Console& console, const CheckTally& tally, const nlohmann::json& results) {
  write_json(options.common, {{"schema", "flashcore.check/1"},
                              {"passed", tally.passed},
                              {"failed", tally.failed},
                              {"skipped", tally.skipped},
                              {"lacking", tally.lacking},
                              {"results", results}});
  return conclude(console, tally);
}

Run add_check(CLI::App& app) {
  auto options = std::make_shared<CheckOptions>();
  add_common(app, options->common, kDevice | kSuite | kProblem | kFamily | kConfig | kJson);
  tell_default_suite(app, "smoke");
  app.add_option("--patterns", options->patterns, "data to try: normal, peaked, ... (default: all)")
      ->delimiter(',')
      ->type_name("NAME,...");
  app.add_option("--configs", options->random_configs,
                 "also N random valid configs of each family (default: 0; for a suite on the emulator 2)")
      ->type_name("N")
      ->check(whole_between(0, 100000));
  add_fuzz_flags(app, options->fuzz, "N random problems instead of a suite; a failure is shrunk to a one-line repro");
  app.add_option(
         "--again", options->again,
         "with --fuzz: what --json of a run like this one wrote; only what failed then, or has changed, is tried")
      ->type_name("FILE");
  app.add_option("--neighbours", options->neighbours,
                 "N other batches for sequences at random: are the bits of a row its own where that is promised")
      ->type_name("N")
      ->check(whole_between(1, kMostNeighbourhoods));
  app.add_option("--seed", options->seed, "of the data, or of the fuzzer")->check(seed_number())->capture_default_str();
  app.add_option("--jobs", options->jobs,
                 "worker processes (default: 1 on a CPU, up to 8 on a GPU, one for each core on the emulator)")
      ->type_name("N")
      ->check(whole_between(1, 256));
  app.add_flag("--conformance", options->conformance,
               "the micro-tests of the ptx/ functions, against what hardware gave; needs --device emulator or cuda");
  app.add_flag("--planted", options->planted,
               "the planted faults: is each caught by the gate named for it; --problem NAME runs one");
  app.add_flag("--needles", options->needles,
               "the long-context gate of 8 bits: single keys that o must show, and its drift from bf16's");
  CLI::Option* lengths = app.add_option("--seq-kv", options->seqlens_kv, "with --needles: keys (default: 131072)")
                             ->delimiter(',')
                             ->type_name("N,...")
                             ->check(whole_between(kFewestNeedleKeys, 1 << 24));
  CLI::Option* dims = app.add_option("--head-dims", options->head_dims, "with --needles (default: 64,128,256)")
                          ->delimiter(',')
                          ->type_name("N,...")
                          ->check(whole_between(16, 1024));
  app.add_option("--record", options->record, "with --conformance: keep this device's outputs")->type_name("FILE");
  app.add_option("--recording", options->recording, "with --conformance: compare with FILE, not what is built in")
      ->type_name("FILE");
  add_examples(
      app,
      {"check --device cpu --problem b1_h2_s65_d64_fp32_causal", "check --device cpu --fuzz 10 --seed 1",
       "check --device cpu --fuzz 10 --kinds paged,quantised_cache --json fuzz.json",
       "check --device cpu --fuzz 10 --kinds paged,quantised_cache --again fuzz.json --json fuzz.json",
       "check --device cpu --problem b1_h4_hk2_sq17_sk33_d64_bf16 --family cpu_fwd --patterns normal,peaked --seed 7",
       "check --device cpu --neighbours 20", "check --planted --device emulator --problem gpu_wrong_tail",
       "check --needles --device cpu --seq-kv 4096 --head-dims 64 --json needles.json"});
  return [options, lengths, dims, &app] {
    watch_interrupts();
    refuse_unread_flags(app);
    check_json_target(options->common);
    check_output_file("--record", options->record);
    if (!options->conformance && !(options->record + options->recording).empty())
      throw_bad_input("--record and --recording belong to --conformance: add it, or leave them out");
    if (options->fuzz.cases == 0 && !options->again.empty())
      throw_bad_input("--again belongs to --fuzz: add it, or leave it out");
    options->fuzz.known_kinds();  // refuses what is no kind, before a device is opened
    if (!options->needles && (lengths->count() > 0 || dims->count() > 0))
      throw_bad_input("--seq-kv and --head-dims belong to --needles: add it, or leave them out");
    if (options->neighbours > 0) return check_neighbours(*options);
    if (options->needles) return check_needles(*options);
    if (options->planted) return check_planted(*options);
    // Before a device is opened: its micro-tests run in forked children.
    if (options->conformance) return check_conformance(*options);
    const DeviceInfo device = describe_device(options->common.device);
    return options->fuzz.cases > 0 ? check_fuzz(*options, device) : check_suite(*options, device);
  };
}

}  // namespace flashcore::cli
