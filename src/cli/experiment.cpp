// flashcore experiment: run experiments/*.yaml, check their candidates without timing, list what was found.

#include <set>
#include "cli/common.h"
#include "cli/verbs.h"
#include "core/error.h"

#include "lab/experiment_run.h"

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

Tone tone_of(const std::string& verdict) {
  return verdict == "CONFIRMED" ? Tone::kGood : verdict == "REFUTED" ? Tone::kBad : Tone::kWarn;
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

// "90" or "90s", "4m".
std::optional<double> seconds_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::size_t used = 0;
  double number = 0;
  try {
    number = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const std::string unit = text.substr(used);
  const double factor = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : 0;
  if (used == 0 || number <= 0 || factor == 0)
    throw_bad_input("--limit '{}' is no time; give seconds or minutes, as 90s or 4m", text);
  return number * factor;
}

std::vector<ExperimentResult> run_all(const ExperimentArguments& options, Console& console, bool time) {
  const std::vector<Experiment> experiments = load_all(options);
  ExperimentRunOptions run;
  run.device = describe_device(options.common.device).id;
  run.time = time;
  run.ledger = load_ledger(options.ledger);
  run.max_seconds = seconds_of(options.limit);
  if (options.processes > 0) run.processes = options.processes;
  auto results = run_experiments(
      experiments, run, [&](int done, int total, const std::string& what) { console.progress(done, total, what); },
      interrupted);
  console.end_progress();
  return results;
}

int run_experiment(const ExperimentArguments& options) {
  Console console(options.common.quiet, json_on_stdout(options.common));
  const auto results = run_all(options, console, true);
  nlohmann::json documents = nlohmann::json::array();
  int conclusive = 0, failed = 0;
  for (const ExperimentResult& r : results) {
    for (const std::string& earlier : r.earlier) console.line("{}: the ledger has {}", r.experiment.name, earlier);
    write_experiment(r, options.out);
    documents.push_back(experiment_json(r));
    conclusive += r.verdict != "INCONCLUSIVE";
    failed += r.failed_gates;
    console.line("{}  {}", console.paint(r.verdict, tone_of(r.verdict)), r.experiment.name);
    for (const std::string& line : r.summary) console.line("  {}", line);
    for (const ArmFacts& f : r.facts)
      if (f.gates.ended != "passed")
        console.summary("  {} on {} did not pass its gates: {}", f.arm, f.problem, f.gates.message);
    console.line("  {}", (fs::path(options.out) / r.experiment.name / "verdict.html").string());
  }
  write_json(options.common, {{"schema", "flashcore.experiments/1"}, {"results", documents}});
  console.summary("{} experiments: {} with a verdict, {} inconclusive{}", results.size(), conclusive,
                  results.size() - static_cast<std::size_t>(conclusive), stopped_by());
  if (failed > 0) return kFailed;
  return !results.empty() && conclusive == static_cast<int>(results.size()) ? kDone : kNotJudged;
}

int check_experiments(const ExperimentArguments& options) {
  Console console(options.common.quiet, json_on_stdout(options.common));
  const auto results = run_all(options, console, false);
  Table table({"experiment", "arm", "problem", "verdict", "candidate"});
  int passed = 0, failed = 0;
  for (const ExperimentResult& r : results)
    for (const ArmFacts& f : r.facts) {
      const bool good = f.gates.ended == "passed";
      ++(good ? passed : failed);
      table.add({r.experiment.name,
                 f.arm,
                 f.problem,
                 {good ? "pass" : f.gates.ended + ": " + f.gates.message.substr(0, f.gates.message.find('\n')),
                  good ? Tone::kGood : Tone::kBad},
                 f.gates.candidate()});
    }
  console.table(table);
  console.summary("{} candidates pass their gates, {} do not; nothing was timed", passed, failed);
  if (failed > 0) return kFailed;
  return passed > 0 ? kDone : kNotJudged;
}

int list_experiments(const ExperimentArguments& options) {
  Console console(options.common.quiet, json_on_stdout(options.common));
  const auto ledger = load_ledger(options.ledger);
  std::vector<Experiment> not_run;
  for (const std::string& file : options.files) {
    Experiment experiment = load_experiment(file);
    const auto known = [&](const LedgerEntry& entry) { return entry.name == experiment.name; };
    if (std::none_of(ledger.begin(), ledger.end(), known)) not_run.push_back(std::move(experiment));
  }
  Table table({"experiment", "verdict", "device", "when", "what was found"});
  nlohmann::json results = nlohmann::json::array();
  for (const LedgerEntry& e : ledger) {
    table.add({e.name, {e.verdict, tone_of(e.verdict)}, e.device_key, e.created_at.substr(0, 10), e.summary});
    results.push_back({{"name", e.name},
                       {"verdict", e.verdict},
                       {"device", e.device_key},
                       {"created_at", e.created_at},
                       {"source_hash", e.source_hash},
                       {"hypothesis", e.hypothesis},
                       {"summary", e.summary}});
  }
  for (const Experiment& e : not_run) {
    table.add({e.name, {"not run", Tone::kDim}, "-", "-", e.hypothesis});
    results.push_back({{"name", e.name}, {"verdict", nullptr}, {"hypothesis", e.hypothesis}});
  }
  console.table(table);
  write_json(options.common, {{"schema", "flashcore.ledger/1"}, {"results", results}});
  console.summary("{} experiments in {}, {} of the files given not run yet", ledger.size(), options.ledger,
                  not_run.size());
  return ledger.empty() && not_run.empty() ? kNotJudged : kDone;
}

}  // namespace

Run add_experiment(CLI::App& app) {
  auto options = std::make_shared<ExperimentArguments>();
  app.add_option("action", options->action,
                 "run: measure and judge; check: gates only, nothing timed; list: the ledger")
      ->required()
      ->check(CLI::IsMember({"run", "check", "list"}))
      ->type_name("run|check|list");
  app.add_option("files", options->files, "experiments, as experiments/pipeline_stages.yaml")->type_name("FILE");
  add_common(app, options->common, kDevice | kJson);
  app.add_option("--out", options->out, "where verdict pages and samples go: DIR/<name>/")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--ledger", options->ledger, "earlier verdicts")->type_name("DIR")->capture_default_str();
  app.add_option("--limit", options->limit, "of all timing together, shared out evenly: 90s, 4m")->type_name("TIME");
  app.add_option("--processes", options->processes, "fresh processes instead of what the files say")
      ->type_name("N")
      ->check(CLI::Range(1, 100));
  add_trust_code(app, options->trust_code);
  add_examples(app, {"experiment check example.yaml --device cpu",
                     "experiment run example.yaml --device cpu --out verdicts  # exit 0 or 2",
                     "experiment list example.yaml --ledger verdicts"});
  return [options] {
    if (options->trust_code) trust_code();
    watch_interrupts();
    check_json_target(options->common);
    if (options->action == "run") return run_experiment(*options);
    return options->action == "check" ? check_experiments(*options) : list_experiments(*options);
  };
}

}  // namespace flashcore::cli
