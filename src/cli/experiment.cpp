// flashcore experiment: run experiments/*.yaml, check their candidates without timing, list what was found.

#include <set>

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "kernels/registry.h"
#include "lab/experiment/run.h"

namespace flashcore::cli {

namespace {

namespace fs = std::filesystem;

struct ExperimentArguments {
  Common common;
  std::string action;
  std::vector<std::string> files;
  std::string out = "results/experiments";
  std::string ledger = "results/experiments";
  std::string limit;
  int processes = 0;
  bool trust_code = false;
};

Tone tone_of(HypothesisVerdict verdict) {
  return verdict == HypothesisVerdict::kConfirmed ? Tone::kGood
         : verdict == HypothesisVerdict::kRefuted ? Tone::kBad
                                                  : Tone::kWarn;
}

int count_lacking(const ExperimentResult& result) {
  return static_cast<int>(std::count_if(result.facts.begin(), result.facts.end(),
                                        [](const ArmFacts& f) { return f.gates.ended == Ended::kEnvironment; }));
}

std::vector<Experiment> load_all(const ExperimentArguments& options) {
  if (options.files.empty())
    throw_bad_input("experiment {} needs files; give some, as experiments/pipeline_stages.yaml", options.action);
  std::vector<Experiment> experiments;
  std::set<std::string> names;
  for (const std::string& file : options.files) {
    experiments.push_back(load_experiment(file));
    if (!names.insert(experiments.back().name).second)
      throw_bad_input("{}: another file has an experiment called {} as well; names are folders, so give it another",
                      file, experiments.back().name);
  }
  return experiments;
}

constexpr double kMaxLimit = 1e9;
// "90" or "90s", "4m".
std::optional<double> seconds_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const bool minutes = text.ends_with('m');
  const auto number = parse_finite(std::string_view(text).substr(0, text.size() - (minutes || text.ends_with('s'))));
  if (!number || !(*number > 0 && *number <= kMaxLimit))
    throw_bad_input("--limit '{}' is no time; give seconds or minutes, as 90s or 4m, at most {:.0f}", excerpt(text),
                    kMaxLimit);
  return *number * (minutes ? 60 : 1);
}

// Nothing is judged of a kernel on a device of another kind, which the user chose.
void require_kind(const std::vector<Experiment>& experiments, const DeviceInfo& device) {
  const auto require_arm = [&](const Experiment& experiment, const ExperimentArm& arm) {
    const std::string family = arm.candidate.substr(0, arm.candidate.find_first_of("+:"));
    const DeviceKind kind = family_by_name(family).kind();
    if (kind == device.limits.kind) return;
    throw_bad_input("{}: {} is a kernel of {}, and {} is none; nothing was judged: give --device {}",
                    experiment.file.string(), family, kind == DeviceKind::kCuda ? "GPUs" : "CPUs", device.id,
                    kind == DeviceKind::kCuda ? "cuda or --device emulator" : "cpu");
  };
  for (const Experiment& experiment : experiments) {
    require_arm(experiment, experiment.control);
    for (const ExperimentArm& arm : experiment.candidates) require_arm(experiment, arm);
  }
}

std::vector<ExperimentResult> run_all(const ExperimentArguments& options, Console& console, bool time) {
  std::vector<Experiment> experiments = load_all(options);
  for (const Experiment& e : experiments) {
    if (e.closed)
      console.line("{} is closed ({}) and not run; commit {} still holds its code: {}", e.name, e.closed->verdict,
                   e.closed->last_commit, e.closed->finding);
  }
  std::erase_if(experiments, [](const Experiment& e) { return e.closed.has_value(); });
  if (experiments.empty()) return {};
  ExperimentRunOptions run;
  const DeviceInfo device = describe_device(options.common.device);
  run.device = device.id;
  run.time = time;
  run.ledger = load_ledger(options.ledger);
  run.max_seconds = seconds_of(options.limit);
  require_kind(experiments, device);
  if (options.processes > 0) run.processes = options.processes;
  auto results = run_experiments(
      experiments, run, [&](int done, int total, const std::string& what) { console.progress(done, total, what); },
      interrupted);
  console.end_progress();
  return results;
}

// Into --out, or, when that cannot be written any more, beside the system's temporary files: hours of measuring are not
// given up for a full disk. False if something is missing in --out.
bool keep(const ExperimentResult& result, const fs::path& folder) {
  try {
    const auto not_written = write_experiment(result, folder);
    for (const std::string& reason : not_written) print_error(reason + " (what was measured is kept)");
    return not_written.empty();
  } catch (const std::exception& e) {
    print_error(e.what());
  }
  try {
    const fs::path elsewhere =
        fs::temp_directory_path() / ("flashcore-" + new_run_id("experiment")) / result.experiment.name;
    write_experiment(result, elsewhere);
    print_error(fmt::format("what {} measured is kept in {}", result.experiment.name, elsewhere.string()));
  } catch (const std::exception& e) {
    print_error(fmt::format("nor can it be kept elsewhere: {}", e.what()));
  }
  return false;
}

int run_experiment(const ExperimentArguments& options) {
  load_all(options);  // a mistake in a file is found before a folder is made
  check_output_folder("--out", options.out);
  Console console(options.common.quiet, json_on_stdout(options.common));
  const auto results = run_all(options, console, true);
  nlohmann::json documents = nlohmann::json::array();
  int conclusive = 0, failed = 0, lacking = 0;
  bool all_kept = true;
  for (const ExperimentResult& r : results) {
    for (const std::string& earlier : r.earlier) console.line("{}: the ledger has {}", r.experiment.name, earlier);
    const fs::path folder = experiment_folder(r, options.out);
    all_kept = keep(r, folder) && all_kept;
    documents.push_back(experiment_json(r));
    conclusive += r.verdict != HypothesisVerdict::kInconclusive;
    const auto lacks = count_lacking(r);
    lacking += lacks;
    failed += r.failed_gates - lacks;
    console.line("{}  {}", console.paint(to_string(r.verdict), tone_of(r.verdict)), r.experiment.name);
    for (const std::string& line : r.summary) console.line("  {}", line);
    for (const ArmFacts& f : r.facts)
      if (f.gates.ended != Ended::kPassed) {
        console.summary("  {} on {} did not pass its gates ({})", f.arm, f.problem, f.gates.ended);
        console.block(f.gates.message);
      }
    if (folder.filename() == "unjudged")
      console.line("  the verdict that {} holds stays: this run has none", folder.parent_path().string());
    console.line("  {}", (folder / "verdict.html").string());
  }
  write_json(options.common, {{"schema", "flashcore.experiments/1"}, {"results", documents}});
  console.summary("{}: {} with a verdict, {} inconclusive{}{}",
                  plural(static_cast<std::int64_t>(results.size()), "experiment"), conclusive,
                  results.size() - static_cast<std::size_t>(conclusive), lacking_words(lacking), stopped_by());
  if (failed > 0) return kFailed;
  if (lacking > 0 || !all_kept) return kNoEnvironment;
  return unless_interrupted(!results.empty() && conclusive == static_cast<int>(results.size()) ? kDone : kNotJudged);
}

int check_experiments(const ExperimentArguments& options) {
  Console console(options.common.quiet, json_on_stdout(options.common));
  const auto results = run_all(options, console, false);
  Table table({"experiment", "arm", "problem", "verdict", "error of o / control's", "of the LSE", "candidate"});
  nlohmann::json facts = nlohmann::json::array();
  int passed = 0, failed = 0, lacking = 0;
  for (const ExperimentResult& r : results)
    for (const ArmFacts& f : r.facts) {
      const bool good = f.gates.ended == Ended::kPassed;
      const ErrorRatio ratio = error_ratio(r, f).value_or(ErrorRatio{});
      const ErrorPrediction predicted = predicted_error_of(r.experiment, f.arm);
      ++(good ? passed : f.gates.ended == Ended::kEnvironment ? lacking : failed);
      table.add({r.experiment.name,
                 f.arm,
                 f.problem,
                 {good ? "pass" : word_of(f.gates.ended), good ? Tone::kGood : Tone::kBad},
                 ratio_words(ratio.o, predicted.o),
                 ratio_words(ratio.lse, predicted.lse),
                 f.gates.candidate()});
      facts.push_back({{"experiment", r.experiment.name}, {"arm", f.arm}, {"trial", f.gates}});
      if (!good)
        table.add_detail(fmt::format("{}, {} on {}: {}", r.experiment.name, f.arm, f.problem, f.gates.ended),
                         f.gates.message);
    }
  console.table(table);
  write_json(options.common, {{"schema", "flashcore.experiment-check/1"},
                              {"passed", passed},
                              {"failed", failed},
                              {"lacking", lacking},
                              {"results", facts}});
  console.summary("{} {} gates, {} do not{}; nothing was timed{}", plural(passed, "candidate"),
                  passed == 1 ? "passes its" : "pass their", failed, lacking_words(lacking), stopped_by());
  if (failed > 0) return kFailed;
  if (lacking > 0) return kNoEnvironment;
  return unless_interrupted(passed > 0 ? kDone : kNotJudged);
}

// Each stored result again by the rules of today; nothing runs, and no sample changes.
int judge_again(const ExperimentArguments& options) {
  if (options.files.empty())
    throw_bad_input("experiment judge needs folders of results; give some, as results/experiments/pipeline_stages");
  for (const std::string& folder : options.files) {
    std::error_code ignored;
    if (fs::exists(folder, ignored) && !fs::is_directory(folder, ignored))
      throw_bad_input(
          "experiment judge needs folders of results, and {} is a file; give some, as "
          "results/experiments/pipeline_stages (run, check and list take the .yaml)",
          folder);
  }
  std::vector<std::pair<fs::path, ExperimentResult>> results;
  for (const std::string& folder : options.files) results.emplace_back(folder, rejudge_experiment(folder));
  Console console(options.common.quiet, json_on_stdout(options.common));
  nlohmann::json documents = nlohmann::json::array();
  std::size_t changed = 0;
  bool all_kept = true;
  for (const auto& [folder, r] : results) {
    const LedgerEntry before =
        parse_ledger_entry(read_file(folder / "verdict.json"), (folder / "verdict.json").string());
    const bool differs = before.verdict != r.verdict;
    changed += differs;
    for (const std::string& reason : write_rejudged(r, folder)) {
      print_error(reason + " (verdict.json is written)");
      all_kept = false;
    }
    console.line("{}  {}{}", console.paint(to_string(r.verdict), tone_of(r.verdict)), r.experiment.name,
                 differs ? fmt::format(" (was {})", before.verdict) : "");
    console.line("  {}", r.summary.back());
    documents.push_back(experiment_json(r));
  }
  write_json(options.common, {{"schema", "flashcore.experiments/1"}, {"results", documents}});
  console.summary("{} judged again from what was stored, {} with another verdict",
                  plural(static_cast<std::int64_t>(results.size()), "experiment"), changed);
  return all_kept ? kDone : kNoEnvironment;
}

std::string place_words(const LedgerPair& pair) {
  if (pair.speedup <= 0) return "not timed";
  if (!pair.is_predicted()) return "not predicted";
  const RangePlace place = place_of(pair);
  return place == RangePlace::kAbove ? "faster" : place == RangePlace::kBelow ? "slower" : "within";
}

nlohmann::json predictions_json(const LedgerEntry& entry) {
  nlohmann::json all = nlohmann::json::array();
  for (const LedgerPair& pair : entry.pairs)
    all.push_back({{"arm", pair.arm},
                   {"problem", pair.problem_id},
                   {"predicted", {pair.predicted_low, pair.predicted_high}},
                   {"speedup", pair.speedup > 0 ? nlohmann::json(pair.speedup) : nlohmann::json()},
                   {"place", place_words(pair)},
                   {"outcome", pair.outcome}});
  return all;
}

// What each file said beforehand beside what came out.
Table prediction_table(const std::vector<LedgerEntry>& ledger) {
  Table table({"experiment", "candidate", "problem", "predicted", "measured [95%]", "of the range", "outcome"});
  for (const LedgerEntry& e : ledger)
    for (const LedgerPair& pair : e.pairs)
      table.add(
          {e.name,
           pair.arm,
           pair.problem_id,
           pair.is_predicted() ? fmt::format("{:.2f} to {:.2f}", pair.predicted_low, pair.predicted_high) : "-",
           pair.speedup > 0 ? fmt::format("{:.3f} [{:.3f}, {:.3f}]", pair.speedup, pair.ci95_low, pair.ci95_high) : "-",
           place_words(pair),
           {word_of(pair.outcome), tone_of(pair.outcome)}});
  return table;
}

int list_experiments(const ExperimentArguments& options) {
  Console console(options.common.quiet, json_on_stdout(options.common));
  auto ledger = load_ledger(options.ledger);
  std::vector<Experiment> not_run, closed;
  std::set<std::string> named;
  for (const std::string& file : options.files) {
    Experiment experiment = load_experiment(file);
    named.insert(experiment.name);
    const auto known = [&](const LedgerEntry& entry) { return entry.name == experiment.name; };
    if (experiment.closed) closed.push_back(std::move(experiment));
    else if (std::none_of(ledger.begin(), ledger.end(), known)) not_run.push_back(std::move(experiment));
  }
  // Of those that were named; without files all.
  if (!named.empty()) std::erase_if(ledger, [&](const LedgerEntry& entry) { return !named.contains(entry.name); });
  Table table({"experiment", "verdict", "device", "when", "source", "what was found"});
  nlohmann::json results = nlohmann::json::array();
  std::size_t of_present = 0;
  for (const LedgerEntry& e : ledger) {
    const bool present = is_of_present_source(e);
    of_present += present;
    table.add({e.name,
               {word_of(e.verdict), tone_of(e.verdict)},
               e.device_key,
               e.created_at.substr(0, 10),
               present ? "present" : "earlier",
               e.summary});
    results.push_back({{"name", e.name},
                       {"verdict", e.verdict},
                       {"device", e.device_key},
                       {"created_at", e.created_at},
                       {"source_hash", e.source_hash},
                       {"of_present_source", present},
                       {"hypothesis", e.hypothesis},
                       {"summary", e.summary},
                       {"predictions", predictions_json(e)}});
  }
  for (const Experiment& e : closed) {
    const ClosedExperiment& how = *e.closed;
    table.add({e.name, {word_of(how.verdict), tone_of(how.verdict)}, "-", "closed", "-", how.finding});
    results.push_back({{"name", e.name},
                       {"verdict", how.verdict},
                       {"hypothesis", e.hypothesis},
                       {"known", e.known},
                       {"closed", {{"finding", how.finding}, {"last_commit", how.last_commit}}}});
  }
  for (const Experiment& e : not_run) {
    table.add({e.name, {"not run", Tone::kDim}, "-", "-", "-", e.hypothesis});
    results.push_back({{"name", e.name}, {"verdict", nullptr}, {"hypothesis", e.hypothesis}});
  }
  console.table(table);
  const PredictionRecord record = prediction_record(ledger);
  if (record.comparisons > 0) console.table(prediction_table(ledger));
  write_json(options.common, {{"schema", "flashcore.ledger/1"},
                              {"results", results},
                              {"predictions",
                               {{"comparisons", record.comparisons},
                                {"inside", record.inside},
                                {"above", record.above},
                                {"below", record.below},
                                {"median_error", record.median_error}}}});
  const std::string predictions =
      record.comparisons == 0
          ? ""
          : fmt::format(
                "; of {} timed, {} within the predicted range, {} faster than it, {} slower, off its middle by "
                "{:.1f}% in the median",
                plural(static_cast<std::int64_t>(record.comparisons), "comparison"), record.inside, record.above,
                record.below, 100 * record.median_error);
  console.summary("{} in {}, {} of them with the present source, {} of the files given not run yet, {} closed{}",
                  plural(static_cast<std::int64_t>(ledger.size()), "experiment"),
                  options.ledger + (std::filesystem::is_directory(options.ledger) ? "" : " (no such folder)"),
                  of_present, not_run.size(), closed.size(), predictions);
  return ledger.empty() && not_run.empty() && closed.empty() ? kNotJudged : kDone;
}

void check_targets(const ExperimentArguments& options) {
  std::vector<NamedFile> read = ledger_files(options.ledger);
  for (const std::string& file : options.files) read.push_back({"an experiment", file});
  require_distinct({{"--json", options.common.json}}, read);
  check_json_target(options.common);
}

// What an action does not read would look obeyed.
void refuse_unread_flags(const CLI::App& app, const std::string& action) {
  if (action == "run") return;
  refuse_flags(app, {"--out", "--limit", "--processes"},
               "it is for `experiment run`, which alone times candidates and writes pages to a folder");
  if (action == "check")
    refuse_flags(app, {"--ledger"}, "`experiment check` runs the gates, whatever was found earlier");
  else refuse_flags(app, {"--device"}, fmt::format("`experiment {}` runs nothing", action));
  if (action == "judge") refuse_flags(app, {"--ledger"}, "`experiment judge` reads the folders that it is given");
}

}  // namespace

