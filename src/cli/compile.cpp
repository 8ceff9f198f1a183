// flashcore compile: families and configs for architectures, with the resource gate. Needs NVRTC, no GPU.

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/fuzz_flags.h"
#include "cli/verbs.h"
#include "core/environment_error.h"
#include "core/error.h"
#include "core/parallel.h"
#include "lab/gates/gates.h"
#include "lab/process/isolate.h"

namespace flashcore::cli {

namespace {

struct CompileArguments {
  Common common;
  std::vector<std::string> archs;
  bool all = false, cold = false;
  int random_configs = 0;
  FuzzFlags fuzz;
  std::uint64_t seed = 1;
};

struct Job {
  Candidate candidate;
  Problem problem;
  std::string arch;  // as asked: "sm_90"
  DeviceLimits limits;
};

struct Outcome {
  std::optional<Artifact> artifact;
  Verdict verdict;
  bool lacking = false;  // the machine could not compile it
};

// A few of each kind that changes the code: dtype, head dim, masking.
std::vector<Problem> representative_problems() {
  std::vector<Problem> problems;
  for (const char* dtype : {"fp16", "bf16"}) {
    for (const int head_dim : {64, 128, 256}) {
      for (const char* mask : {"", "_causal"})
        problems.push_back(Problem::parse(fmt::format("b4_h16_s2048_d{}_{}{}", head_dim, dtype, mask)));
    }
  }
  return problems;
}

std::vector<const Family*> chosen_families(const CompileArguments& options) {
  const std::string text = candidate_text(options.common);
  if (!text.empty() && options.all)
    throw_bad_input("--all and --family {} exclude each other: use one", options.common.family);
  std::vector<const Family*> families;
  if (text.empty()) {
    for (const Family* family : all_families()) {
      if (family->kind() == DeviceKind::kCuda) families.push_back(family);
    }
    return families;
  }
  const Family& family = family_by_name(text.substr(0, text.find(':')));
  if (family.kind() != DeviceKind::kCuda)
    throw_bad_input(
        "--family {}: a CPU family is part of the program, so there is nothing to compile; name a GPU family or --all",
        family.name());
  return {&family};
}

// What `check --fuzz` would run on such a device: what does not compile, or spills, is known before a GPU is there, and
// what compiles is in the cache.
std::vector<Job> fuzz_jobs(const CompileArguments& options, std::vector<std::string>& skipped) {
  if (!options.common.suite.empty() || !options.common.problem.empty())
    throw_bad_input("--fuzz draws its own problems: leave --suite and --problem out");
  if (!options.common.config.empty() || options.random_configs > 0)
    throw_bad_input("--fuzz draws its own configs: leave --config and --all-configs out");
  const std::vector<const Family*> families = chosen_families(options);
  const std::vector<FuzzKind> kinds = options.fuzz.known_kinds();
  std::vector<Job> jobs;
  for (const std::string& arch : options.archs) {
    const DeviceLimits limits = limits_of_arch(arch);
    const FuzzLimits of_fuzz = fuzz_limits(limits, kinds);
    for (std::int64_t i = 0; i < options.fuzz.cases; ++i) {
      if (const auto drawn = random_case(options.seed, static_cast<std::uint64_t>(i), families, limits, of_fuzz))
        jobs.push_back({drawn->candidate, drawn->problem, arch, limits});
      else skipped.push_back(fmt::format("case {} on {}: no family supports what was drawn", i, arch));
    }
  }
  return jobs;
}

std::vector<Job> make_jobs(const CompileArguments& options, std::vector<std::string>& skipped) {
  if (options.fuzz.cases > 0) return fuzz_jobs(options, skipped);
  const std::string text = candidate_text(options.common);
  const bool pinned = text.find(':') != std::string::npos;
  if (pinned && options.random_configs > 0) throw_bad_input("--config and --all-configs exclude each other: use one");
  std::vector<Problem> problems;
  if (options.common.suite.empty() && options.common.problem.empty()) {
    problems = representative_problems();
  } else {
    for (const NamedProblem& named : select_problems(options.common, "canonical").problems)
      problems.push_back(named.problem);
  }
  std::vector<Job> jobs;
  for (const Family* family : chosen_families(options)) {
    for (const std::string& arch : options.archs) {
      const DeviceLimits limits = limits_of_arch(arch);
      for (const Problem& problem : problems) {
        if (const auto reason = family->why_unsupported(problem, limits)) {
          skipped.push_back(fmt::format("{} on {}, {}: {}", family->name(), arch, problem.id(), *reason));
          continue;
        }
        jobs.push_back({pinned ? parse_candidate(text, problem, limits)
                               : Candidate{family, family->default_config(problem, limits)},
                        problem, arch, limits});
        for (int i = 0; i < options.random_configs; ++i) {
          jobs.push_back(
              {{family, random_config(*family, problem, limits, options.seed + static_cast<std::uint64_t>(i))},
               problem,
               arch,
               limits});
        }
      }
    }
  }
  return jobs;
}

// In the child: the artifact's facts, or the compiler's words, as JSON.
std::string compile_job(const Job& job, bool use_cache) {
  try {
    return nlohmann::json(compile_candidate(job.candidate, job.problem, job.limits, use_cache)).dump();
  } catch (const CompileError& error) {
    return nlohmann::json{{"compile_error", error.what()}, {"log", error.log()}}.dump(
        -1, ' ', false, nlohmann::json::error_handler_t::replace);
  } catch (const std::exception& error) {
    if (!is_environment_error(error)) throw;
    return nlohmann::json{{"lacking", environment_message(error)}}.dump(-1, ' ', false,
                                                                        nlohmann::json::error_handler_t::replace);
  }
}

Outcome judge(const Job& job, const Isolated& isolated) {
  if (!isolated.completed)
    return {std::nullopt, {Gate::kCompile, GateStatus::kError, "the compiler " + isolated.failure, {}}};
  const nlohmann::json answer = nlohmann::json::parse(isolated.output);
  if (answer.contains("compile_error"))
    return {std::nullopt, {Gate::kCompile, GateStatus::kFailed, answer["compile_error"].get<std::string>(), answer}};
  if (answer.contains("lacking"))
    return {std::nullopt, {Gate::kCompile, GateStatus::kError, answer["lacking"].get<std::string>(), {}}, true};
  Outcome outcome{answer.get<Artifact>(), {}};
  outcome.verdict = judge_resources(*outcome.artifact, job.limits);
  return outcome;
}

void add_row(Table& table, const Job& job, const Outcome& outcome, bool show_config) {
  const bool passed = outcome.verdict.status == GateStatus::kPassed;
  std::vector<Cell> row = {job.candidate.family->name(), job.arch, job.problem.id()};
  if (outcome.artifact) {
    const Artifact& a = *outcome.artifact;
    row.insert(row.end(), {std::to_string(a.registers), std::to_string(a.static_shared_bytes + a.dynamic_shared_bytes),
                           std::to_string(a.spill_store_bytes + a.spill_load_bytes), std::to_string(a.stack_bytes),
                           fmt::format("{:.0f}{}", a.compile_ms, a.from_cache ? "c" : "")});
  } else {
    row.insert(row.end(), 5, Cell("-"));
  }
  row.emplace_back(passed ? "pass" : outcome.lacking ? "not tried" : "FAIL", passed ? Tone::kGood : Tone::kBad);
  if (!passed)
    table.add_detail(
        fmt::format("{} {} {}: {} gate", job.candidate.print(), job.arch, job.problem.id(), outcome.verdict.gate),
        outcome.verdict.reason);
  if (show_config) row.emplace_back(job.candidate.family->space().print(job.candidate.config));
  table.add(std::move(row));
}

nlohmann::json outcome_json(const Job& job, const Outcome& outcome) {
  const ConfigSpace& space = job.candidate.family->space();
  nlohmann::json json = {{"family", job.candidate.family->name()},
                         {"config", space.to_json(job.candidate.config)},
                         {"problem", job.problem.id()},
                         {"arch", job.arch},
                         {"gate", outcome.verdict.gate},
                         {"passed", outcome.verdict.status == GateStatus::kPassed},
                         {"reason", outcome.verdict.reason}};
  if (outcome.artifact) json["artifact"] = *outcome.artifact;
  return json;
}

int compile(const CompileArguments& options) {
  check_json_target(options.common);
  Console console(options.common.quiet, json_on_stdout(options.common));
  std::vector<std::string> skipped;
  const std::vector<Job> jobs = make_jobs(options, skipped);
  const std::string compiler = open_compiler()->version();
  note_unused_cache();
  console.line("{}: {}, {} not supported{}", compiler, plural(static_cast<std::int64_t>(jobs.size()), "candidate"),
               skipped.size(), options.cold ? ", cache off" : "");

  std::vector<std::optional<Outcome>> outcomes(jobs.size());
  std::int64_t done = 0;
  const int threads = hardware_threads();
  const IsolateOptions isolate{.parallel = threads, .batch = 8, .timeout_seconds = 120};
  run_isolated(
      static_cast<std::int64_t>(jobs.size()), isolate,
      [&](std::int64_t i) { return compile_job(jobs[static_cast<std::size_t>(i)], !options.cold); },
      [&](std::int64_t i, const Isolated& isolated) {
        const auto at = static_cast<std::size_t>(i);
        outcomes[at] = judge(jobs[at], isolated);
        console.progress(
            ++done, static_cast<std::int64_t>(jobs.size()),
            fmt::format("{} {} {}", jobs[at].candidate.family->name(), jobs[at].arch, jobs[at].problem.id()));
      },
      interrupted);
  console.end_progress();

  const bool show_config = options.fuzz.cases > 0 || options.random_configs > 0 || !options.common.config.empty();
  std::vector<std::string> header = {"family",  "arch",    "problem", "regs",   "smem B",
                                     "spill B", "stack B", "ms",      "verdict"};
  if (show_config) header.emplace_back("config");
  Table table(header);
  nlohmann::json results = nlohmann::json::array();
  std::size_t passed = 0, failed = 0, lacking = 0;
  double slowest_ms = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!outcomes[i]) continue;
    add_row(table, jobs[i], *outcomes[i], show_config);
    results.push_back(outcome_json(jobs[i], *outcomes[i]));
    (outcomes[i]->verdict.status == GateStatus::kPassed ? passed : outcomes[i]->lacking ? lacking : failed) += 1;
    if (outcomes[i]->artifact) slowest_ms = std::max(slowest_ms, outcomes[i]->artifact->compile_ms);
  }
  console.table(table);
  write_json(options.common,
             {{"schema", "flashcore.compile/1"}, {"compiler", compiler}, {"results", results}, {"skipped", skipped}});
  if (passed + failed == 0 && !skipped.empty()) console.line("skipped: {}", skipped.front());
  console.summary("{} passed, {} failed, {} skipped{}; slowest compile {:.0f} ms{}", passed, failed, skipped.size(),
                  lacking_words(static_cast<int>(lacking)), slowest_ms, stopped_by());
  if (failed > 0) return kFailed;
  if (lacking > 0) return kNoEnvironment;
  return unless_interrupted(passed > 0 ? kDone : kNotJudged);
}

}  // namespace

