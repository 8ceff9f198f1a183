// flashcore crosscheck: does another tool agree with the engine about the same launch?

#include "lab/compare/crosscheck.h"

#include <filesystem>

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/foreign_text.h"
#include "lab/compare/crosscheck_tools.h"
#include "lab/harness/kernel_failure.h"
#include "lab/record/digest.h"
#include "lab/record/machine.h"
#include "lab/verify/judged_file.h"

namespace flashcore::cli {

namespace {

// Of a GPU's clock and its timers; a CPU that others use too differs by more from one second to the next.
constexpr double kLimitGpu = 0.02, kLimitCpu = 0.1;

struct CrosscheckArguments {
  Common common;
  std::string limit, python = "python3";
  int rounds = 24;
  std::string seconds = "120s";
};

double limit_of(const CrosscheckArguments& options, const DeviceInfo& device) {
  if (options.limit.empty()) return device.limits.kind == DeviceKind::kCpu ? kLimitCpu : kLimitGpu;
  std::string_view text = options.limit;
  const bool percent = text.ends_with('%');
  if (percent) text.remove_suffix(1);
  const auto number = parse_finite(text);
  const double limit = number ? *number / (percent ? 100 : 1) : 0;
  if (limit < 0.001 || limit > 1)
    throw_bad_input("--limit '{}' is no limit: give a share between 0.1% and 100%, as 2% or 0.02",
                    excerpt(options.limit));
  return limit;
}

Tone tone_of_agreement(Agreement agreement) {
  return agreement == Agreement::kAgrees ? Tone::kGood : agreement == Agreement::kDisagrees ? Tone::kBad : Tone::kWarn;
}

void show_result(Console& console, const CrosscheckResult& result, const std::string& title) {
  console.line("{}", title);
  const EngineReading& engine = result.engine;
  if (!engine.warm_us.empty())
    console.line("  the engine: {:.2f} us{}", median(engine.warm_us),
                 engine.cold_us.empty() ? "" : fmt::format(", with a cold cache {:.2f} us", median(engine.cold_us)));
  Table table({"timed by", "cache", "p50 us", "over the engine's [95%]", "verdict", "cause"});
  for (const MethodVerdict& m : result.methods) {
    const bool timed = !m.reading.times_us.empty();
    const std::string name = m.reading.method + (m.reading.version.empty() ? "" : " " + m.reading.version);
    table.add({name,
               m.reading.cold ? "cold" : "warm",
               timed ? fmt::format("{:.2f}", median(m.reading.times_us)) : "-",
               m.ratio.estimate > 0
                   ? fmt::format("{:.3f} [{:.3f}, {:.3f}]", m.ratio.estimate, m.ratio.low, m.ratio.high)
                   : "-",
               {word_of(m.agreement), tone_of_agreement(m.agreement)},
               m.cause});
  }
  console.table(table);
  Table ceilings({"matrix multiply", "TFLOP/s", "our ceiling", "verdict", "cause"});
  for (const CeilingVerdict& c : result.ceilings)
    ceilings.add({c.reading.what,
                  c.reading.tflops > 0 ? fmt::format("{:.3f}", c.reading.tflops) : "-",
                  c.ceiling_tflops > 0 ? fmt::format("{:.3f}", c.ceiling_tflops) : "-",
                  {word_of(c.agreement), tone_of_agreement(c.agreement)},
                  c.cause});
  console.table(ceilings);
  if (!result.ceiling_is_of.empty()) console.line("  {}", result.ceiling_is_of);
}

CrosscheckResult crosscheck_one(const CrosscheckArguments& options, Device& device, const NamedProblem& named,
                                const Candidate& candidate, double limit) {
  CrosscheckResult result;
  {
    Worker worker(device.info().id);  // gone before anything is timed beside it
    worker.cancel_when(interrupted);
    result.failed = why_not_launched(worker, named, candidate);
  }
  if (!result.failed.empty()) return result;
  const InProcessTimes times =
      time_in_process(device, named.problem, candidate, {.rounds = options.rounds, .seed = 1}, interrupted);
  result.wrong = times.wrong;
  result.engine = times.engine;
  const auto judge = [&](const MethodReading& reading) {
    result.methods.push_back(judge_method(times.engine, reading, limit));
  };
  for (const MethodReading& reading : times.methods) judge(reading);
  result.interrupted = interrupted();
  if (result.interrupted) return result;
  const DeviceLimits& limits = device.info().limits;
  const bool on_gpu = limits.kind == DeviceKind::kCuda;
  const ToolQuestion question{
      .problem = named.problem,
      .device = device.info().id,
      .candidate = candidate.print(),
      .kernel = on_gpu ? candidate.family->source(candidate.config, named.problem, limits).name_expression : "",
      .program = std::filesystem::read_symlink("/proc/self/exe").string(),
      .python = options.python,
      .seconds = *parse_duration(options.seconds),
      .stop = interrupted};
  if (on_gpu) judge(time_by_ncu(question, compiled_candidate(candidate, named.problem, limits)));
  result.interrupted = interrupted();
  if (result.interrupted) return result;
  const LoadMeter load;
  ToolAnswers answers = ask_python(question);
  MachineReading machine;
  if (!on_gpu) load.read(machine);
  for (MethodReading& reading : answers.methods) {
    reading.others_busy = machine.others_busy;
    judge(reading);
  }
  for (const MatmulReading& reading : answers.matmuls) {
    result.ceilings.push_back(judge_ceiling(reading, times.ceilings));
    if (reading.tflops > 0 && result.ceilings.back().ceiling_tflops > 0)
      result.ceiling_is_of = words_of_ceiling(limits, reading.is_16bit, candidate.print());
  }
  result.interrupted = interrupted();
  return result;
}

struct CrosscheckJob {
  NamedProblem named;
  Candidate candidate;
};

// Before anything is measured. Of a suite what cannot be timed is skipped; one problem asked for by name is Error
// kBadInput, and so is a suite of which nothing can be timed.
std::vector<CrosscheckJob> crosscheck_jobs(const Common& common, const Suite& suite, const DeviceInfo& device,
                                           std::vector<std::string>& skipped) {
  const std::string pinned = candidate_text(common);
  std::vector<CrosscheckJob> jobs;
  for (const NamedProblem& named : suite.problems) {
    if (named.problem.seqlen_q == 0) {
      skipped.push_back(fmt::format("{}: its queries have no rows, so there is nothing to time", named.name));
      continue;
    }
    try {
      jobs.push_back({named, pinned.empty() ? dispatch(named.problem, device).candidate
                                            : parse_candidate(pinned, named.problem, device.limits)});
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kBadInput || !common.problem.empty()) throw;
      skipped.push_back(fmt::format("{}: {}", named.name, e.what()));
    }
  }
  if (jobs.empty()) throw_bad_input("nothing of {} can be timed: {}", suite.name, skipped.back());
  return jobs;
}

int run_crosscheck(const CrosscheckArguments& options) {
  const Common& common = options.common;
  check_json_target(common);
  if (!parse_duration(options.seconds))
    throw_bad_input("--tool-time '{}' is no time: give seconds or minutes, as 120s or 2m", excerpt(options.seconds));
  require_python(options.python);
  const Suite suite = select_problems(common, "smoke");
  require_something_to_time(suite);
  const auto device = open_named_device(common.device);
  if (device->info().limits.emulated)
    throw_bad_input("--device {}: an emulated GPU has no time; use cuda or cpu", common.device);
  const double limit = limit_of(options, device->info());
  std::vector<std::string> skipped;
  const std::vector<CrosscheckJob> jobs = crosscheck_jobs(common, suite, device->info(), skipped);
  Console console(common.quiet, json_on_stdout(common));
  nlohmann::json results = nlohmann::json::array();
  int disagrees = 0, judged = 0, failed = 0;
  std::string unjudged, lacking;
  bool faulted = false;
  for (const auto& [named, candidate] : jobs) {
    // What has faulted launches nothing more.
    if (interrupted() || faulted) break;
    CrosscheckResult result;
    const auto failure = failure_of([&] {
      try {
        result = crosscheck_one(options, *device, named, candidate, limit);
      } catch (const Cancelled&) {
        result.interrupted = true;
      }
    });
    if (failure && failure->lacking) {
      lacking = fmt::format("{}: {}", named.name, failure->what);
      break;
    }
    if (failure) result.failed = failure->what, faulted = failure->faulted;
    show_result(console, result, fmt::format("{} by {}", named.name, candidate.print()));
    if (!result.wrong.empty() || !result.failed.empty()) print_error(fmt::format("{}: {}", named.name, result.why()));
    else if (const std::string why = result.why(); !why.empty()) {
      console.line("  could not judge: {}", why);
      unjudged = why;
    }
    failed += result.wrong.empty() && result.failed.empty() ? 0 : 1;
    disagrees += result.agreement() == Agreement::kDisagrees ? 1 : 0;
    judged += result.agreement() != Agreement::kNotJudged ? 1 : 0;
    nlohmann::json row = crosscheck_json(result);
    row["problem"] = named.problem.id();
    row["name"] = named.name;
    row["candidate"] = candidate.print();
    row["limit"] = limit;
    row["device"] = device->info();
    row[kCandidateHash] = candidate_hash_of(candidate.print(), named.problem, device->info().limits);
    results.push_back(std::move(row));
  }
  for (const std::string& reason : skipped) console.line("skipped {}", reason);
  write_json(common, {{"schema", "flashcore.crosscheck/1"},
                      {kDigest, ""},
                      {"jobs", jobs.size()},
                      {"results", results},
                      {"skipped", skipped}});
  if (!lacking.empty()) print_error(lacking);
  console.summary("{} cross-checked within {:.1f}%: {} with a disagreement that nothing explains, {} not judged{}{}{}",
                  plural(static_cast<std::int64_t>(results.size()), "problem"), 100 * limit, disagrees,
                  static_cast<int>(results.size()) - judged, judged > 0 || unjudged.empty() ? "" : ": " + unjudged,
                  skipped.empty() ? "" : fmt::format(", {} skipped", skipped.size()), stopped_by());
  if (disagrees > 0 || failed > 0) return kFailed;
  if (!lacking.empty()) return kNoEnvironment;
  return unless_interrupted(judged > 0 ? kDone : kNotJudged);
}

}  // namespace

Run add_crosscheck(CLI::App& app) {
  auto options = std::make_shared<CrosscheckArguments>();
  add_common(app, options->common, kDevice | kSuite | kProblem | kFamily | kConfig | kJson);
  tell_default_suite(app, "smoke");
  app.add_option("--limit", options->limit, "a larger difference is a finding (default: 2% on a GPU, 10% on a CPU)")
      ->type_name("SHARE");
  app.add_option("--rounds", options->rounds, "in which the ways of this process take turns")
      ->check(whole_between(6, 10000))
      ->capture_default_str();
  app.add_option("--python", options->python, "that imports flashcore and PyTorch, for their timers")
      ->type_name("PROGRAM")
      ->check(not_empty())
      ->capture_default_str();
  app.add_option("--tool-time", options->seconds, "that each other tool may take")
      ->type_name("TIME")
      ->capture_default_str();
  add_examples(app, {"crosscheck --device cpu --problem b1_h2_s128_d64_fp32 --limit 50%  # exit 0 or 1 or 2"});
  return [options] {
    watch_interrupts();
    return run_crosscheck(*options);
  };
}

}  // namespace flashcore::cli
