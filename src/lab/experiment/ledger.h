#pragma once
// Ledger: what experiments found, refuted ideas included, read from results/experiments/<name>/verdict.json. The tuner
// and later experiments consult it, so that nobody tries the same again unknowingly.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/operands.h"
#include "device/device.h"
#include "lab/experiment/experiment.h"
#include "lab/record/outcome.h"

namespace flashcore {

inline constexpr const char* kExperimentSchema = "flashcore.experiment/1";  // of verdict.json

struct LedgerPair {
  std::string arm, candidate, control, problem_id;
  std::string source_hash, control_source_hash;  // empty: an older file, which has one for all
  SpeedVerdict verdict = SpeedVerdict::kNotJudged;
  HypothesisVerdict outcome = HypothesisVerdict::kInconclusive;
  double speedup = 0, ci95_low = 0, ci95_high = 0;  // 0: not timed
  double predicted_low = 0, predicted_high = 0;     // of the speed-up; 0 and 0: an older file, which does not say
  bool is_predicted() const { return predicted_high > 0; }
};
struct LedgerEntry {
  HypothesisVerdict verdict = HypothesisVerdict::kInconclusive;
  std::string name, hypothesis, summary, device_key, source_hash, created_at;
  std::optional<DeviceLimits> limits;  // none: a file that does not say
  std::vector<LedgerPair> pairs;
};

// Sorted by name. An empty or missing folder is an empty ledger. Error kBadInput naming a file that is no verdict.
std::vector<LedgerEntry> load_ledger(const std::filesystem::path& folder);
// One verdict.json.
LedgerEntry parse_ledger_entry(std::string_view text, const std::string& origin);

// Whether all that it compared has the text that it has now, of kernels and launches. False where the file is too old
// to say, and for patched kernels once anything in the tree has changed: nobody knows then, and it may hold all the
// same.
bool is_of_present_source(const LedgerEntry& entry);

// Of one that was timed and predicted.
RangePlace place_of(const LedgerPair& pair);

// How good its predictions were, of the comparisons that were timed: whether the measured interval reaches the
// predicted range, and by how much the speed-up misses the range's middle.
struct PredictionRecord {
  std::size_t comparisons = 0, inside = 0, above = 0, below = 0;
  double median_error = 0;  // |speed-up / middle - 1|
};
PredictionRecord prediction_record(const std::vector<LedgerEntry>& ledger);

// What it has to say on a family: one line per experiment whose candidates are of it.
std::vector<std::string> ledger_notes(const std::vector<LedgerEntry>& ledger, const std::string& family,
                                      const std::string& device_key);

// Configs of `family`, unpatched, measured on this problem and device beside a control, both as they are now.
struct KnownConfig {
  std::string config;  // as in the candidate's text
  SpeedVerdict verdict = SpeedVerdict::kNotJudged;
  std::string experiment;
};
std::vector<KnownConfig> known_configs(const std::vector<LedgerEntry>& ledger, const std::string& family,
                                       const PlacedProblem& problem, const DeviceInfo& device);

}  // namespace flashcore
