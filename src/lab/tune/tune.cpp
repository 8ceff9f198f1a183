#include "lab/tune/tune.h"

#include <unistd.h>

#include <algorithm>

#include "core/error.h"
#include "kernels/family.h"
#include "lab/tune/problem.h"
#include "lab/tune/search.h"

namespace flashcore {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string new_run_id() { return fmt::format("tune-{}-{}", now_iso8601(), getpid()); }

}  // namespace

TuneResult tune(const TuneOptions& options, Store& store, const std::function<void(const TuneProgress&)>& progress,
                const std::function<bool()>& stop) {
  // Bad words are found before anything runs.
  if (options.family) family_by_name(*options.family);
  if (options.strategy == "none" && !options.proposer)
    throw_bad_input("strategy 'none' searches nothing; give a proposer with it, or another strategy");
  if (options.strategy != "both" && options.strategy != "none") make_search(options.strategy, {}, 0);
  if (options.suite.problems.empty())
    throw_bad_input("suite '{}' has no problems; there is nothing to tune", options.suite.name);

  TuneRun run{options,
              store,
              progress,
              stop,
              new_run_id(),
              Worker(options.device, options.worker_executable),
              Worker(options.device, options.worker_executable),
              EmulatorStage(options.worker_executable),
              options.ledger.empty() ? std::vector<LedgerEntry>() : load_ledger(options.ledger),
              0};
  run.worker.cancel_when(stop);
  run.holdout_worker.cancel_when(stop);
  run.emulator.cancel_when(stop);
  TuneResult result;
  result.run = run.id;
  std::optional<double> seconds = options.budget_seconds;
  if (!seconds && !options.budget_trials) seconds = kDefaultBudgetSeconds;
  const auto start = Clock::now();
  const std::size_t count = options.suite.problems.size();
  for (std::size_t i = 0; i < count && !result.interrupted; ++i) {
    TuneBudget budget{std::nullopt, options.budget_trials};
    // What a problem leaves over goes to those after it.
    if (seconds)
      budget.seconds = std::max(0.0, *seconds - seconds_between(start, Clock::now())) / static_cast<double>(count - i);
    std::optional<ProblemTuner> tuner;
    try {
      tuner.emplace(run, options.suite.problems[i], budget);
      tuner->tune();
    } catch (const Cancelled&) {
      result.interrupted = true;
    }
    if (tuner) result.entries.push_back(tuner->entry());
    run.problems_done = result.entries.size();
  }
  return result;
}

}  // namespace flashcore
