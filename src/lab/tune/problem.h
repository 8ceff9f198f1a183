#pragma once
// One problem of a tune run: the defaults, the arms in turn against the incumbent, the finalists on held-out data.

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/scratch_folder.h"
#include "lab/experiment/ledger.h"
#include "lab/process/worker.h"
#include "lab/record/store.h"
#include "lab/tune/arms.h"
#include "lab/tune/options.h"
#include "lab/tune/preflight.h"
#include "lab/tune/result.h"
#include "lab/tune/stop_loss.h"

namespace flashcore {

struct TuneBudget {
  std::optional<double> seconds;  // of this problem
  std::optional<int> trials;
};

// What all problems of a run share.
struct TuneRun {
  const TuneOptions& options;
  Store& store;
  const std::function<void(const TuneProgress&)>& progress;
  const std::function<bool()>& stop;
  std::string id;
  Worker worker;
  // Finalists are measured by other processes than the one that found them: another heap, another context, another
  // layout of memory. The first of them serves the whole run, because each child measures the device's ceilings for
  // itself (seconds); where time allows, more fresh ones follow.
  Worker holdout_worker;
  EmulatorStage emulator;
  std::vector<LedgerEntry> ledger;
  std::size_t problems_done = 0;
};

class ProblemTuner {
 public:
  ProblemTuner(TuneRun& run, const NamedProblem& problem, const TuneBudget& budget);

  // Throws Cancelled when told to stop; entry() then holds what there is.
  void tune();
  TuneResult::Entry entry();

 private:
  using Clock = std::chrono::steady_clock;
  // Of a problem's time, what the search may use; the rest re-measures the finalists.
  static constexpr double kSearchShare = 0.6;

  bool find_families();
  void load_earlier_trials();
  void announce_space();
  void add_proposer(std::vector<std::string>& notes);
  void consult_ledger(std::vector<std::string>& notes);
  void try_defaults();
  void search();
  bool try_next_proposal(std::size_t arm);
  void measure_finalists();

  EvaluateRequest request_for(const std::string& candidate, Phase phase) const;
  // `preflight`: that passed it; its last verdict and its seconds are noted with the trial.
  const Trial& run_and_store(const EvaluateRequest& request, const char* stage, const Preflight* preflight = nullptr);
  const Trial& judge_patched(const EvaluateRequest& request);
  const Trial& keep_trial(Trial judged, const char* stage);
  Trial store(Trial trial);
  const Trial& remember(Trial trial);
  const Trial* find_tried(const std::string& candidate) const;
  std::optional<std::pair<ConfigValues, std::string>> identity_of(const Trial& trial) const;
  void consider_incumbent(const Trial& trial);
  void note_arm_trial(std::size_t arm, const Trial& trial);
  void keep_rejections(std::size_t arm);

  std::vector<std::string> finalists() const;
  const Trial* finished_holdout(const std::string& candidate) const;
  int affordable_finalists() const;
  void finish_arms(const std::vector<Trial>& heldout);

  std::optional<double> seconds_left(double share) const;
  bool search_spent(std::size_t arm) const;
  bool costs_more_than_it_gains();
  TuneProgress progress_at(const char* stage) const;
  void report(const char* stage, const Trial& trial, int done, int total);
  void collect_inert_fields();

  TuneRun& run_;
  PlacedProblem problem_;
  TuneBudget budget_;
  DeviceLimits limits_;
  Clock::time_point start_;
  TuneResult::Entry entry_;
  std::vector<const Family*> families_, searched_;
  std::optional<ScratchFolder> proposer_folder_;  // outlives the proposer
  std::vector<std::unique_ptr<Arm>> arms_;
  std::vector<std::unique_ptr<PatchScope>> scopes_;
  std::vector<std::string> seeds_;  // candidates that an experiment found faster
  std::vector<Patch> patches_;      // of proposals, kept for the finalists
  std::vector<Trial> trials_;       // default and search, earlier runs' first
  std::vector<Trial> earlier_heldout_;
  std::vector<std::string> damaged_;  // of the store: what could not be read
  std::map<std::string, std::vector<std::pair<ConfigValues, std::string>>> identities_;  // by family
  std::map<std::string, std::string> timed_;                                             // identity -> candidate
  std::optional<Trial> incumbent_;
  SearchHistory history_;  // of the default and search trials, earlier runs' first
  std::string baseline_;   // the default that finalists are measured against
};

}  // namespace flashcore
