// flashcore check --conformance: the ptx/ micro-tests on a device, against what hardware gave.

#include "cli/check.h"
#include "core/error.h"
#include "lab/conformance.h"

namespace flashcore::cli {

int check_conformance(const CheckOptions& options, const DeviceInfo& info) {
  if (info.limits.kind != DeviceKind::kCuda)
    throw_bad_input("--conformance tests GPU instructions: use --device emulator or cuda");
  // A flag that would be ignored misleads.
  if (!options.common.suite.empty() || !options.common.problem.empty() || !options.common.family.empty() ||
      options.fuzz > 0 || options.random_configs > 0 || !options.patterns.empty())
    throw_bad_input(
        "--conformance has its own tests: leave out --suite, --problem, --family, --fuzz, --configs and --patterns");
  Console console(options.common.quiet, json_on_stdout(options.common));
  const std::unique_ptr<Device> device = open_device(info.id);
  const ConformanceOutputs outputs = run_conformance(*device);
  const std::vector<ConformanceResult> results = compare_conformance(outputs, recorded_conformance());
  Table table({"test", "verdict", "worst ulps"});
  int same = 0, different = 0, unrecorded = 0;
  for (const ConformanceResult& result : results) {
    const char* good = result.compared ? "same as recorded" : "no recording";
    table.add({result.test,
               {result.difference.empty() ? good : result.difference,
                result.difference.empty() ? (result.compared ? Tone::kGood : Tone::kWarn) : Tone::kBad},
               result.compared ? fmt::format("{:.1f}", result.worst_ulps) : "-"});
    if (!result.compared) ++unrecorded;
    else if (result.difference.empty()) ++same;
    else ++different;
  }
  console.table(table);
  write_json(options.common, conformance_json(info, outputs));
  console.summary(
      "{} passed, {} failed, {} skipped{}", same, different, unrecorded,
      unrecorded > 0
          ? "; record on an H200: flashcore check --conformance --device cuda --json results/h200/conformance.json"
          : "");
  if (different > 0) return kFailed;
  return same > 0 && unrecorded == 0 ? kDone : kNotJudged;
}

}  // namespace flashcore::cli
