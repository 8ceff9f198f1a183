// JSON files, and the lines that workers and proposers write. What a parser takes is printed and must be taken again.
#include <cmath>

#include "core/config_space.h"
#include "core/error.h"
#include "core/foreign_text.h"
#include "core/json_text.h"
#include "kernels/tuned_table.h"
#include "lab/compare/bench.h"
#include "lab/compare/calibration.h"
#include "lab/compare/regression.h"
#include "lab/experiment/ledger.h"
#include "lab/harness/patch.h"
#include "lab/process/worker_line.h"
#include "lab/record/json_io.h"
#include "lab/tune/landscape.h"
#include "lab/tune/proposal.h"
#include "target.h"

namespace flashcore::fuzz {
namespace {

using nlohmann::json;

const Target kJson("json", [](std::string_view input) {
  const json document = parse_json(input, "a.json");
  FLASHCORE_REQUIRE(parse_json(document.dump(), "again") == document);
});

const Target kResults("results", [](std::string_view input) { verify_results_text(input, "results.json"); });

const Target kBaseline("baseline", [](std::string_view input) {
  const auto entries = parse_baseline(input, "baseline.json");
  FLASHCORE_REQUIRE(!entries.empty());
  for (const BaselineEntry& entry : entries) FLASHCORE_REQUIRE(entry.p50_us > 0 && std::isfinite(entry.p50_us));
  FLASHCORE_REQUIRE(parse_baseline(baseline_json(entries).dump(), "again").size() == entries.size());
});

const Target kLandscape("landscape", [](std::string_view input) {
  const auto landscapes = parse_landscapes(parse_json(input, "landscape.json"), "landscape.json");
  for (const Landscape& l : landscapes) FLASHCORE_REQUIRE(l.best_us() > 0 && std::isfinite(l.best_us()));
  FLASHCORE_REQUIRE(parse_landscapes(landscapes_json(landscapes), "again").size() == landscapes.size());
});

const Target kVerdict("verdict", [](std::string_view input) { parse_ledger_entry(input, "verdict.json"); });

const Target kTrial("trial", [](std::string_view input) {
  const Trial trial = parse_trial(input);
  const Trial again = parse_trial(dump_line(trial));
  FLASHCORE_REQUIRE(again.problem == trial.problem && again.ended == trial.ended);
});

// As dispatch reads it: what is wrong with an entry is told, and must be fit to be told.
const Target kTuned("tuned", [](std::string_view input) {
  const json table = parse_tuned_table(input, "tuned.json");
  for (const auto& [device, problems] : table.items()) {
    std::vector<TunedEntry> entries;
    std::vector<std::string> faults;
    add_tuned_entries(table, device, true, entries, faults);
    FLASHCORE_REQUIRE(!problems.is_object() || entries.size() + faults.size() == problems.size());
    for (const TunedEntry& entry : entries) entry.problem.validate();
    for (const std::string& fault : faults)  // the device's key is that of this machine
      FLASHCORE_REQUIRE(!problems.is_object() || find_bad_character(fault) == std::string::npos);
  }
});

// A patch is one of patch_folders(), which load and are thrown away: nothing is compiled.
const Target kProposer("proposer", [](std::string_view input) {
  std::string line(input);
  try {
    json answer = parse_json(input, "the answer");
    if (answer.is_object() && answer.contains("patch") && answer["patch"].is_string()) {
      const auto folder = patch_folders() / std::filesystem::path(answer["patch"].get<std::string>()).filename();
      answer["patch"] = folder.string();
      line = dump_line(answer);
    }
  } catch (const Error&) {  // for the parser to say
  }
  const auto proposal = parse_proposal(line);
  if (proposal && proposal->patch) FLASHCORE_REQUIRE(make_patched_family(*proposal->patch)->is_foreign());
});

// What a worker process tells its parent: nothing but an error that it names is thrown.
const Target kWorker("worker", [](std::string_view input) {
  try {
    parse_worker_hello(input);
  } catch (const Error&) {  // as the worker has it; the command line makes it fit to be shown
  }
  const WorkerLine line = parse_worker_line(input, input.find("nonce") == std::string_view::npos ? "" : "7");
  if (line.kind == WorkerLine::Kind::kMessage && line.message.contains("trial")) line.message["trial"].get<Trial>();
});

// What decides whether verdicts of a machine are believed.
const Target kCalibration("calibration", [](std::string_view input) {
  for (const Calibration& c : parse_calibrations(input, "calibration.json")) {
    FLASHCORE_REQUIRE(c.repeats >= c.alarms && c.alarms >= 0);
    FLASHCORE_REQUIRE(c.trusted() == c.why_not_trusted().empty());
    FLASHCORE_REQUIRE(json(json(c).get<Calibration>()) == json(c));
  }
});

}  // namespace
}  // namespace flashcore::fuzz
