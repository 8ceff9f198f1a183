// flashcore tune: the search, its progress and its outcome.

#include "lab/tune/tune.h"

#include <chrono>
#include <cmath>

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/stop_loss_flags.h"
#include "cli/stored.h"
#include "cli/timing_flags.h"
#include "cli/tune_replay.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/foreign_text.h"
#include "lab/harness/patch.h"
#include "lab/record/digest.h"
#include "lab/tune/user_table.h"

namespace flashcore::cli {

namespace {

struct TuneArguments {
  Common common;
  std::string budget = "60s";
  std::string strategy = "both", proposer, record, replay;
  std::string ledger = "results/experiments";
  TimingFlags timing{.seconds = 0};  // the budget says how long
  int finalists = 5;
  bool trust_code = false, confine_proposer = false;
  StopLossFlags stop_loss;
};

// "60s", "5m", "1h": seconds of the whole suite. "200": trials per problem.
constexpr int kReplayTrials = 50;

void parse_budget(const std::string& text, TuneOptions& tune_options) {
  tune_options.budget_seconds = parse_duration(text);
  if (tune_options.budget_seconds) return;
  const auto number = parse_finite(text);
  if (!number || *number <= 0 || *number > 1e9 || *number != std::floor(*number))
    throw_bad_input(
        "--budget '{}' is not a budget: give seconds, minutes or hours of the whole run (60s, 5m, 1h), or a number of "
        "trials per problem (200), without '+' or zeros in front",
        excerpt(text));
  tune_options.budget_trials = static_cast<int>(*number);
}

TuneOptions tune_options_from(const TuneArguments& options) {
  TuneOptions out;
  if (!options.common.family.empty()) out.family = family_by_name(options.common.family).name();
  parse_budget(options.budget, out);
  out.suite = select_problems(options.common, "quick");
  require_something_to_time(out.suite);
  out.device = describe_device(options.common.device).id;
  out.strategy = options.strategy;
  if (!options.proposer.empty()) out.proposer = options.proposer;
  if (options.confine_proposer && options.proposer.empty())
    throw_bad_input("--confine-proposer was given without --proposer: there is nothing to confine");
  out.confine_proposer = options.confine_proposer;
  out.ledger = options.ledger;
  out.spec() = spec_of(options.timing);
  out.finalists = options.finalists;
  out.stop_loss = stop_loss_of(options.stop_loss);
  return out;
}

// How much of the whole run's time is over; below 0 where trials bound it.
class Clock {
 public:
  explicit Clock(const TuneOptions& options)
      : seconds_(options.budget_trials ? 0 : options.budget_seconds.value_or(kDefaultBudgetSeconds)) {}
  double share() const {
    if (seconds_ <= 0) return -1;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count() / seconds_;
  }

