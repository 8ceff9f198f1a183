#include "cli/ab_self_test.h"

#include "core/error.h"
#include "core/parallel.h"
#include "lab/compare/aa.h"
#include "lab/compare/calibration.h"
#include "lab/process/worker.h"
#include "lab/record/digest.h"
#include "lab/record/machine.h"
#include "lab/record/trial.h"

namespace flashcore::cli {

namespace {

// Fast enough for hundreds of launches a sample, so that half a percent of them is a whole number.
constexpr const char* kCudaProblem = "b1_h8_s512_d64_fp16";
constexpr const char* kCpuProblem = "b1_h1_s16_d64_fp32";

AaOptions options_of(const SelfTest& test, const DeviceInfo& device) {
  AaOptions options;
  const bool cuda = device.limits.kind == DeviceKind::kCuda;
  Common common = test.common;
  if (common.problem.empty() && common.suite.empty()) common.problem = cuda ? kCudaProblem : kCpuProblem;
  options.problem = select_problems(common, "quick").problems.front();
  options.device = device.id;
  options.candidate = test.candidate.empty()
                          ? dispatch(options.problem.problem, device).candidate.print()
                          : parse_candidate(test.candidate, options.problem.problem, device.limits).print();
  options.spec() = test.spec;
  options.repeats = test.repeats;
  // A CPU shared with others needs hundreds of blocks where a GPU needs eight.
  options.max_seconds = cuda ? 1 : 9;
  return options;
}

AaResult repeat(Console& console, const AaOptions& options, const std::string& what) {
  const AaResult result = repeat_aa(
      options, [&](int done, int total) { console.progress(done, total, what); }, interrupted);
  console.end_progress();
  return result;
}

struct Part {
  std::string name;
  AaOptions options;
  AaResult result;
  MachineReading machine;
  AaJudgement judgement;
};

bool finished(const Part& part) { return part.result.repeats == part.options.repeats; }

nlohmann::json part_json(const Part& part) {
  nlohmann::json json = aa_json(part.options, part.result);
  json["name"] = part.name;
  json["passed"] = part.judgement.passed;
  json["sentence"] = part.judgement.sentence;
  json["machine"] = part.machine;
  return json;
}

Part run_part(Console& console, const std::string& name, AaOptions options, int permille, int repeats, int least) {
  options.planted_permille = permille;
  options.repeats = repeats;
  const LoadMeter meter;
  Part part{name, options, repeat(console, options, name), {}, {}};
  meter.read(part.machine);
  part.machine.cores = hardware_threads();
  part.machine.variables = repro_variables();
  part.judgement = judge_aa(part.options, part.result, least);
  const auto& [judged, passed, sentence] = part.judgement;
  const Painted verdict = !judged  ? console.paint("NOT JUDGED", Tone::kWarn)
                          : passed ? console.paint("passed", Tone::kGood)
                                   : console.paint("FAILED", Tone::kBad);
  console.summary("{}  {} on {}: {} ({:.0f} s)", verdict, name, options.problem.name, sentence, part.result.seconds);
  console.line("  {}", load_words({part.machine}));
  if (const std::string busy = busy_words({part.machine}); !busy.empty()) console.line("  {}", busy);
  return part;
}

DeviceInfo timed_device(const Common& common) {
  DeviceInfo device = describe_device(common.device);
  if (device.limits.emulated)
    throw_bad_input("--device {}: an emulated GPU has no time; use cuda or cpu", common.device);
  return device;
}

}  // namespace

int run_calibration(const SelfTest& test) {
  check_json_target(test.common);
  if (const auto folder = calibration_file(test.common.store).parent_path(); !folder.empty())
    check_output_folder("--store", folder.string());
  Console console(test.common.quiet, json_on_stdout(test.common));
  const DeviceInfo device = timed_device(test.common);
  const Part part = run_part(console, kAaParts[0].name, options_of(test, device), 0, test.repeats, kLeastRaces);
  write_json(test.common, {{"schema", "flashcore.calibration-run/1"}, {"results", {part_json(part)}}});
  if (!finished(part)) return kNotJudged;
  Calibration calibration;
  calibration.device_key = device.key;
  calibration.problem = part.options.problem.problem.id();
  calibration.candidate = part.options.candidate;
  calibration.created_at = now_iso8601();
  calibration.regime = test.spec.regime;
  calibration.condition = test.spec.condition;
  calibration.repeats = part.result.repeats;
  calibration.alarms = part.result.alarms;
  calibration.alpha = part.options.alpha;
  calibration.machine = part.machine;
  const auto file = calibration_file(test.common.store);
  if (const std::string why = save_calibration(file, calibration); !why.empty()) {
    console.summary("not kept: {}", why);
    return kNotJudged;
  }
  console.line(
      "kept in {}; `ab` and `gate` {}", file.string(),
      calibration.trusted() ? "rest their verdicts on it" : "will refuse to judge times here until it is better");
  return calibration.trusted() ? kDone : kFailed;
}

int run_self_test(const SelfTest& test) {
  check_json_target(test.common);
  Console console(test.common.quiet, json_on_stdout(test.common));
  const DeviceInfo device = timed_device(test.common);
  const AaOptions options = options_of(test, device);
  const int planted_repeats = std::max(1, test.repeats / 2);
  nlohmann::json results = nlohmann::json::array();
  bool all_passed = true, all_judged = true;
  for (const auto& [name, permille, least] : kAaParts) {
    if (interrupted()) break;
    const Part part = run_part(console, name, options, permille, permille == 0 ? test.repeats : planted_repeats, least);
    all_passed = all_passed && part.judgement.passed;
    all_judged = all_judged && part.judgement.judged;
    results.push_back(part_json(part));
  }
  nlohmann::json document = {{"schema", kAaSelfTestSchema},
                             {"device", {{"key", device.key}, {"name", device.name}, {"driver", device.driver}}},
                             {"created_at", now_iso8601()},
                             {"passed", all_passed && results.size() == std::size(kAaParts)},
                             {"results", results}};
  seal(document);
  write_json(test.common, document);
  if (!all_judged || results.size() < std::size(kAaParts)) return kNotJudged;
  return all_passed ? kDone : kFailed;
}

}  // namespace flashcore::cli