Run add_compile(CLI::App& app) {
  auto options = std::make_shared<CompileArguments>();
  options->archs = known_archs();
  add_common(app, options->common, kSuite | kProblem | kFamily | kConfig | kJson);
  tell_default_suite(app, "a few problems of every kind");
  app.add_flag("--all", options->all, "every GPU family (the default when no --family is given)");
  app.add_option("--arch", options->archs, "architectures, as sm_80,sm_90 (default: all known)")
      ->delimiter(',')
      ->type_name("ARCH,...");
  app.add_option("--all-configs", options->random_configs, "also N random valid configs of each")
      ->type_name("N")
      ->check(whole_between(0, 100000));
  add_fuzz_flags(app, options->fuzz, "what check --fuzz N of the same --seed would run, instead of a suite");
  app.add_option("--seed", options->seed, "of the random configs, or of the fuzzer")
      ->check(seed_number())
      ->capture_default_str();
  app.add_flag("--cold", options->cold, "do not use the compile cache");
  add_examples(app, {"compile --all --arch sm_90 --problem b1_h8_s512_d64_fp16",
                     "compile --fuzz 4 --seed 1 --family ref_fwd --arch sm_90",
                     "compile --family ref_fwd --arch sm_80 --problem b1_h8_s512_d128_bf16_causal --json -"});
  return [options] {
    watch_interrupts();
    options->fuzz.known_kinds();  // refuses what is no kind, before the work
    return compile(*options);
  };
}

}  // namespace flashcore::cli
