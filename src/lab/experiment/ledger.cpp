#include "lab/experiment/ledger.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "kernels/source_hash.h"
#include "lab/record/freshness.h"
#include "lab/record/json_io.h"
#include "lab/statistics/statistics.h"

namespace flashcore {
namespace {

using nlohmann::json;

std::string family_of(const std::string& candidate) { return candidate.substr(0, candidate.find_first_of(":+")); }

// By their texts alone, as the trials of a search are.
bool is_pair_current(const LedgerEntry& entry, const LedgerPair& pair, const PlacedProblem& problem,
                     const DeviceLimits& limits) {
  // The text of a patched kernel is beside its experiment, and the ledger has none.
  const bool patched = (pair.candidate + pair.control).find('+') != std::string::npos;
  if (patched || pair.source_hash.empty()) return entry.source_hash == source_hash();
  return pair.source_hash == source_hash_of(pair.candidate, problem, limits) &&
         pair.control_source_hash == source_hash_of(pair.control, problem, limits);
}

}  // namespace

LedgerEntry parse_ledger_entry(std::string_view text, const std::string& origin) {
  const json j = decode_nonfinite(parse_json(text, origin));
  try {
    if (j.at("schema") != kExperimentSchema) throw_bad_input("its schema is not {}", kExperimentSchema);
    LedgerEntry entry;
    j.at("name").get_to(entry.name);
    j.at("verdict").get_to(entry.verdict);
    j.at("hypothesis").get_to(entry.hypothesis);
    entry.summary = j.at("summary").at(1).get<std::string>();
    j.at("device").at("key").get_to(entry.device_key);
    if (j.at("device").contains("limits")) entry.limits = j.at("device").get<DeviceInfo>().limits;
    j.at("source_hash").get_to(entry.source_hash);
    j.at("created_at").get_to(entry.created_at);
    for (const json& p : j.at("pairs")) {
      LedgerPair pair;
      p.at("arm").get_to(pair.arm);
      p.at("candidate").get_to(pair.candidate);
      p.at("control").get_to(pair.control);
      p.at("problem").get_to(pair.problem_id);
      if (p.contains("source_hash") && p.at("source_hash").is_object()) {
        p.at("source_hash").at("candidate").get_to(pair.source_hash);
        p.at("source_hash").at("control").get_to(pair.control_source_hash);
      }
      p.at("verdict").get_to(pair.verdict);
      p.at("outcome").get_to(pair.outcome);
      if (p.contains("predicted")) {
        pair.predicted_low = p.at("predicted").at(0);
        pair.predicted_high = p.at("predicted").at(1);
      }
      if (!p.at("speedup").is_null()) {
        pair.speedup = p.at("speedup");
        pair.ci95_low = p.at("ci95").at(0);
        pair.ci95_high = p.at("ci95").at(1);
      }
      entry.pairs.push_back(std::move(pair));
    }
    return entry;
  } catch (const std::exception& e) {
    throw_bad_input("{} is no verdict of an experiment: {}; run the experiment again or remove the file", origin,
                    e.what());
  }
}

std::vector<LedgerEntry> load_ledger(const std::filesystem::path& folder) {
  std::vector<LedgerEntry> entries;
  std::error_code ignored;
  for (const auto& item : std::filesystem::directory_iterator(folder, ignored))
    if (std::filesystem::exists(item.path() / "verdict.json"))
      entries.push_back(
          parse_ledger_entry(read_file(item.path() / "verdict.json"), (item.path() / "verdict.json").string()));
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

bool is_of_present_source(const LedgerEntry& entry) {
  return entry.limits && std::all_of(entry.pairs.begin(), entry.pairs.end(), [&](const LedgerPair& pair) {
           try {
             return is_pair_current(entry, pair, PlacedProblem::parse(pair.problem_id), *entry.limits);
           } catch (const Error&) {  // a problem or a candidate that there is no more
             return false;
           }
         });
}

RangePlace place_of(const LedgerPair& pair) {
  return place_in_range({pair.predicted_low, pair.predicted_high}, pair.ci95_low, pair.ci95_high);
}

PredictionRecord prediction_record(const std::vector<LedgerEntry>& ledger) {
  PredictionRecord record;
  std::vector<double> errors;
  for (const LedgerEntry& entry : ledger)
    for (const LedgerPair& pair : entry.pairs) {
      if (pair.speedup <= 0 || !pair.is_predicted()) continue;
      record.above += place_of(pair) == RangePlace::kAbove;
      record.below += place_of(pair) == RangePlace::kBelow;
      errors.push_back(std::abs(pair.speedup / std::sqrt(pair.predicted_low * pair.predicted_high) - 1));
    }
  record.comparisons = errors.size();
  record.inside = record.comparisons - record.above - record.below;
  if (!errors.empty()) record.median_error = median(errors);
  return record;
}

std::vector<std::string> ledger_notes(const std::vector<LedgerEntry>& ledger, const std::string& family,
                                      const std::string& device_key) {
  std::vector<std::string> notes;
  for (const LedgerEntry& entry : ledger) {
    const bool ours = std::any_of(entry.pairs.begin(), entry.pairs.end(),
                                  [&](const LedgerPair& p) { return family_of(p.candidate) == family; });
    if (!ours) continue;
    notes.push_back(fmt::format("{} {}{}: {}", entry.verdict, entry.name,
                                entry.device_key == device_key ? "" : " (on " + entry.device_key + ")", entry.summary));
  }
  return notes;
}

std::vector<KnownConfig> known_configs(const std::vector<LedgerEntry>& ledger, const std::string& family,
                                       const PlacedProblem& problem, const DeviceInfo& device) {
  std::vector<KnownConfig> known;
  for (const LedgerEntry& entry : ledger) {
    if (entry.device_key != device.key) continue;
    for (const LedgerPair& pair : entry.pairs)
      if (pair.problem_id == problem.id() && pair.candidate.starts_with(family + ":") &&
          is_pair_current(entry, pair, problem, device.limits))
        known.push_back({pair.candidate.substr(family.size() + 1), pair.verdict, entry.name});
  }
  return known;
}

}  // namespace flashcore