Run add_experiment(CLI::App& app) {
  auto options = std::make_shared<ExperimentArguments>();
  app.add_option("action", options->action,
                 "run: measure and judge; check: gates only, nothing timed; list: the ledger; judge: stored results "
                 "again, by the rules of today")
      ->required()
      ->check(CLI::IsMember({"run", "check", "list", "judge"}))
      ->type_name("run|check|list|judge");
  app.add_option("files", options->files,
                 "experiments, as experiments/pipeline_stages.yaml; of judge: folders of results, as "
                 "results/experiments/pipeline_stages")
      ->type_name("FILE");
  add_common(app, options->common, kDevice | kJson);
  app.add_option("--out", options->out, "where verdict pages and samples go: DIR/<name>/")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--ledger", options->ledger, "earlier verdicts")->type_name("DIR")->capture_default_str();
  app.add_option("--limit", options->limit, "of all timing together, shared out evenly: 90s, 4m")->type_name("TIME");
  app.add_option("--processes", options->processes, "fresh processes instead of what the files say")
      ->type_name("N")
      ->check(whole_between(1, 100));
  add_trust_code(app, options->trust_code);
  add_examples(app, {"experiment check example.yaml --device cpu",
                     "experiment run example.yaml --device cpu --out verdicts  # exit 0 or 2",
                     "experiment list example.yaml --ledger verdicts"});
  return [options, &app] {
    refuse_unread_flags(app, options->action);
    if (options->trust_code) trust_code();
    watch_interrupts();
    check_targets(*options);
    if (options->action == "run") return run_experiment(*options);
    if (options->action == "judge") return judge_again(*options);
    return options->action == "check" ? check_experiments(*options) : list_experiments(*options);
  };
}

}  // namespace flashcore::cli
