// flashcore tune: the search, its progress and its outcome.

#include "lab/tune.h"

#include <charconv>

#include "cli/common.h"
#include "cli/tune_replay.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "lab/user_table.h"

namespace flashcore::cli {

namespace {

struct TuneArguments {
  Common common;
  std::string budget = "60s";
  std::string strategy = "both", proposer, record, replay;
  std::string ledger = "results/experiments";
  std::string regime{to_string(Regime::kGraph)};
  std::uint64_t seed = 1;
  int finalists = 5;
  bool trust_code = false;
};

// "60s", "5m", "1h": seconds of the whole suite. "200": trials per problem.
void parse_budget(const std::string& text, TuneOptions& tune_options) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const double seconds = unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  const bool whole = unit.empty() && number == static_cast<double>(static_cast<int>(std::min(number, 1e9)));
  if (error != std::errc() || number <= 0 || number > 1e9 || (seconds == 0 && !whole)) {
    throw_bad_input(
        "--budget '{}' is not a budget: give seconds, minutes or hours of the whole run (60s, 5m, 1h), or a number of "
        "trials per problem (200)",
        text);
  }
  if (seconds > 0) {
    tune_options.budget_seconds = number * seconds;
  } else {
    tune_options.budget_trials = static_cast<int>(number);
  }
}

TuneOptions tune_options_from(const TuneArguments& options) {
  TuneOptions out;
  if (!options.common.family.empty()) out.family = family_by_name(options.common.family).name();
  parse_budget(options.budget, out);
  out.suite = select_problems(options.common, "quick");
  out.device = describe_device(options.common.device).id;
  out.strategy = options.strategy;
  if (!options.proposer.empty()) out.proposer = options.proposer;
  out.ledger = options.ledger;
  out.seed = options.seed;
  out.finalists = options.finalists;
  out.regime = parse_regime(options.regime);
  return out;
}

void show_progress(Console& console, const TuneProgress& p) {
  if (p.stage == "space") {
    console.line("{}: {} of {} configs are feasible", p.problem, p.feasible, p.space_size);
    for (const std::string& note : p.notes) console.line("  {}", note);
    return;
  }
  if (p.stage == "done") return;
  const std::string best =
      p.best != nullptr && p.best->timing ? fmt::format("best {:.2f} us", p.best->timing->p50_us) : "no winner yet";
  const std::string last = p.trial != nullptr ? fmt::format("{} {}", p.trial->ended, p.trial->config) : "";
  console.progress(p.done, p.total, fmt::format("{} {}: {}  {}", p.problem, p.stage, best, last));
}

void add_row(Table& table, const TuneResult::Entry& entry) {
  const std::string funnel = fmt::format("{} > {} > {} > {} > {} > {}", entry.proposed, entry.valid, entry.compiled,
                                         entry.correct, entry.raced, entry.won);
  if (!entry.winner || !entry.winner->timing) {
    table.add({entry.problem.name,
               funnel,
               "-",
               "-",
               "-",
               "-",
               {entry.problem_note.empty() ? "no winner" : entry.problem_note, Tone::kWarn}});
    return;
  }
  const Trial& winner = *entry.winner;
  const double p50 = winner.timing->p50_us;
  const std::string speedup = winner.comparison ? fmt::format("{:.3f} [{:.3f}, {:.3f}]", winner.comparison->speedup,
                                                              winner.comparison->ci95_low, winner.comparison->ci95_high)
                                                : "-";
  table.add({entry.problem.name, funnel, fmt::format("{:.2f}", p50),
             fmt::format("{:.3f}", winner.problem.flops() / p50 * 1e-6), speedup,
             fmt::format("{:.1f}%", entry.shrinkage * 100), winner.candidate()});
}

// Evolution beside random search, on the same budget; a proposer beside both.
void add_arm_rows(Table& table, const TuneResult::Entry& entry) {
  for (const TuneResult::Arm& arm : entry.arms) {
    const std::string heldout =
        arm.heldout > 0 ? fmt::format("{:.3f} [{:.3f}, {:.3f}]", arm.heldout, arm.heldout_low, arm.heldout_high) : "-";
    table.add({entry.problem.name, arm.strategy, std::to_string(arm.trials),
               arm.best_us > 0 ? fmt::format("{:.2f}", arm.best_us) : "-", heldout,
               arm.note.empty() ? arm.best : arm.best + " (" + arm.note + ")"});
  }
}

nlohmann::json arms_json(const TuneResult::Entry& entry) {
  nlohmann::json arms = nlohmann::json::array();
  for (const TuneResult::Arm& arm : entry.arms)
    arms.push_back({{"strategy", arm.strategy},
                    {"trials", arm.trials},
                    {"best", arm.best},
                    {"best_us", arm.best_us},
                    {"heldout", arm.heldout},
                    {"heldout_ci95", {arm.heldout_low, arm.heldout_high}},
                    {"note", arm.note}});
  return arms;
}

nlohmann::json entry_json(const TuneResult::Entry& entry) {
  nlohmann::json json = {{"problem", entry.problem.problem.id()},
                         {"name", entry.problem.name},
                         {"shrinkage", entry.shrinkage},
                         {"note", entry.problem_note},
                         {"inert_fields", entry.inert_fields},
                         {"arms", arms_json(entry)},
                         {"known", entry.known},
                         {"rejected", entry.rejected},
                         {"funnel",
                          {{"proposed", entry.proposed},
                           {"valid", entry.valid},
                           {"compiled", entry.compiled},
                           {"correct", entry.correct},
                           {"raced", entry.raced},
                           {"won", entry.won}}}};
  if (entry.winner) json["winner"] = *entry.winner;
  return json;
}

// What dispatch would not take from the table. A patched family is not known here, and not to dispatch either.
bool is_by_name_only(const Trial& winner) {
  const auto& all = all_families();
  if (std::none_of(all.begin(), all.end(), [&](const Family* f) { return f->name() == winner.family; })) return false;
  return !runs_beside_itself(parse_candidate(winner.candidate(), winner.problem, winner.device.limits), winner.problem);
}

int run_tune(const TuneArguments& options) {
  check_json_target(options.common);
  const TuneOptions tune_options = tune_options_from(options);
  Console console(options.common.quiet, json_on_stdout(options.common));
  Store store(options.common.store);
  console.line("tuning {} problem{} of '{}' on {}, budget {}, strategy {}; Ctrl-C ends it with what is done saved",
               tune_options.suite.problems.size(), tune_options.suite.problems.size() == 1 ? "" : "s",
               tune_options.suite.name, tune_options.device, options.budget, tune_options.strategy);
  const TuneResult result = tune(
      tune_options, store, [&](const TuneProgress& p) { show_progress(console, p); }, interrupted);
  console.end_progress();

  Table table({"problem", "proposed > valid > compiled > correct > raced > won", "p50 us", "TFLOP/s", "speed-up [95%]",
               "shrinkage", "winner (held-out)"});
  nlohmann::json results = nlohmann::json::array();
  std::size_t winners = 0;
  for (const TuneResult::Entry& entry : result.entries) {
    add_row(table, entry);
    results.push_back(entry_json(entry));
    winners += entry.winner ? 1 : 0;
  }
  console.table(table);
  Table arms({"problem", "strategy", "trials", "best us (discovery)", "held-out speed-up [95%]", "its best"});
  for (const TuneResult::Entry& entry : result.entries) add_arm_rows(arms, entry);
  console.table(arms);
  std::vector<Trial> to_enter;
  for (const TuneResult::Entry& entry : result.entries) {
    if (!entry.winner) continue;
    if (is_by_name_only(*entry.winner))
      console.line("{}: {} is for use by name, a plan of it must not run on two streams at once", entry.problem.name,
                   entry.winner->candidate());
    else to_enter.push_back(*entry.winner);
  }
  if (const std::size_t entered = enter_user_table(to_enter))
    console.line("{} winner{} entered into {}: dispatch takes them from now on", entered, entered == 1 ? "" : "s",
                 user_table_path().string());
  for (const TuneResult::Entry& entry : result.entries) {
    for (const std::string& field : entry.inert_fields)
      console.line("{}: '{}' never changed the code: an inert parameter is a bug of the family", entry.problem.name,
                   field);
  }
  if (!options.record.empty()) record_landscapes(options.record, store, tune_options, console);
  write_json(options.common, {{"schema", "flashcore.tune/1"},
                              {"run", result.run},
                              {"store", store.path().string()},
                              {"interrupted", result.interrupted},
                              {"results", results}});
  console.summary("{} of {} problems have a winner; run {}, store {}{}", winners, tune_options.suite.problems.size(),
                  result.run, store.path().string(), result.interrupted ? stopped_by() : "");
  return winners > 0 && (winners == result.entries.size() || result.interrupted) ? kDone : kNotJudged;
}

}  // namespace

