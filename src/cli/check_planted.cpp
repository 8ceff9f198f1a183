// flashcore check --planted: is every planted fault caught by the gate named for it.

#include <algorithm>

#include "cli/built_commit.h"
#include "cli/check.h"
#include "core/environment_error.h"
#include "core/error.h"
#include "kernels/source_hash.h"
#include "lab/record/digest.h"
#include "lab/record/machine.h"
#include "lab/record/trial.h"
#include "lab/verify/planted.h"

namespace flashcore::cli {

namespace {

PlantedOutcome run_one(const PlantedFault& fault, const std::string& where, const std::string& device) {
  try {
    return where == "nvrtc" ? run_planted_compilation(fault) : run_planted(fault, device, {}, interrupted);
  } catch (const Cancelled&) {
    throw;
  } catch (const std::exception& e) {
    return {false, is_environment_error(e) ? environment_message(e) : e.what(), is_environment_error(e)};
  }
}

std::string first_line_of(const std::string& text) { return shorten(text.substr(0, text.find('\n')), 110); }

}  // namespace

int check_planted(const CheckOptions& options) {
  Console console(options.common.quiet, json_on_stdout(options.common));
  const DeviceInfo device = describe_device(options.common.device);
  const std::string where = device.limits.emulated                    ? "emulator"
                            : device.limits.kind == DeviceKind::kCuda ? "cuda"
                                                                      : "nvrtc";
  Table table({"fault", "where", "gate", "verdict", "what it said"});
  nlohmann::json results = nlohmann::json::array();
  std::vector<std::string> not_here;  // what shows elsewhere
  int caught = 0, missed = 0, skipped = 0, lacking = 0;
  const auto& faults = gpu_planted_faults();
  if (!options.common.problem.empty() &&
      std::none_of(faults.begin(), faults.end(), [&](const auto& f) { return f.name == options.common.problem; }))
    throw_bad_input("'{}' is no planted fault; `flashcore check --planted` without --problem lists all {}",
                    options.common.problem, faults.size());
  for (const PlantedFault& fault : faults) {
    if (interrupted()) break;
    if (!options.common.problem.empty() && fault.name != options.common.problem) continue;
    // Faults of compilation show on any device.
    const std::string here = fault.runs_on(where) ? where : fault.runs_on("nvrtc") ? "nvrtc" : "";
    if (here.empty()) {
      ++skipped;
      not_here.push_back(fault.name);
      console.line("skipped {}: it shows on {} only", fault.name, fmt::join(fault.on, ", "));
      continue;
    }
    PlantedOutcome outcome;
    try {
      outcome = run_one(fault, here, device.id);
    } catch (const Cancelled&) {
      break;
    }
    ++(outcome.caught ? caught : outcome.lacking ? lacking : missed);
    console.progress(caught + missed + lacking, static_cast<std::int64_t>(faults.size()), fault.name);
    table.add({fault.name, here, word_of(fault.gate) + (fault.check ? "/" + word_of(*fault.check) : ""),
               outcome.caught    ? Cell("caught", Tone::kGood)
               : outcome.lacking ? Cell("not tried", Tone::kBad)
                                 : Cell("MISSED", Tone::kBad),
               outcome.caught ? first_line_of(outcome.what) : "see below"});
    if (!outcome.caught)
      table.add_detail(fmt::format("{}: {} on {}", fault.name, outcome.lacking ? "not tried" : "missed", here),
                       outcome.what, Tone::kBad,
                       fmt::format("{}flashcore check --planted --device {} --problem {}",
                                   repro_prefix(repro_variables(), device.id), device.id, fault.name));
    results.push_back({{"name", fault.name},
                       {"does", fault.does},
                       {"on", here},
                       {"gate", fault.gate},
                       {"check", fault.check ? word_of(*fault.check) : ""},
                       {"caught", outcome.caught},
                       {"lacking", outcome.lacking},
                       {"what", outcome.what}});
  }
  console.end_progress();
  console.table(table);
  write_json(options.common, {{"schema", "flashcore.planted/1"},
                              {kDigest, ""},
                              {"device", device.key},
                              {"device_name", device.name},
                              {"driver", device.driver},
                              {"created_at", now_iso8601()},
                              {"commit", kBuiltCommit},
                              {"dirty", kBuiltDirty},
                              {"source_hash", source_hash()},
                              {"not_here", not_here},
                              {"caught", caught},
                              {"missed", missed},
                              {"skipped", skipped},
                              {"lacking", lacking},
                              {"results", results}});
  console.summary("{} caught by {} gate{}, {} missed, {} skipped{}{}", plural(caught, "planted fault"),
                  caught == 1 ? "its" : "their", caught == 1 ? "" : "s", missed, skipped, lacking_words(lacking),
                  stopped_by());
  console.summary(
      "faults of CPU kernels are not among them: tests/planted/cpu.yaml is run by the test program planted_tests "
      "(ctest -R planted)");
  if (missed > 0) return kFailed;
  if (lacking > 0) return kNoEnvironment;
  return unless_interrupted(caught > 0 ? kDone : kNotJudged);
}

}  // namespace flashcore::cli
