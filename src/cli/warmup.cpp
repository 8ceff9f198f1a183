// flashcore warmup: fills the compile cache ahead of time, so that no first call waits for a compiler. Needs NVRTC, no
// GPU: --arch does it for machines that are not here, an image that is being built for example.

#include <set>

#include "cli/common.h"
#include "cli/stored.h"
#include "cli/verbs.h"
#include "core/environment_error.h"
#include "core/error.h"
#include "core/parallel.h"
#include "lab/process/isolate.h"

namespace flashcore::cli {

namespace {

struct WarmupArguments {
  Common common;
  std::string arch, key;
  bool all_choices = false;
};

struct Job {
  NamedProblem named;
  Choice choice;
};

// What dispatch picks for each problem; the same code is compiled once.
std::vector<Job> make_jobs(const WarmupArguments& options, const Suite& suite, const DeviceInfo& device,
                           std::size_t& without) {
  std::vector<Job> jobs;
  std::set<std::string> seen;
  for (const NamedProblem& named : suite.problems) {
    std::vector<Choice> choices = ranked_choices(named.problem, device);
    if (choices.empty()) ++without;
    if (!options.all_choices && choices.size() > 1) choices.resize(1, choices.front());
    for (Choice& choice : choices) {
      if (choice.candidate.family->kind() == DeviceKind::kCpu) continue;
      const KernelSource source =
          choice.candidate.family->source(choice.candidate.config, named.problem, device.limits);
      if (seen.insert(source.name_expression + source.extras()).second) jobs.push_back({named, std::move(choice)});
    }
  }
  return jobs;
}

std::string compile_job(const Job& job, const DeviceInfo& device) {
  try {
    const Artifact artifact = compile_candidate(job.choice.candidate, job.named.problem, device.limits);
    return nlohmann::json{{"from_cache", artifact.from_cache}, {"compile_ms", artifact.compile_ms}}.dump();
  } catch (const std::exception& error) {
    if (!is_environment_error(error)) throw;
    return nlohmann::json{{"lacking", environment_message(error)}}.dump(-1, ' ', false,
                                                                        nlohmann::json::error_handler_t::replace);
  }
}

int run_warmup(const WarmupArguments& options) {
  check_json_target(options.common);
  const Suite suite = select_problems(options.common, "canonical");
  const DeviceInfo device = device_for_dispatch(options.common.device, options.arch, options.key);
  check_gpu_key(options.key);
  std::size_t without = 0, compiled = 0, cached = 0, failed = 0, lacking = 0;
  const std::vector<Job> jobs = make_jobs(options, suite, device, without);
  Console console(options.common.quiet, json_on_stdout(options.common));
  nlohmann::json results = nlohmann::json::array();
  const IsolateOptions isolate{.parallel = hardware_threads(), .batch = 8, .timeout_seconds = 120};
  const auto done = [&](std::int64_t i, const Isolated& isolated) {
    const Job& job = jobs[static_cast<std::size_t>(i)];
    nlohmann::json result = {{"problem", job.named.problem.id()}, {"candidate", job.choice.candidate.print()}};
    if (isolated.completed) {
      const nlohmann::json answer = nlohmann::json::parse(isolated.output);
      result.update(answer);
      if (answer.contains("lacking")) {
        ++lacking;
        console.line("{}: {}", job.choice.candidate.print(), answer["lacking"].get<std::string>());
      } else {
        (answer["from_cache"].get<bool>() ? cached : compiled) += 1;
      }
    } else {
      ++failed;
      result["failed"] = isolated.failure;
      console.line("{} failed", job.choice.candidate.print());
      console.block(isolated.failure);
    }
    results.push_back(result);
    console.progress(static_cast<std::int64_t>(results.size()), static_cast<std::int64_t>(jobs.size()), job.named.name);
  };
  run_isolated(
      static_cast<std::int64_t>(jobs.size()), isolate,
      [&](std::int64_t i) { return compile_job(jobs[static_cast<std::size_t>(i)], device); }, done, interrupted);
  console.end_progress();
  write_json(options.common, {{"schema", "flashcore.warmup/1"}, {"device", device.key}, {"results", results}});
  if (jobs.empty() && without == 0) {
    console.summary("nothing to compile on {}: its kernels are part of the program", device.key);
    return kDone;
  }
  const auto count = [](std::size_t n, const char* word) { return plural(static_cast<std::int64_t>(n), word); };
  console.summary("{} for {} on {}: {} compiled, {} there already, {} failed{}{}", count(jobs.size(), "kernel"),
                  count(suite.problems.size(), "problem"), device.key, compiled, cached, failed,
                  lacking_words(static_cast<int>(lacking)), stopped_by());
  if (failed > 0) return kFailed;
  if (lacking > 0) return kNoEnvironment;
  return without == 0 && compiled + cached == jobs.size() ? kDone : kNotJudged;
}

}  // namespace

Run add_warmup(CLI::App& app) {
  auto options = std::make_shared<WarmupArguments>();
  add_common(app, options->common, kDevice | kSuite | kProblem | kJson);
  tell_default_suite(app, "canonical");
  app.add_option("--arch", options->arch, "for a GPU of this architecture, which need not be here")->type_name("sm_90");
  app.add_option("--key", options->key, "with --arch: whose tuned table to use, as h200")->type_name("KEY");
  app.add_flag("--all-choices", options->all_choices, "also what would be taken where the first choice does not fit");
  add_examples(app,
               {"warmup --arch sm_90 --key h200 --problem b1_h8_s512_d64_fp16", "warmup --device cpu --suite quick"});
  return [options] {
    watch_interrupts();
    return run_warmup(*options);
  };
}

}  // namespace flashcore::cli