Run add_tune(CLI::App& app) {
  auto options = std::make_shared<TuneArguments>();
  add_common(app, options->common, kDevice | kSuite | kProblem | kFamily | kStore | kJson);
  app.add_option("--budget", options->budget, "60s, 5m, 1h of the whole run, or a number of trials per problem")
      ->type_name("TIME|N")
      ->capture_default_str();
  app.add_option("--strategy", options->strategy,
                 "both (evolution beside random, each half of the budget) | evolution | random | exhaustive | none")
      ->check(CLI::IsMember({"both", "evolution", "random", "exhaustive", "none"}))
      ->capture_default_str();
  app.add_option("--regime", options->regime, "how to time: graph | cold | warm")->capture_default_str();
  app.add_option("--seed", options->seed, "of the search")->capture_default_str();
  app.add_option("--finalists", options->finalists, "how many are measured again on held-out data")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option(
         "--proposer", options->proposer,
         "a program that proposes configs or patched kernels in lines of JSON (docs/tuning.md), beside the strategy")
      ->type_name("CMD");
  app.add_option("--ledger", options->ledger, "experiments' verdicts to consult")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--record", options->record, "write what is known of these problems as a landscape to replay")
      ->type_name("FILE");
  app.add_option("--replay", options->replay, "no device: evolution beside random search on a recorded landscape")
      ->type_name("FILE");
  add_trust_code(app, options->trust_code);
  add_examples(app, {"tune --device cpu --problem b1_h2_s128_d64_fp32 --budget 3 --finalists 2",
                     "tune --device cpu --problem b1_h2_s128_d64_fp32 --family cpu_fwd --budget 4 --finalists 1 "
                     "--record landscape.json",
                     "tune --replay landscape.json --budget 10"});
  return [options] {
    if (options->trust_code) trust_code();
    watch_interrupts();
    if (!options->replay.empty()) {
      TuneOptions budget;
      parse_budget(options->budget, budget);
      return replay_landscapes(options->common, options->replay, budget.budget_trials.value_or(50));
    }
    return run_tune(*options);
  };
}

}  // namespace flashcore::cli
