#include "lab/tune.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "core/error.h"
#include "core/parallel.h"
#include "kernels/embedded.h"
#include "kernels/family.h"
#include "lab/gates.h"
#include "lab/search.h"
#include "lab/tune_facts.h"
#include "lab/worker.h"

namespace flashcore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kBaselineFamily = "ref_fwd";
// Held-out inputs share no seed with the search.
constexpr std::uint64_t kHoldoutSeed = 0x686f6c64;
// Of a problem's time, what the search may use; the rest re-measures the finalists.
constexpr double kSearchShare = 0.6;
// fp64 reference work per core and data pattern: about half a second.
constexpr double kReferenceFlopsPerCore = 2e8;
// A finalist's race needs about this long to mean something; with less time there are fewer finalists.
constexpr double kMinFinalistSeconds = 0.7;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

struct Budget {
  std::optional<double> seconds;  // of this problem
  std::optional<int> trials;
};

// What all problems of a run share.
struct Run {
  const TuneOptions& options;
  Store& store;
  const std::function<void(const TuneProgress&)>& progress;
  const std::function<bool()>& stop;
  std::string id;
  Worker worker;
  // Finalists are measured by another process than the one that found them: another heap, another context, another
  // layout of memory. One for the whole run, because each child measures the device's ceilings for itself (seconds).
  Worker holdout_worker;
};

class ProblemTuner {
 public:
  ProblemTuner(Run& run, const NamedProblem& problem, const Budget& budget)
      : run_(run),
        problem_(problem.problem),
        budget_(budget),
        limits_(run.worker.device().limits),
        start_(Clock::now()) {
    entry_.problem = problem;
  }

  // Throws Cancelled when told to stop; entry() then holds what there is.
  void tune() {
    if (!find_families()) return;
    load_earlier_trials();
    announce_space();
    try_defaults();
    search();
    measure_finalists();
  }

  TuneResult::Entry entry() {
    count_funnel(trials_, entry_);
    collect_inert_fields();
    return entry_;
  }

 private:
  bool find_families() {
    std::vector<std::string> reasons;
    families_ = supporting_families(problem_, limits_, &reasons);
    if (run_.options.family)
      std::erase_if(families_, [&](const Family* f) { return f->name() != *run_.options.family; });
    // Newest architecture first, the naive baseline last.
    std::sort(families_.begin(), families_.end(), [](const Family* a, const Family* b) {
      const bool a_naive = a->name() == kBaselineFamily, b_naive = b->name() == kBaselineFamily;
      return a_naive != b_naive ? b_naive : a->name() > b->name();
    });
    searched_ = families_;
    if (searched_.size() > 1 && searched_.back()->name() == kBaselineFamily) searched_.pop_back();
    if (!families_.empty()) return true;
    entry_.problem_note = "no family runs this problem here";
    for (const std::string& reason : reasons)
      if (!run_.options.family || reason.starts_with(*run_.options.family + ":")) entry_.problem_note += "; " + reason;
    return false;
  }

  void load_earlier_trials() {
    TrialQuery query;
    query.problem_id = problem_.id();
    query.device_key = run_.worker.device().key;
    query.source_hash = source_hash();
    for (Trial& t : run_.store.query(query)) {
      const bool ours =
          std::any_of(families_.begin(), families_.end(), [&](const Family* f) { return f->name() == t.family; });
      if (!ours) continue;
      if (t.phase == Phase::kHoldout) earlier_heldout_.push_back(std::move(t));
      else if (t.phase == Phase::kDefault || t.phase == Phase::kSearch) remember(std::move(t));
    }
    for (const Trial& t : trials_) consider_incumbent(t);
  }

  void announce_space() {
    TuneProgress progress = progress_at("space");
    for (const Family* family : searched_) {
      SearchSpace space{family->space(), feasible_configs(*family, problem_, limits_),
                        family->default_config(problem_, limits_)};
      progress.space_size += space.space.size();
      progress.feasible += space.feasible.size();
      searches_.push_back(make_search(run_.options.strategy, std::move(space), run_.options.seed));
    }
    if (run_.progress) run_.progress(progress);
    for (const Trial& t : trials_) observe(t);
  }

  void try_defaults() {
    for (const Family* family : families_) {
      const Candidate candidate{family, family->default_config(problem_, limits_)};
      const std::string text = candidate.print();
      const auto tried =
          std::find_if(trials_.begin(), trials_.end(), [&](const Trial& t) { return t.candidate() == text; });
      if (tried == trials_.end()) {
        EvaluateRequest request = request_for(text, Phase::kDefault);
        if (incumbent_) request.incumbent = incumbent_->candidate();
        run_and_store(request, "default");
      }
      const auto found =
          std::find_if(trials_.begin(), trials_.end(), [&](const Trial& t) { return t.candidate() == text; });
      FC_CHECK(found != trials_.end());
      if (baseline_.empty() && is_ranked(*found)) baseline_ = text;
    }
  }

