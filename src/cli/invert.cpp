// flashcore invert: a candidate beside variants of itself; what its time depends on, and what would help most.

#include "lab/invert/invert.h"

#include <map>

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/timing_flags.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "lab/process/worker.h"
#include "lab/record/digest.h"
#include "lab/verify/judged_file.h"

namespace flashcore::cli {
namespace {

struct InvertArguments {
  Common common;
  std::vector<std::string> variants;
  TimingFlags timing{.margin = "3%", .seconds = 20};
};

InvertOptions invert_options(const InvertArguments& arguments, const Suite& suite, const NamedProblem& problem,
                             const DeviceInfo& device) {
  InvertOptions options;
  options.device = device.id;
  options.suite = suite.name;
  options.problem = problem;
  const std::string pinned = candidate_text(arguments.common);
  const DeviceInfo whole = whole_device(device);
  options.candidate = pinned.empty() ? dispatch(problem.problem, whole).candidate.print()
                                     : parse_candidate(pinned, problem.problem, whole.limits).print();
  options.variants = arguments.variants;
  options.processes = arguments.timing.processes;
  options.spec() = spec_of(arguments.timing);
  return options;
}

Tone tone_of_effect(const Sensitivity& s) {
  const bool telling =
      s.kind == VariantKind::kLeaveOneOut ? s.verdict == SpeedVerdict::kFaster : s.verdict == SpeedVerdict::kSlower;
  return telling ? Tone::kGood : s.verdict == SpeedVerdict::kInconclusive ? Tone::kWarn : Tone::kPlain;
}

void print_inversion(Console& console, const InvertOptions& options, const InvertResult& result) {
  console.line("{}: {}", options.problem.name, options.candidate);
  if (!result.why_not.empty()) {
    console.summary("{}", result.why_not);
    return;
  }
  const bool counts = result.device.limits.emulated;
  Table table({"variant", "kind", counts ? "counter" : "of the time", counts ? "plain -> variant" : "95% interval",
               "its result"});
  for (const Sensitivity& s : result.ranked)
    table.add({s.variant,
               s.kind == VariantKind::kPathology ? "pathology" : "leave one out",
               s.count ? s.count->counter : fmt::format("{:.2f}", s.time_ratio),
               s.count ? fmt::format("{:g} -> {:g}", s.count->plain, s.count->variant)
                       : fmt::format("{:.2f} to {:.2f}", s.low, s.high),
               {s.wrong_on_purpose ? "wrong on purpose" : "the same", tone_of_effect(s)}});
  console.table(table);
  for (const Sensitivity& s : result.ranked) console.line("  {}", s.sentence);
  // One reason may hold for many.
  std::map<std::string, std::string> names_by_reason;
  for (const Sensitivity& s : result.all) {
    if (s.judged()) continue;
    std::string& names = names_by_reason[s.why_not.substr(0, s.why_not.find('\n'))];
    names += (names.empty() ? "" : ", ") + s.variant;
  }
  for (const auto& [reason, names] : names_by_reason) console.line("  not judged: {}: {}", names, reason);
  console.summary("{}: {}", options.problem.name, result.answer);
  if (const std::string load = load_words(result.readings); !load.empty()) console.line("  {}", load);
  if (const std::string busy = busy_words(result.readings); !busy.empty())
    console.summary("  warning: {}; the plain kernel and its variants alike, and the intervals are wider for it", busy);
}

int run_invert(const CLI::App& app, const InvertArguments& arguments) {
  const Common& common = arguments.common;
  check_json_target(common);
  for (const std::string& name : arguments.variants) variant_by_name(name);
  // A problem takes some 20 s a candidate, and a suite hours: nobody means that by leaving both out.
  if (common.problem.empty() && common.suite.empty())
    throw_bad_input(
        "invert looks at one problem: name it with --problem, as --problem b1_h8_s512_d64_fp16 (or several with "
        "--suite)");
  const Suite suite = select_problems(common, "canonical");
  const DeviceInfo device = describe_device(common.device);
  if (device.limits.emulated)
    refuse_flags(app, {"--margin", "--processes", "--seconds", "--regime", "--condition"},
                 "an emulated GPU has no time, and its counts are of one launch");
  std::vector<InvertOptions> all;
  for (const NamedProblem& problem : suite.problems) all.push_back(invert_options(arguments, suite, problem, device));

  Console console(common.quiet, json_on_stdout(common));
  nlohmann::json results = nlohmann::json::array();
  bool stopped = false;
  int worst = kDone;
  for (const InvertOptions& options : all) {
    try {
      const InvertResult result = invert(
          options, [&](int done, int total, const std::string& what) { console.progress(done, total, what); },
          interrupted);
      console.end_progress();
      print_inversion(console, options, result);
      results.push_back(invert_json(options, result));
      results.back()[kCandidateHash] =
          candidate_hash_of(options.candidate, options.problem.problem, result.device.limits);
      if (!result.why_not.empty()) worst = kFailed;
      else if (result.ranked.empty() && worst == kDone) worst = kNotJudged;
      stopped = result.stopped;
      if (stopped) break;
    } catch (const Cancelled&) {
      stopped = true;
      break;
    }
  }
  console.end_progress();
  if (stopped) console.summary("stopped before the end{}", stopped_by());
  write_json(common, {{"schema", kInvertSchema}, {kDigest, ""}, {"results", results}, {"interrupted", stopped}});
  return stopped && worst == kDone ? static_cast<int>(kNotJudged) : worst;
}

}  // namespace

Run add_invert(CLI::App& app) {
  auto arguments = std::make_shared<InvertArguments>();
  add_common(app, arguments->common, kDevice | kSuite | kProblem | kFamily | kConfig | kJson);
  tell_default_suite(app, "none: name one, or --problem");
  std::string names;
  for (const Variant& variant : variants()) names += (names.empty() ? "" : ", ") + std::string(variant.name);
  app.add_option("--variants", arguments->variants, "some of: " + names)->type_name("A,B")->delimiter(',');
  add_timing_flags(app, arguments->timing, "what counts as a difference");
  add_examples(app, {"invert --device cpu --problem b1_h2_s128_d64_fp32 --seconds 2 --processes 1 --json invert.json",
                     "invert --device emulator --problem b1_h1_s64_d64_fp16 --family sm80_fwd "
                     "--variants no_exponentials,no_stores"});
  return [arguments, &app] {
    watch_interrupts();
    return run_invert(app, *arguments);
  };
}

}  // namespace flashcore::cli
