#include <algorithm>

#include "lab/tune/facts.h"
#include "lab/tune/holdout.h"
#include "lab/tune/problem.h"

// The end of a problem's tuning: its finalists on held-out data.
namespace flashcore {
namespace {

// Held-out inputs share no seed with the search.
constexpr std::uint64_t kHoldoutSeed = 0x686f6c64;
// A finalist's race needs about this long to mean something; with less time there are fewer finalists.
constexpr double kMinFinalistSeconds = 0.7;
// Starting a process and measuring its ceilings.
constexpr double kProcessSeconds = 2.5;
// Of one race where only trials are limited.
constexpr double kFinalistSeconds = 1.0;

}  // namespace

// The fastest overall, and each arm's best, so that arms can be compared on held-out data.
std::vector<std::string> ProblemTuner::finalists() const {
  std::vector<std::string> chosen;
  for (const Trial& t : choose_finalists(trials_, baseline_, affordable_finalists())) chosen.push_back(t.candidate());
  for (const TuneResult::Arm& arm : entry_.arms) {
    if (arm.best.empty() || arm.best == baseline_ || entry_.arms.size() < 2) continue;
    if (std::find(chosen.begin(), chosen.end(), arm.best) == chosen.end()) chosen.push_back(arm.best);
  }
  return chosen;
}

void ProblemTuner::measure_finalists() {
  if (baseline_.empty() && incumbent_) baseline_ = incumbent_->candidate();
  if (baseline_.empty()) {
    const auto passed =
        std::count_if(trials_.begin(), trials_.end(), [](const Trial& t) { return t.ended == Ended::kPassed; });
    entry_.problem_note =
        passed == 0
            ? "no candidate passed"
            : fmt::format("{} of {} candidates passed the gates and none was timed{}", passed, trials_.size(),
                          limits_.emulated ? ": an emulated GPU has no time, and a real one has to rank them" : "");
    for (const Trial& t : trials_)
      if (t.phase == Phase::kDefault && t.ended != Ended::kPassed)
        entry_.problem_note += fmt::format("; {}: {}: {}", t.candidate(), t.ended, t.message);
    return;
  }
  HoldoutRequest request;
  request.baseline = baseline_;
  request.finalists = finalists();
  request.base = request_for(baseline_, Phase::kHoldout);
  request.base.patches = patches_;
  request.base.seed = run_.options.seed ^ kHoldoutSeed;
  ask_full_gate(request.base);
  request.base.max_seconds = kFinalistSeconds;
  const auto count = static_cast<double>(request.finalists.size() + 1);
  if (const auto left = seconds_left(1.0)) {
    const double for_races = *left - (request.winner_processes - 1) * kProcessSeconds;
    const double races = count * request.processes + request.winner_processes - request.processes;
    request.base.max_seconds = std::clamp(for_races / races, kMinFinalistSeconds, 5.0);
  }
  std::vector<Trial> heldout;
  for (const std::string& candidate : request.finalists)
    if (const Trial* done = finished_holdout(candidate)) heldout.push_back(*done);
  const Trial* base = finished_holdout(baseline_);
  if (base && heldout.size() == request.finalists.size()) {
    heldout.insert(heldout.begin(), *base);
  } else {
    int done = 0, total = static_cast<int>(request.finalists.size()) * request.processes + 1;
    heldout = measure_holdout(
        request, run_.holdout_worker, run_.options.device, run_.options.worker_executable,
        [&](const Trial& trial) {
          ++done;
          total = std::max(total, done);  // who may win is raced in more processes
          report("holdout", trial, done, total);
        },
        run_.stop);
    for (Trial& trial : heldout) trial = store(std::move(trial));
  }
  entry_.winner = choose_winner(heldout, baseline_);
  if (entry_.winner && entry_.winner->candidate() == baseline_) entry_.closest = closest_to_win(heldout, baseline_);
  finish_arms(heldout);
  if (entry_.winner) entry_.shrinkage = shrinkage_of(trials_, *entry_.winner, baseline_);
  else
    entry_.problem_note = fmt::format("no finalist passed on held-out data; {}: {}", heldout.front().candidate(),
                                      heldout.front().message);
  TuneProgress progress = progress_at("done");
  if (entry_.winner) progress.best = &*entry_.winner;
  if (run_.progress) run_.progress(progress);
}

void ProblemTuner::finish_arms(const std::vector<Trial>& heldout) {
  for (TuneResult::Arm& arm : entry_.arms)
    for (const Trial& t : heldout) {
      if (t.candidate() != arm.best || !is_ranked(t)) continue;
      arm.heldout = t.comparison ? t.comparison->speedup : 1;
      arm.heldout_low = t.comparison ? t.comparison->ci95_low : 1;
      arm.heldout_high = t.comparison ? t.comparison->ci95_high : 1;
    }
}

// Of an earlier run that ended in this step: nothing was searched since, so what it measured still counts.
const Trial* ProblemTuner::finished_holdout(const std::string& candidate) const {
  std::int64_t last_search = 0;
  for (const Trial& t : trials_) last_search = std::max(last_search, t.id);
  for (const Trial& t : earlier_heldout_) {
    const bool same_baseline =
        candidate == baseline_ ? !t.comparison : t.comparison && t.comparison->against == baseline_;
    // As an older flashcore ended it.
    const bool is_cut_short = t.comparison && t.comparison->processes < kWinnerProcesses && may_win(*t.comparison);
    if (is_cut_short) continue;
    if (t.id > last_search && t.candidate() == candidate && same_baseline &&
        t.seed == (run_.options.seed ^ kHoldoutSeed))
      return &t;
  }
  return nullptr;
}

int ProblemTuner::affordable_finalists() const {
  const auto left = seconds_left(1.0);
  if (!left) return run_.options.finalists;
  // Fewer finalists rather than fewer processes, with time for one of them in all processes that a winner needs.
  const double others = (kWinnerProcesses - kFewestProcesses) * (kProcessSeconds + kMinFinalistSeconds);
  const double of_process = (*left - others) / kFewestProcesses - kProcessSeconds;
  return std::clamp(static_cast<int>(of_process / kMinFinalistSeconds) - 1, 1, std::max(1, run_.options.finalists));
}

}  // namespace flashcore
