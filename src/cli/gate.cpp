// flashcore gate: a regression against a baseline file or the leaderboard ends with 1.

#include <algorithm>

#include "cli/ab_self_test.h"
#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/stored.h"
#include "cli/timing_flags.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/files.h"
#include "kernels/source_hash.h"
#include "lab/compare/calibration.h"
#include "lab/compare/regression.h"

namespace flashcore::cli {

namespace {

struct GateArguments {
  Common common;
  std::string baseline, write_baseline, junit;
  TimingFlags timing{.margin = "2%"};
};

GateOptions gate_options(const GateArguments& options) {
  GateOptions out;
  out.device = describe_device(options.common.device).id;
  if (const std::string pinned = candidate_text(options.common); !pinned.empty()) out.candidate = pinned;
  out.processes = options.timing.processes;
  out.spec() = spec_of(options.timing);
  const auto file = calibration_file(options.common.store);
  out.refusal = [file](const std::string& device_key, Regime regime, Condition condition) {
    const auto calibration = find_calibration(file, device_key, regime, condition);
    return calibration ? calibration->why_not_trusted() : std::string();
  };
  return out;
}

bool wanted(const Common& common, const std::optional<Suite>& suite, const NamedProblem& problem) {
  if (!common.problem.empty() && common.problem != problem.name && common.problem != problem.problem.id()) return false;
  if (!suite) return true;
  return std::any_of(suite->problems.begin(), suite->problems.end(),
                     [&](const NamedProblem& p) { return p.problem == problem.problem; });
}

// The entries of the baseline that were asked for.
std::vector<BaselineEntry> select_entries(const GateArguments& options) {
  const Common& common = options.common;
  std::vector<BaselineEntry> entries = options.baseline.empty()
                                           ? baseline_of(leaderboard(stored_trials(common.store, {}), is_current))
                                           : load_baseline(options.baseline);
  std::optional<Suite> suite;
  if (!common.suite.empty()) suite = load_suite(common.suite);
  std::erase_if(entries, [&](const BaselineEntry& e) { return !wanted(common, suite, e.problem); });
  return entries;
}

// Of entries of a baseline, or of rows that were judged.
template <class Measured>
std::vector<MachineReading> readings_of(const std::vector<Measured>& all) {
  std::vector<MachineReading> readings;
  for (const Measured& one : all) readings.insert(readings.end(), one.machine.begin(), one.machine.end());
  return readings;
}

// A line of each problem as it comes; what could not be recorded is told even to those who asked for quiet.
void tell_recorded(Console& console, const RecordedProblem& row) {
  const std::string& name = row.problem.name;
  if (row.entry) return console.line("{}: {:.2f} us, {}", name, row.entry->p50_us, row.entry->candidate);
  if (row.ended == Recording::kUnsupported) return console.line("skipped {}: {}", name, row.why);
  print_error(fmt::format("no baseline of {}: {}{}", name, row.why,
                          row.ended == Recording::kFailed ? "; correct it first (flashcore check)" : ""));
}

int record(const GateArguments& options) {
  const Common& common = options.common;
  if (!common.json.empty() || !options.junit.empty() || !options.baseline.empty())
    throw_bad_input("--write-baseline judges nothing: leave out --baseline, --json and --junit");
  require_distinct({{"--write-baseline", options.write_baseline}},
                   {{"--store", common.store}, {"--suite", common.suite}});
  check_output_file("--write-baseline", options.write_baseline);
  const Suite suite = select_problems(common, "quick");
  require_something_to_time(suite);
  const GateOptions gate_with = gate_options(options);
  Console console(common.quiet, false);
  const auto rows = record_baseline(
      suite.problems, gate_with, [&](const RecordedProblem& row) { tell_recorded(console, row); }, interrupted);
  const bool none_fits = rows.size() == suite.problems.size() &&
                         std::all_of(rows.begin(), rows.end(),
                                     [](const RecordedProblem& r) { return r.ended == Recording::kUnsupported; });
  if (none_fits) throw_bad_input("no baseline of {}: {}", rows.front().problem.name, rows.front().why);
  const std::vector<BaselineEntry> entries = entries_of(rows);
  // With nothing to record, the baseline that was there is the better one.
  if (!entries.empty()) write_file_atomically(options.write_baseline, baseline_json(entries).dump(2) + "\n");
  const std::vector<MachineReading> readings = readings_of(entries);
  if (const std::string load = load_words(readings); !load.empty()) console.line("{}", load);
  if (const std::string busy = busy_words(readings); !busy.empty())
    console.summary("warning: {}: times are longer than the code's, and would hide a regression; record them again",
                    busy);
  const auto skipped = std::count_if(rows.begin(), rows.end(),
                                     [](const RecordedProblem& r) { return r.ended == Recording::kUnsupported; });
  console.summary("{} of {} recorded{}{}{}", entries.size(),
                  plural(static_cast<std::int64_t>(suite.problems.size()), "problem"),
                  entries.empty() ? ", and nothing was written" : " in " + options.write_baseline,
                  skipped > 0 ? fmt::format(", {} skipped", skipped) : "", stopped_by());
  const int code = baseline_exit_code(rows);
  // A signal that comes with the last problem leaves all of them recorded.
  return rows.size() < suite.problems.size() ? unless_interrupted(code) : code;
}

int judge(const GateArguments& options) {
  const Common& common = options.common;
  check_json_target(common);
  require_distinct({{"--json", common.json}, {"--junit", options.junit}},
                   {{"--baseline", options.baseline}, {"--store", common.store}, {"--suite", common.suite}});
  check_output_file("--junit", options.junit);
  Console console(common.quiet, json_on_stdout(common));
  const std::vector<BaselineEntry> entries = select_entries(options);
  const GateOptions gate_with = gate_options(options);
  if (const std::string busy = busy_words(readings_of(entries)); !busy.empty())
    console.summary("warning: when the baseline was recorded {}; record it again", busy);
  const std::vector<GateRow> rows = gate(
      entries, gate_with,
      [&](const GateRow& row) {
        const Tone tone = row.passed() ? Tone::kGood : row.failed() ? Tone::kBad : Tone::kWarn;
        const Painted verdict = console.paint(to_string(row.verdict), tone);
        // A crash report has lines of its own.
        const std::size_t line = std::min(row.sentence.find('\n'), row.sentence.size());
        const std::string first = row.sentence.substr(0, line);
        if (row.passed()) {
          console.line("{}  {}: {}", verdict, row.baseline.problem.name, first);
        } else {
          console.summary("{}  {}: {}", verdict, row.baseline.problem.name, first);
          if (line < row.sentence.size()) console.block(std::string_view(row.sentence).substr(line + 1));
        }
      },
      interrupted);
  if (!options.junit.empty()) write_file_atomically(options.junit, gate_junit(rows));
  write_json(common, gate_json(rows, gate_with));
  const std::vector<MachineReading> readings = readings_of(rows);
  if (const std::string load = load_words(readings); !load.empty()) console.line("{}", load);
  if (const std::string busy = busy_words(readings); !busy.empty())
    console.summary("warning: {}; intervals are wider for it, and a time beside a recorded one is longer", busy);
  const auto count = [&](auto&& which) { return std::count_if(rows.begin(), rows.end(), which); };
  const auto passed = count([](const GateRow&r) { return r.passed(); }),
             failed = count([](const GateRow&r) { return r.failed(); });
  // Equal machine code needs no clock; a gate that looked at none says so.
  const auto untimed = count([](const GateRow& r) { return r.passed() && r.same_code; });
  console.summary("{} passed, {} failed, {} not judged, margin {:.1f}%{}{}", passed, failed,
                  static_cast<std::ptrdiff_t>(entries.size()) - passed - failed, 100 * gate_with.margin,
                  untimed > 0 ? fmt::format("; {} of the passed not timed: the baseline's machine code", untimed) : "",
                  stopped_by());
  if (entries.empty()) console.summary("the baseline has no entry for what was asked: nothing was judged");
  // A signal that comes with the last row leaves everything judged.
  return rows.size() < entries.size() ? unless_interrupted(gate_exit_code(rows)) : gate_exit_code(rows);
}

int run_gate(const GateArguments& options) { return options.write_baseline.empty() ? judge(options) : record(options); }

}  // namespace

Run add_gate(CLI::App& app) {
  auto options = std::make_shared<GateArguments>();
  add_common(app, options->common, kDevice | kSuite | kProblem | kFamily | kConfig | kStore | kJson);
  tell_default_suite(app, "what the baseline holds; quick with --write-baseline");
  app.add_option("--baseline", options->baseline,
                 "what to judge against: a file of --write-baseline or of `bench --json` (default: the leaderboard)")
      ->type_name("FILE");
  app.add_option("--write-baseline", options->write_baseline, "time what is built now and record it instead of judging")
      ->type_name("FILE");
  app.add_option("--junit", options->junit, "also write the verdicts as JUnit XML")->type_name("FILE");
  add_timing_flags(app, options->timing, "what counts as a regression", "of --write-baseline: ");
  add_examples(app, {"gate --device cpu --write-baseline baseline.json --problem b1_h1_s64_d64_fp32",
                     "gate --device cpu --baseline baseline.json --junit gate.xml --json gate.json"});
  return [options] {
    watch_interrupts();
    return run_gate(*options);
  };
}

}  // namespace flashcore::cli