  void search() {
    std::size_t turn = 0;
    while (!searches_.empty() && !search_spent()) {
      const std::size_t at = turn++ % searches_.size();
      const auto config = searches_[at]->propose();
      if (!config) {
        searches_.erase(searches_.begin() + static_cast<std::ptrdiff_t>(at));
        searched_.erase(searched_.begin() + static_cast<std::ptrdiff_t>(at));
        continue;
      }
      EvaluateRequest request = request_for(Candidate{searched_[at], *config}.print(), Phase::kSearch);
      if (incumbent_) request.incumbent = incumbent_->candidate();
      request.timed = timed_;
      run_and_store(request, "search");
    }
  }

  void measure_finalists() {
    if (baseline_.empty() && incumbent_) baseline_ = incumbent_->candidate();
    if (baseline_.empty()) {
      entry_.problem_note = "no candidate passed";
      for (const Trial& t : trials_)
        if (t.phase == Phase::kDefault)
          entry_.problem_note += fmt::format("; {}: {}: {}", t.candidate(), t.ended, t.message);
      return;
    }
    std::vector<std::string> candidates = {baseline_};
    for (const Trial& t : choose_finalists(trials_, baseline_, affordable_finalists()))
      candidates.push_back(t.candidate());
    std::vector<Trial> heldout;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (const Trial* done = finished_holdout(candidates[i])) {
        heldout.push_back(*done);
        continue;
      }
      EvaluateRequest request = request_for(candidates[i], Phase::kHoldout);
      request.seed = run_.options.seed ^ kHoldoutSeed;
      request.patterns = all_patterns();
      if (i > 0) request.incumbent = baseline_;
      if (const auto left = seconds_left(1.0))
        request.max_seconds = std::clamp(*left / static_cast<double>(candidates.size() - i), kMinFinalistSeconds, 5.0);
      heldout.push_back(store(run_.holdout_worker.evaluate(request)));
      report("holdout", heldout.back(), static_cast<int>(i) + 1, static_cast<int>(candidates.size()));
    }
    entry_.winner = choose_winner(heldout, baseline_);
    if (entry_.winner) entry_.shrinkage = shrinkage_of(trials_, *entry_.winner, baseline_);
    else
      entry_.problem_note = fmt::format("no finalist passed on held-out data; {}: {}", heldout.front().candidate(),
                                        heldout.front().message);
    TuneProgress progress = progress_at("done");
    if (entry_.winner) progress.best = &*entry_.winner;
    if (run_.progress) run_.progress(progress);
  }

  // Of an earlier run that was killed in this step: nothing was searched since, so what it measured stands.
  const Trial* finished_holdout(const std::string& candidate) const {
    std::int64_t last_search = 0;
    for (const Trial& t : trials_) last_search = std::max(last_search, t.id);
    for (const Trial& t : earlier_heldout_) {
      const bool same_baseline =
          candidate == baseline_ ? !t.comparison : t.comparison && t.comparison->against == baseline_;
      if (t.id > last_search && t.candidate() == candidate && same_baseline &&
          t.seed == (run_.options.seed ^ kHoldoutSeed))
        return &t;
    }
    return nullptr;
  }

  int affordable_finalists() const {
    const auto left = seconds_left(1.0);
    if (!left) return run_.options.finalists;
    return std::clamp(static_cast<int>(*left / kMinFinalistSeconds) - 1, 1, std::max(1, run_.options.finalists));
  }

  EvaluateRequest request_for(const std::string& candidate, Phase phase) const {
    EvaluateRequest request;
    request.problem = problem_;
    request.problem_name = entry_.problem.name;
    request.suite = run_.options.suite.name;
    request.candidate = candidate;
    request.phase = phase;
    request.seed = run_.options.seed;
    request.patterns = {Pattern::kNormal, Pattern::kOutlier};
    request.regime = run_.options.regime;
    request.max_reference_flops = kReferenceFlopsPerCore * hardware_threads();
    // Some thirty candidates should fit into the search, whatever its length.
    if (budget_.seconds) request.max_seconds = std::clamp(*budget_.seconds * kSearchShare / 30, 0.2, 1.5);
    return request;
  }

  void run_and_store(const EvaluateRequest& request, const char* stage) {
    if (run_.stop && run_.stop()) throw Cancelled("stopped between two candidates");
    const Trial& trial = remember(store(run_.worker.evaluate(request)));
    observe(trial);
    consider_incumbent(trial);
    report(stage, trial, static_cast<int>(trials_.size()), budget_.trials.value_or(0));
  }

  Trial store(Trial trial) {
    trial.run = run_.id;
    trial.id = run_.store.append(trial);
    return trial;
  }

  const Trial& remember(Trial trial) {
    trials_.push_back(std::move(trial));
    const Trial& kept = trials_.back();
    if (const auto identity = identity_of(kept)) {
      identities_[kept.family].emplace_back(identity->first, identity->second);
      if (is_ranked(kept)) timed_.emplace(identity->second, kept.candidate());
    }
    return kept;
  }

  // What the trial's candidate executes; none if it was never compiled or its config is no longer one.
  std::optional<std::pair<ConfigValues, std::string>> identity_of(const Trial& trial) const {
    if (!trial.artifact) return std::nullopt;
    try {
      const Candidate candidate = parse_candidate(trial.candidate(), problem_, limits_);
      return std::pair(candidate.config, execution_identity({candidate, *trial.artifact}, problem_, limits_));
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  void observe(const Trial& trial) {
    for (std::size_t i = 0; i < searches_.size(); ++i)
      if (searched_[i]->name() == trial.family) searches_[i]->observe(trial);
  }

  // The first that is correct, then whoever beats it in a race. Earlier runs' trials replay in the same order.
  void consider_incumbent(const Trial& trial) {
    if (!is_ranked(trial)) return;
    const bool beaten = incumbent_ && trial.comparison && trial.comparison->verdict == "FASTER" &&
                        trial.comparison->against == incumbent_->candidate();
    if (!incumbent_ || beaten) incumbent_ = trial;
  }

  std::optional<double> seconds_left(double share) const {
    if (!budget_.seconds) return std::nullopt;
    return *budget_.seconds * share - seconds_between(start_, Clock::now());
  }
  bool search_spent() const {
    const auto left = seconds_left(kSearchShare);
    return (left && *left <= 0) || (budget_.trials && static_cast<int>(trials_.size()) >= *budget_.trials);
  }

  TuneProgress progress_at(const char* stage) const {
    TuneProgress progress;
    progress.problem = entry_.problem.name;
    progress.stage = stage;
    progress.done = static_cast<int>(trials_.size());
    progress.total = budget_.trials.value_or(0);
    if (incumbent_) progress.best = &*incumbent_;
    return progress;
  }
  void report(const char* stage, const Trial& trial, int done, int total) {
    if (!run_.progress) return;
    TuneProgress progress = progress_at(stage);
    progress.done = done;
    progress.total = total;
    progress.trial = &trial;
    run_.progress(progress);
  }

  void collect_inert_fields() {
    for (const auto& [name, identities] : identities_)
      for (const std::string& field : inert_fields(family_by_name(name).space(), identities))
        entry_.inert_fields.push_back(name + ":" + field);
  }

  Run& run_;
  Problem problem_;
  Budget budget_;
  DeviceLimits limits_;
  Clock::time_point start_;
  TuneResult::Entry entry_;
  std::vector<const Family*> families_, searched_;
  std::vector<std::unique_ptr<Search>> searches_;  // one for each of searched_
  std::vector<Trial> trials_;                      // default and search, earlier runs' first
  std::vector<Trial> earlier_heldout_;
  std::map<std::string, std::vector<std::pair<ConfigValues, std::string>>> identities_;  // by family
  std::map<std::string, std::string> timed_;                                             // identity -> candidate
  std::optional<Trial> incumbent_;
  std::string baseline_;  // the default that finalists are measured against
};

std::string new_run_id() { return fmt::format("tune-{}-{}", now_iso8601(), getpid()); }

}  // namespace

TuneResult tune(const TuneOptions& options, Store& store, const std::function<void(const TuneProgress&)>& progress,
                const std::function<bool()>& stop) {
  // Bad words are found before anything runs.
  if (options.family) family_by_name(*options.family);
  make_search(options.strategy, {}, 0);
  if (options.suite.problems.empty())
    throw_bad_input("suite '{}' has no problems; there is nothing to tune", options.suite.name);

  Run run{options,
          store,
          progress,
          stop,
          new_run_id(),
          Worker(options.device, options.worker_executable),
          Worker(options.device, options.worker_executable)};
  run.worker.cancel_when(stop);
  run.holdout_worker.cancel_when(stop);
  TuneResult result;
  result.run = run.id;
  std::optional<double> seconds = options.budget_seconds;
  if (!seconds && !options.budget_trials) seconds = kDefaultBudgetSeconds;
  const auto start = Clock::now();
  const std::size_t count = options.suite.problems.size();
  for (std::size_t i = 0; i < count && !result.interrupted; ++i) {
    Budget budget{std::nullopt, options.budget_trials};
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
  }
  return result;
}

}  // namespace flashcore