 private:
  double seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

bool is_patched(const Trial& trial) { return trial.family.find('+') != std::string::npos; }

std::string verdict_on_patch(const Trial& trial) {
  if (trial.timing) return fmt::format("{}, {}", to_string(trial.ended), human_time_us(trial.timing->p50_us));
  if (trial.ended == Ended::kInconclusive) return trial.message;
  if (trial.ended != Ended::kPassed) return fmt::format("{}: {}", to_string(trial.ended), trial.message);
  return trial.device.limits.emulated ? "passed the gates, and was not timed: an emulated GPU has no time"
                                      : "passed the gates, and was not timed";
}

void show_progress(Console& console, const TuneProgress& p, const Clock& clock) {
  if (p.stage == "space") {
    console.line("{}: {} of {} feasible", p.problem, p.feasible,
                 plural(static_cast<std::int64_t>(p.space_size), "config"));
    for (const std::string& note : p.notes) console.line("  {}", note);
    return;
  }
  if (p.stage == "done") return;
  if (p.stage == "trying") {
    console.line("{}: trying {}; after {:.0f} s without an end it counts as a hang", p.problem, p.trying,
                 p.most_seconds);
    return;
  }
  if (p.stage == "search" && p.trial != nullptr && is_patched(*p.trial))
    console.line("{}: {}: {}", p.problem, p.trial->candidate(), verdict_on_patch(*p.trial));
  const std::string best = p.best != nullptr && p.best->timing ? human_time_us(p.best->timing->p50_us) : "";
  const std::string last = p.trial != nullptr ? fmt::format("{} {}", p.trial->ended, p.trial->config) : "";
  console.progress({p.done, p.total, clock.share(), best, fmt::format("{} {}: {}", p.problem, p.stage, last)});
}

void add_row(Table& table, const TuneResult::Entry& entry) {
  const std::string funnel = fmt::format("{} > {} > {} > {} > {} > {}", entry.proposed, entry.valid, entry.compiled,
                                         entry.correct, entry.raced, entry.led);
  if (!entry.winner || !entry.winner->timing) {
    table.add({entry.problem.name, funnel, "-", "-", "-", "-", {"none", Tone::kWarn}});
    table.add_detail(entry.problem.name + ": no candidate to take", entry.problem_note, Tone::kWarn);
    return;
  }
  const Trial& winner = *entry.winner;
  const double p50 = winner.timing->p50_us;
  const std::string speedup = winner.comparison ? fmt::format("{:.3f} [{:.3f}, {:.3f}]", winner.comparison->speedup,
                                                              winner.comparison->ci95_low, winner.comparison->ci95_high)
                                                : "-";
  table.add({entry.problem.name, funnel, fmt::format("{:.2f}", p50),
             fmt::format("{:.3f}", winner.problem.flops() / p50 * 1e-6), speedup,
             fmt::format("{:.1f}%", entry.shrinkage * 100),
             winner.comparison ? winner.candidate() : winner.candidate() + " (the default)"});
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

void say_rejections(Console& console, const TuneResult::Entry& entry) {
  for (const TuneResult::Arm& arm : entry.arms) {
    if (arm.rejected == 0) continue;
    console.line("{}: {} answer{} of the proposer rejected:", entry.problem.name, arm.rejected,
                 arm.rejected == 1 ? "" : "s");
    for (const auto& [answer, reason] : arm.rejections) console.line("  {}", reason);
  }
}

// A finalist that is ahead and does not win is told of, lest its row look like a win that was lost.
void say_default_stands(Console& console, const TuneResult::Entry& entry) {
  if (!entry.closest) return;
  const Comparison& c = *entry.closest->comparison;
  const std::string measured = fmt::format("speed-up {:.3f} [{:.3f}, {:.3f}]", c.speedup, c.ci95_low, c.ci95_high);
  const char* why = c.verdict == SpeedVerdict::kSame     ? "is the SAME as the default"
                    : c.verdict == SpeedVerdict::kFaster ? "is ahead of the default, but that may be luck"
                                                         : "may or may not be faster than the default";
  console.line("{}: the default stands: {} {} ({}, margin {:.1f}%)", entry.problem.name, entry.closest->candidate(),
               why, measured, 100 * c.margin);
}

// What the others found is kept and told; that nobody heard of the proposer is an error all the same.
bool say_failed_proposers(const TuneResult& result, const std::string& proposer) {
  bool any = false;
  for (const TuneResult::Entry& entry : result.entries)
    for (const TuneResult::Arm& arm : entry.arms) {
      if (!arm.failed) continue;
      any = true;
      print_error(fmt::format("{}: the proposer '{}' made no proposal: {}; docs/tuning.md has the protocol",
                              entry.problem.name, proposer, arm.note));
    }
  return any;
}

nlohmann::json arms_json(const TuneResult::Entry& entry) {
  nlohmann::json arms = nlohmann::json::array();
  for (const TuneResult::Arm& arm : entry.arms) {
    nlohmann::json rejections = nlohmann::json::array();
    for (const auto& [answer, reason] : arm.rejections) rejections.push_back({{"answer", answer}, {"reason", reason}});
    arms.push_back({{"strategy", arm.strategy},
                    {"trials", arm.trials},
                    {"best", arm.best},
                    {"best_us", arm.best_us},
                    {"heldout", arm.heldout},
                    {"heldout_ci95", {arm.heldout_low, arm.heldout_high}},
                    {"note", arm.note},
                    {"failed", arm.failed},
                    {"rejected", arm.rejected},
                    {"rejections", rejections}});
  }
  return arms;
}

nlohmann::json entry_json(const TuneResult::Entry& entry, const std::optional<StopLoss>& rule) {
  nlohmann::json json = {{"problem", entry.problem.problem.id()},
                         {"name", entry.problem.name},
                         {"shrinkage", entry.shrinkage},
                         {"note", entry.problem_note},
                         {"inert_fields", entry.inert_fields},
                         {"arms", arms_json(entry)},
                         {"known", entry.known},
                         {"rejected", entry.rejected},
                         {"lacking", entry.lacking},
                         {"stop_loss", stop_loss_json(entry, rule)},
                         {"funnel",
                          {{"proposed", entry.proposed},
                           {"valid", entry.valid},
                           {"compiled", entry.compiled},
                           {"correct", entry.correct},
                           {"raced", entry.raced},
                           {"led", entry.led}}}};
  if (entry.winner) json["winner"] = *entry.winner;
  if (entry.closest)
    json["default_stands"] = {{"closest", entry.closest->candidate()},
                              {"verdict", entry.closest->comparison->verdict},
                              {"speedup", entry.closest->comparison->speedup},
                              {"ci95", {entry.closest->comparison->ci95_low, entry.closest->comparison->ci95_high}}};
  return json;
}

void say_what_was_entered(Console& console, std::size_t entered, std::size_t kept) {
  if (entered > 0)
    console.line("{} entered into {}: dispatch takes {} from now on",
                 plural(static_cast<std::int64_t>(entered), "winner"), user_table_path().string(),
                 entered == 1 ? "it" : "them");
  if (entered > 0)
    console.line(
        "to undo it: take the entry out of that file, or move the file away; without it dispatch chooses as "
        "before");
  if (kept > 0)
    console.line("nothing beat what dispatch takes for {}: nothing entered for {}",
                 plural(static_cast<std::int64_t>(kept), "problem"), kept == 1 ? "it" : "them");
}

int run_tune(const TuneArguments& options) {
  check_json_target(options.common);
  std::vector<NamedFile> read = ledger_files(options.ledger);
  read.push_back({"--store", options.common.store});
  read.push_back({"--suite", options.common.suite});
  read.push_back({"--proposer", options.proposer});
  require_distinct({{"--json", options.common.json}, {"--record", options.record}}, read);
  check_output_file("--record", options.record);
  check_user_table();
  const TuneOptions tune_options = tune_options_from(options);
  Console console(options.common.quiet, json_on_stdout(options.common));
  Store store(options.common.store);
  console.line("tuning {} on {}, budget {}, strategy {}; Ctrl-C ends it with what is done saved",
               problems_of(tune_options.suite, options.common), tune_options.device, options.budget,
               tune_options.strategy);
  console.line(
      "the search's own trials pass a quick gate; finalists pass the full one, in every process that times them");
  const Clock clock(tune_options);
  std::vector<MachineReading> readings;
  const TuneResult result = tune(
      tune_options, store,
      [&](const TuneProgress& p) {
        if (p.trial != nullptr && p.trial->timing) readings.push_back(p.trial->machine);
        show_progress(console, p, clock);
      },
      interrupted);
  console.end_progress();

  Table table({"problem", "proposed > valid > compiled > correct > raced > led", "p50 us", "TFLOP/s", "speed-up [95%]",
               "shrinkage", "winner (held-out)"});
  nlohmann::json results = nlohmann::json::array();
  std::size_t winners = 0, faster = 0;
  int lacking = 0;
  for (const TuneResult::Entry& entry : result.entries) {
    add_row(table, entry);
    results.push_back(entry_json(entry, tune_options.stop_loss));
    winners += entry.winner ? 1 : 0;
    faster += entry.winner && entry.winner->comparison ? 1 : 0;
    lacking += entry.lacking;
  }
  console.table(table);
  console.line("led: beat the incumbent of its moment in the search; the winner is chosen later, on held-out data");
  Table arms({"problem", "strategy", "trials", "best us (discovery)", "held-out speed-up [95%]", "its best"});
  for (const TuneResult::Entry& entry : result.entries) add_arm_rows(arms, entry);
  console.table(arms);
  for (const TuneResult::Entry& entry : result.entries) {
    say_rejections(console, entry);
    say_default_stands(console, entry);
    say_stop_loss(console, entry, tune_options.stop_loss);
  }
  if (const std::string load = load_words(readings); !load.empty()) console.line("{}", load);
  const std::string busy = busy_words(readings);
  if (!busy.empty())
    console.line("{}, so that another run may crown other winners; tune again on a quiet machine", busy);
  std::vector<Trial> to_enter;
  for (const TuneResult::Entry& entry : result.entries) {
    if (!entry.winner || !entry.winner->comparison) continue;
    // Only what beat that which it displaces: with --family it may have beaten another default.
    const std::string displaced = dispatch(entry.winner->problem, entry.winner->device).candidate.print();
    if (entry.winner->comparison->against == displaced) to_enter.push_back(*entry.winner);
  }
  bool all_kept = true;
  // The trials are in the store; a file that cannot be written must not cost the rest of what is told here.
  const auto keep = [&](const std::function<void()>& write) {
    try {
      write();
    } catch (const Error& error) {
      print_error(error.what());
      all_kept = false;
    }
  };
  keep([&] {
    enter_user_table(to_enter);
    say_what_was_entered(console, to_enter.size(), winners - to_enter.size());
  });
  for (const TuneResult::Entry& entry : result.entries) {
    for (const std::string& field : entry.inert_fields)
      console.line("{}: '{}' never changed the code: an inert parameter is a bug of the family", entry.problem.name,
                   field);
  }
  if (!options.record.empty()) keep([&] { record_landscapes(options.record, store, tune_options, console); });
  write_json(options.common, {{"schema", "flashcore.tune/1"},
                              {kDigest, ""},
                              {"problems", tune_options.suite.problems.size()},
                              {"run", result.run},
                              {"store", store.path().string()},
                              {"interrupted", result.interrupted},
                              {"load", load_words(readings)},
                              {"busy", busy},
                              {"results", results}});
  const auto total = static_cast<std::int64_t>(tune_options.suite.problems.size());
  if (options.common.json.empty() && store.fault().empty())
    console.line(
        "every trial is in {}: `flashcore report --store {} --out report.html` shows them; --json FILE writes "
        "this result",
        store.path().string(), store.path().string());
  console.summary(
      "{}: {} with a config faster than the default, {} where the default remains, {} without a result{}; run "
      "{}, store {}{}",
      plural(total, "problem"), faster, winners - faster, static_cast<std::size_t>(total) - winners,
      lacking_words(lacking), result.run, store.path().string(), result.interrupted ? stopped_by() : "");
  all_kept = tell_store_fault(store) && all_kept;
  if (!all_kept || (lacking > 0 && winners < result.entries.size())) return kNoEnvironment;
  if (say_failed_proposers(result, options.proposer)) return kBadUsage;
  return winners > 0 && (winners == result.entries.size() || result.interrupted) ? kDone : kNotJudged;
}

}  // namespace

Run add_tune(CLI::App& app) {
  auto options = std::make_shared<TuneArguments>();
  add_common(app, options->common, kDevice | kSuite | kProblem | kFamily | kStore | kJson);
  tell_default_suite(app, "quick");
  app.add_option("--budget", options->budget,
                 fmt::format("60s, 5m, 1h of the whole run, or a number of trials per problem; with --replay trials "
                             "alone (default: {})",
                             kReplayTrials))
      ->type_name("TIME|N")
      ->capture_default_str();
  app.add_option("--strategy", options->strategy,
                 "both (evolution beside random, each half of the budget) | evolution | random | exhaustive | none")
      ->check(CLI::IsMember({"both", "evolution", "random", "exhaustive", "none"}))
      ->capture_default_str();
  app.add_option("--regime", options->timing.regime, "how to time: graph | cold | warm")->capture_default_str();
  app.add_option("--seed", options->timing.seed, "of the search")->check(seed_number())->capture_default_str();
  app.add_option("--finalists", options->finalists, "how many are measured again on held-out data")
      ->check(whole_between(1, 100))
      ->capture_default_str();
  app.add_option(
         "--proposer", options->proposer,
         "a program that proposes configs or patched kernels in lines of JSON (docs/tuning.md), beside the strategy")
      ->type_name("CMD");
  app.add_flag("--confine-proposer", options->confine_proposer,
               "the proposer gets no network, writes one temporary folder alone, and has limits of memory and time");
  app.add_option("--ledger", options->ledger, "experiments' verdicts to consult")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--record", options->record, "write what is known of these problems as a landscape to replay")
      ->type_name("FILE");
  app.add_option("--replay", options->replay, "no device: evolution beside random search on a recorded landscape")
      ->type_name("FILE");
  add_stop_loss(app, options->stop_loss);
  add_trust_code(app, options->trust_code);
  add_examples(app, {"tune --device cpu --problem b1_h2_s128_d64_fp32 --budget 3 --finalists 2",
                     "tune --device cpu --problem b1_h2_s128_d64_fp32 --family cpu_fwd --budget 4 --finalists 1 "
                     "--record landscape.json",
                     "tune --replay landscape.json --budget 10"});
  return [options, &app] {
    if (options->trust_code) trust_code();
    if (app.count("--ledger") > 0) require_ledger(options->ledger);
    watch_interrupts();
    if (!options->replay.empty()) {
      // Neither would do anything, and whoever gives it expects that it does.
      if (const char* flag = !options->record.empty()     ? "--record"
                             : !options->proposer.empty() ? "--proposer"
                             : options->stop_loss.on      ? "--stop-loss"
                                                          : nullptr)
        throw_bad_input("{} was given with --replay, which tries nothing on a device: leave one of them out", flag);
      TuneOptions budget;
      parse_budget(options->budget, budget);
      // The default is a time, and means nothing here; one that was given means something else than it says.
      if (budget.budget_seconds && app.count("--budget") > 0)
        throw_bad_input("--budget {} is a time, and a replay has none: give a number of trials, as --budget {}",
                        excerpt(options->budget), kReplayTrials);
      return replay_landscapes(options->common, options->replay, budget.budget_trials.value_or(kReplayTrials));
    }
    return run_tune(*options);
  };
}

}  // namespace flashcore::cli
