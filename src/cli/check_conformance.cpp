// flashcore check --conformance: the ptx/ micro-tests on a device, against what hardware gave.

#include "cli/arguments.h"
#include "cli/check.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "lab/verify/conformance.h"

namespace flashcore::cli {
namespace {

using nlohmann::json;

ConformanceRecording recording_of(const CheckOptions& options) {
  if (options.recording.empty()) return recorded_conformance();
  return parse_conformance(parse_json(read_file(options.recording), "--recording " + options.recording));
}

}  // namespace

int check_conformance(const CheckOptions& options) {
  if (const std::string& device = options.common.device; device.empty() || device == "cpu")
    throw_bad_input("--conformance tests GPU instructions: add --device emulator or --device cuda");
  require_distinct({{"--json", options.common.json}, {"--record", options.record}},
                   {{"--recording", options.recording}, {"--store", options.common.store}});
  const ConformanceRecording recording = recording_of(options);
  Console console(options.common.quiet, json_on_stdout(options.common));
  const ConformanceRun run = run_conformance(options.common.device, interrupted);
  const std::vector<ConformanceResult> results = compare_conformance(run, recording);
  Table table({"micro-test", "verdict", "worst ulps"});
  json rows = json::array();
  int counts[3] = {};
  for (const ConformanceResult& result : results) {
    static constexpr const char* kWords[] = {"same", "different", "not recorded"};
    static constexpr Tone kTones[] = {Tone::kGood, Tone::kBad, Tone::kWarn};
    const auto kind = static_cast<std::size_t>(result.conformity);
    ++counts[kind];
    table.add({result.test, {kWords[kind], kTones[kind]}, fmt::format("{:.1f}", result.worst_ulps)});
    if (!result.note.empty())
      table.add_detail(fmt::format("{}: {}", result.test, kWords[kind]), result.note, kTones[kind]);
    rows.push_back(
        {{"test", result.test}, {"verdict", kWords[kind]}, {"note", result.note}, {"worst_ulps", result.worst_ulps}});
  }
  console.table(table);
  write_json(options.common, {{"schema", "flashcore.check_conformance/1"}, {"results", rows}});
  const bool complete = run.failures.empty() && !interrupted();
  if (!options.record.empty() && !interrupted())
    write_file_atomically(options.record, conformance_json(run).dump(1) + "\n");
  // Outputs that are to be recorded need not be recorded already.
  const bool recorded = !options.record.empty() && complete && counts[1] == 0;
  console.summary("{} passed, {} failed, {} skipped{}{}", counts[0], counts[1], counts[2],
                  recorded        ? fmt::format("; recorded {} tests in {}", run.outputs.size(), options.record)
                  : counts[2] > 0 ? "; record them on an H200: flashcore check --conformance --device cuda --record "
                                    "results/h200/conformance.json"
                                  : "",
                  stopped_by());
  if (counts[1] > 0) return kFailed;
  if (recorded) return kDone;
  return counts[0] > 0 && counts[2] == 0 && complete ? kDone : kNotJudged;
}

}  // namespace flashcore::cli
