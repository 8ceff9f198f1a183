// JSON files, and the lines that workers and proposers write. What a parser takes is printed and must be taken again.
#include <cmath>

#include "core/config_space.h"
#include "core/json_text.h"
#include "lab/compare/bench.h"
#include "lab/compare/regression.h"
#include "lab/experiment/ledger.h"
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

// {"<device key>": {"<problem id>": "<candidate>"}}
const Target kTuned("tuned", [](std::string_view input) {
  const json table = parse_json(input, "tuned.json");
  if (!table.is_object()) return;
  for (const auto& [device, problems] : table.items())
    if (problems.is_object())
      for (const auto& [id, candidate] : problems.items()) Problem::parse(id);
});

const Target kProposer("proposer", [](std::string_view input) {
  if (input.find("patch") != std::string_view::npos) return;  // a folder, read from the disk of whoever fuzzes
  if (const auto proposal = parse_proposal(input)) FLASHCORE_REQUIRE(!proposal->patch);
});

// What a worker process tells its parent.
const Target kWorker("worker", [](std::string_view input) {
  const json line = parse_json(input, "the worker's line");
  if (!line.is_object()) return;
  if (const auto trial = line.find("trial"); trial != line.end()) trial->get<Trial>();
  try {
    if (const auto device = line.find("device"); device != line.end()) device->get<DeviceInfo>();
  } catch (const json::exception&) {  // what a worker's greeting may throw; the parent answers it
  }
});

}  // namespace
}  // namespace flashcore::fuzz
