#include "lab/tune/problem.h"

#include <algorithm>

#include "core/error.h"
#include "core/parallel.h"
#include "kernels/family.h"
#include "lab/record/freshness.h"
#include "lab/tune/facts.h"

namespace flashcore {
namespace {

constexpr const char* kBaselineFamily = "ref_fwd";
// fp64 reference work per core and data pattern: about half a second.
constexpr double kReferenceFlopsPerCore = 2e8;
// Of one race where only trials are limited.
constexpr double kTrialSeconds = 0.5;

double seconds_of_budget(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

bool is_rejected(const Trial& t) {
  switch (t.ended) {
    case Ended::kInvalid:
    case Ended::kCompileError:
    case Ended::kResource:
    case Ended::kIncorrect:
    case Ended::kCrashed:
    case Ended::kTimeout: return true;
    default: return false;
  }
}

}  // namespace

ProblemTuner::ProblemTuner(TuneRun& run, const NamedProblem& problem, const TuneBudget& budget)
    : run_(run), problem_(problem.problem), budget_(budget), limits_(run.worker.device().limits), start_(Clock::now()) {
  entry_.problem = problem;
}

void ProblemTuner::tune() {
  if (!find_families()) return;
  load_earlier_trials();
  announce_space();
  try_defaults();
  search();
  measure_finalists();
}

TuneResult::Entry ProblemTuner::entry() {
  count_funnel(trials_, entry_);
  collect_inert_fields();
  return entry_;
}

bool ProblemTuner::find_families() {
  std::vector<std::string> reasons;
  families_ = supporting_families(problem_, limits_, &reasons);
  std::erase_if(families_, [&](const Family* f) { return run_.options.family && f->name() != *run_.options.family; });
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

void ProblemTuner::load_earlier_trials() {
  const std::string displaced = dispatch(problem_, run_.worker.device()).candidate.print();
  TrialQuery query;
  query.problem_id = problem_.id();
  query.device_key = run_.worker.device().key;
  for (Trial& t : run_.store.query(query, &damaged_)) {
    if (t.ended == Ended::kEnvironment || !is_current(t)) continue;  // says nothing of the candidate as it is now
    const bool ours = t.candidate() == displaced || std::any_of(families_.begin(), families_.end(),
                                                                [&](const Family* f) { return f->name() == t.family; });
    if (!ours) continue;
    if (t.phase == Phase::kHoldout) earlier_heldout_.push_back(std::move(t));
    else if (t.phase == Phase::kDefault || t.phase == Phase::kSearch) remember(std::move(t));
  }
  for (const Trial& t : trials_) {
    consider_incumbent(t);
    if (is_rejected(t)) ++entry_.rejected[t.ended];
  }
  entry_.known = static_cast<int>(trials_.size());
}

void ProblemTuner::announce_space() {
  TuneProgress progress = progress_at("space");
  for (const Family* family : searched_) {
    progress.space_size += family->space().size();
    progress.feasible += feasible_configs(*family, problem_, limits_).size();
  }
  if (entry_.known > 0) {
    std::string rejected;
    for (const auto& [how, count] : entry_.rejected) rejected += fmt::format(", {} {}", count, how);
    progress.notes.push_back(
        fmt::format("{} configs are known from earlier runs{}; they are not tried again", entry_.known, rejected));
  }
  for (const std::string& which : damaged_)
    progress.notes.push_back(fmt::format("{} is damaged and passed over", which));
  for (const Family* family : searched_)
    for (std::string& note : ledger_notes(run_.ledger, family->name(), run_.worker.device().key))
      progress.notes.push_back("ledger: " + note);
  const std::string strategy = run_.options.strategy;
  if (run_.options.proposer) add_proposer(progress.notes);
  for (const char* one : {"evolution", "random", "exhaustive"})
    if (strategy == one || (strategy == "both" && std::string(one) != "exhaustive"))
      arms_.push_back(make_search_arm(one, searched_, problem_, limits_, run_.options.seed));
  for (const auto& arm : arms_) entry_.arms.emplace_back().strategy = arm->name();
  for (const auto& arm : arms_)
    for (const Trial& t : trials_) arm->observe(t);
  consult_ledger(progress.notes);
  if (run_.progress) run_.progress(progress);
}

// Configs found slower on this problem are not tried; those found faster come first.
void ProblemTuner::consult_ledger(std::vector<std::string>& notes) {
  for (const Family* family : searched_)
    for (const KnownConfig& known : known_configs(run_.ledger, family->name(), problem_, run_.worker.device())) {
      Trial trial;
      trial.family = family->name();
      trial.config = known.config;
      trial.ended = Ended::kSlower;
      if (known.verdict == SpeedVerdict::kFaster) seeds_.push_back(trial.candidate());
      if (known.verdict != SpeedVerdict::kSlower) continue;
      notes.push_back(fmt::format("ledger: {} is left out, the experiment {} found it slower", trial.candidate(),
                                  known.experiment));
      for (const auto& arm : arms_) arm->observe(trial);
    }
}

void ProblemTuner::try_defaults() {
  // What the run has to beat comes first: dispatch's choice without it, of whatever family. Who names a family asks for
  // the best of that.
  std::vector<std::string> first;
  const Candidate displaced = dispatch(problem_, run_.worker.device()).candidate;
  if (!run_.options.family || *run_.options.family == displaced.family->name()) first.push_back(displaced.print());
  for (const Family* family : families_) {
    const std::string text = Candidate{family, family->default_config(problem_, limits_)}.print();
    if (first.empty() || text != first.front()) first.push_back(text);
  }
  const std::size_t defaults = first.size();
  first.insert(first.end(), seeds_.begin(), seeds_.end());
  for (std::size_t i = 0; i < first.size(); ++i) {
    const Trial* tried = find_tried(first[i]);
    if (!tried) {
      EvaluateRequest request = request_for(first[i], i < defaults ? Phase::kDefault : Phase::kSearch);
      if (incumbent_) request.incumbent = incumbent_->candidate();
      tried = &run_and_store(request, i < defaults ? "default" : "search");
      for (const auto& arm : arms_) arm->observe(*tried);
    }
    if (i < defaults && baseline_.empty() && is_ranked(*tried)) baseline_ = first[i];
  }
}

// The arms in turn, so that each has the same budget and meets the same moments of the machine.
void ProblemTuner::search() {
  for (bool any = true; any;) {
    any = false;
    for (std::size_t arm = 0; arm < arms_.size(); ++arm) {
      if (search_spent(arm)) continue;
      if (costs_more_than_it_gains()) return;
      any = try_next_proposal(arm) || any;
    }
  }
}

bool ProblemTuner::costs_more_than_it_gains() {
  if (!run_.options.stop_loss) return false;
  entry_.gain = history_.next();
  return entry_.stopped_at_loss = entry_.gain && entry_.gain->is_loss(*run_.options.stop_loss);
}

bool ProblemTuner::try_next_proposal(std::size_t arm) {
  if (run_.stop && run_.stop()) throw Cancelled("stopped between two candidates");
  const auto proposal = arms_[arm]->propose();
  keep_rejections(arm);
  if (!proposal) {
    entry_.arms[arm].note = arms_[arm]->why_ended();
    entry_.arms[arm].failed = arms_[arm]->failed();
    // Of a later problem it is a note: what earlier ones found is not to be lost.
    if (arms_[arm]->died_at_once() && run_.problems_done == 0)
      throw_bad_input("the proposer '{}' ended before its first proposal: {}; docs/tuning.md has the protocol",
                      *run_.options.proposer, entry_.arms[arm].note);
    return false;
  }
  if (proposal->patch && std::find(patches_.begin(), patches_.end(), *proposal->patch) == patches_.end()) {
    scopes_.push_back(std::make_unique<PatchScope>(std::vector<Patch>{*proposal->patch}));
    patches_.push_back(*proposal->patch);
  }
  // Tried by the other arm already: the result is the same, and costs nothing.
  if (const Trial* known = find_tried(proposal->candidate)) {
    note_arm_trial(arm, *known);
    arms_[arm]->observe(*known);
    return true;
  }
  EvaluateRequest request = request_for(proposal->candidate, Phase::kSearch);
  if (incumbent_) request.incumbent = incumbent_->candidate();
  request.timed = timed_;
  // Whatever the answer brought: a kernel that an earlier one brought is somebody else's still.
  const bool patched = patch_of(request.patches, request.candidate) != nullptr;
  const Trial& trial = patched ? judge_patched(request) : run_and_store(request, "search");
  note_arm_trial(arm, trial);
  arms_[arm]->observe(trial);
  return true;
}

void ProblemTuner::note_arm_trial(std::size_t arm, const Trial& trial) {
  TuneResult::Arm& outcome = entry_.arms[arm];
  ++outcome.trials;
  if (!is_ranked(trial) || (outcome.best_us > 0 && trial.timing->p50_us >= outcome.best_us)) return;
  outcome.best = trial.candidate();
  outcome.best_us = trial.timing->p50_us;
}

EvaluateRequest ProblemTuner::request_for(const std::string& candidate, Phase phase) const {
  EvaluateRequest request;
  request.problem = problem_;
  request.problem_name = entry_.problem.name;
  request.suite = run_.options.suite.name;
  request.candidate = candidate;
  request.phase = phase;
  request.spec() = run_.options.spec();
  ask_quick_gate(request);
  request.max_reference_flops = kReferenceFlopsPerCore * hardware_threads();
  request.patches = patches_;
  if (!budget_.seconds) request.max_seconds = kTrialSeconds;
  // Some thirty candidates should fit into the search, whatever its length.
  if (budget_.seconds) request.max_seconds = std::clamp(*budget_.seconds * kSearchShare / 30, 0.2, 1.5);
  return request;
}

const Trial& ProblemTuner::run_and_store(const EvaluateRequest& request, const char* stage,
                                         const Preflight* preflight) {
  if (run_.stop && run_.stop()) throw Cancelled("stopped between two candidates");
  Trial trial = run_.worker.evaluate(request);
  if (preflight) {
    note_emulator_verdict(trial, preflight->gates.back());
    if (trial.seconds) *trial.seconds += preflight->seconds;
  }
  return keep_trial(std::move(trial), stage);
}

const Trial& ProblemTuner::keep_trial(Trial judged, const char* stage) {
  const Trial& trial = remember(store(std::move(judged)));
  if (trial.ended == Ended::kEnvironment) ++entry_.lacking;
  consider_incumbent(trial);
  report(stage, trial, static_cast<int>(trials_.size()), budget_.trials.value_or(0));
  return trial;
}

Trial ProblemTuner::store(Trial trial) {
  trial.run = run_.id;
  trial.id = run_.store.append_or_note(trial);
  return trial;
}

const Trial& ProblemTuner::remember(Trial trial) {
  history_.add(trial);
  trials_.push_back(std::move(trial));
  const Trial& kept = trials_.back();
  if (const auto identity = identity_of(kept)) {
    identities_[kept.family].emplace_back(identity->first, identity->second);
    if (is_ranked(kept)) timed_.emplace(identity->second, kept.candidate());
  }
  return kept;
}

const Trial* ProblemTuner::find_tried(const std::string& candidate) const {
  const auto found =
      std::find_if(trials_.begin(), trials_.end(), [&](const Trial& t) { return t.candidate() == candidate; });
  return found == trials_.end() ? nullptr : &*found;
}

// What the trial's candidate executes; none if it was never compiled or its config is no longer one.
std::optional<std::pair<ConfigValues, std::string>> ProblemTuner::identity_of(const Trial& trial) const {
  if (!trial.artifact) return std::nullopt;
  try {
    const Candidate candidate = parse_candidate(trial.candidate(), problem_, limits_);
    return std::pair(candidate.config, execution_identity({candidate, *trial.artifact}, problem_, limits_));
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The first that is correct, then whoever beats it in a race. Earlier runs' trials replay in the same order.
void ProblemTuner::consider_incumbent(const Trial& trial) {
  if (!is_ranked(trial)) return;
  const bool beaten = incumbent_ && trial.comparison && trial.comparison->verdict == SpeedVerdict::kFaster &&
                      trial.comparison->against == incumbent_->candidate();
  if (!incumbent_ || beaten) incumbent_ = trial;
}

std::optional<double> ProblemTuner::seconds_left(double share) const {
  if (!budget_.seconds) return std::nullopt;
  return *budget_.seconds * share - seconds_of_budget(start_, Clock::now());
}

bool ProblemTuner::search_spent(std::size_t arm) const {
  // Trials of earlier runs may have spent the budget: a proposer that does not work is told all the same.
  if (!arms_[arm]->was_asked()) return false;
  const auto left = seconds_left(kSearchShare);
  if (left && *left <= 0) return true;
  return budget_.trials &&
         (static_cast<int>(trials_.size()) >= *budget_.trials || entry_.arms[arm].trials >= *budget_.trials);
}

TuneProgress ProblemTuner::progress_at(const char* stage) const {
  TuneProgress progress;
  progress.problem = entry_.problem.name;
  progress.stage = stage;
  progress.done = static_cast<int>(trials_.size());
  progress.total = budget_.trials.value_or(0);
  if (incumbent_) progress.best = &*incumbent_;
  return progress;
}

void ProblemTuner::report(const char* stage, const Trial& trial, int done, int total) {
  if (!run_.progress) return;
  TuneProgress progress = progress_at(stage);
  progress.done = done;
  progress.total = total;
  progress.trial = &trial;
  run_.progress(progress);
}

void ProblemTuner::collect_inert_fields() {
  for (const auto& [name, identities] : identities_)
    for (const std::string& field : inert_fields(family_by_name(name).space(), identities))
      entry_.inert_fields.push_back(name + ":" + field);
}

}  // namespace flashcore
