// flashcore campaign: the whole way, phase by phase.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/stop_loss_flags.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/foreign_text.h"
#include "lab/campaign/run.h"
#include "lab/campaign/summary.h"
#include "lab/compare/regression.h"

namespace flashcore::cli {

namespace {

struct CampaignArguments {
  Common common;
  std::string out = "campaign", budget = "25m", python = "python3", baseline, ledger = "results/experiments";
  double patience = 2;
  bool resume = false;
  StopLossFlags stop_loss;
};

// As it was typed, but for where the program lies.
std::vector<std::string> own_command_line() {
  std::vector<std::string> words;
  std::ifstream file("/proc/self/cmdline");
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (!words.empty()) words.front() = "flashcore";
  return words;
}

// One spelling of a folder, whether it exists or not: "c", "./c/" and a link to it. --resume compares the commands of a
// campaign as text, and their paths lie under it.
std::filesystem::path canonical_folder(const std::string& folder) {
  const auto absolute = std::filesystem::absolute(folder);
  std::error_code error;
  const auto canonical = std::filesystem::weakly_canonical(absolute, error);
  return ((error ? absolute.lexically_normal() : canonical) / "").parent_path();
}

CampaignOptions campaign_options(const CampaignArguments& options) {
  CampaignOptions out;
  const auto budget = parse_duration(options.budget);
  if (!budget)
    throw_bad_input("--budget '{}' is no budget: give seconds, minutes or hours of the whole campaign (120s, 25m, 1h)",
                    excerpt(options.budget));
  out.budget_seconds = *budget;
  out.hard_limit = options.patience;
  out.device = describe_device(options.common.device);
  const bool on_gpu = out.device.limits.kind == DeviceKind::kCuda && !out.device.limits.emulated;
  Common chosen = options.common;
  const std::string suite = on_gpu ? "campaign" : out.device.limits.emulated ? "emulator" : "smoke";
  out.problems = select_problems(chosen, suite);
  require_something_to_time(out.problems);
  // Each verb has a default of its own: a name is of this one.
  if (chosen.suite.empty() && out.problems.problems.front().problem.id() != chosen.problem) chosen.suite = suite;
  out.suite = chosen.suite;
  out.problem = chosen.problem;
  // The verbs run in the present folder, as this one does.
  out.folder = canonical_folder(options.out);
  out.program = std::filesystem::read_symlink("/proc/self/exe").string();
  out.argv = own_command_line();
  out.python = options.python;
  out.baseline = options.baseline;
  out.ledger = options.ledger;
  // A price alone is of the account.
  if (options.stop_loss.on || !options.stop_loss.worth.empty()) {
    (void)stop_loss_of(options.stop_loss);
    out.stop_loss = {"--stop-loss", "--worth", options.stop_loss.worth};
    if (!options.stop_loss.price.empty())
      out.stop_loss.insert(out.stop_loss.end(), {"--price", options.stop_loss.price});
  }
  out.price = options.stop_loss.price;
  return out;
}

std::optional<CampaignState> earlier_state(const CampaignArguments& options) {
  std::optional<CampaignState> earlier = load_state(options.out);
  if (earlier && !options.resume)
    throw_bad_input("--out {}: there is a campaign already; give --resume to go on with it, or another folder",
                    options.out);
  if (!earlier && options.resume)
    throw_bad_input("--resume: there is no {} in '{}'; leave --resume out to begin one", kCampaignFile, options.out);
  return earlier;
}

Tone tone_of_phase(PhaseVerdict verdict) {
  return verdict == PhaseVerdict::kPassed ? Tone::kGood : verdict == PhaseVerdict::kFailed ? Tone::kBad : Tone::kWarn;
}

void show_campaign(Console& console, const CampaignResult& result) {
  for (const Criterion& c : result.criteria) {
    const Tone tone = c.verdict == CriterionVerdict::kMet      ? Tone::kGood
                      : c.verdict == CriterionVerdict::kNotMet ? Tone::kBad
                                                               : Tone::kWarn;
    console.line("{}: {}", c.name, console.paint(word_of(c.verdict), tone));
    for (const std::string& line : wrapped(c.evidence, terminal_columns(STDOUT_FILENO) - 2)) console.line("  {}", line);
  }
}

bool is_inside(const std::string& file, const std::string& folder) {
  const auto of = canonical_folder(folder), at = canonical_folder(file);
  return std::mismatch(of.begin(), of.end(), at.begin(), at.end()).first == of.end();
}

int run_campaign_verb(const CampaignArguments& options) {
  check_json_target(options.common);
  require_distinct({{"--json", options.common.json}}, {{"--baseline", options.baseline}});
  if (!options.common.json.empty() && !json_on_stdout(options.common) && is_inside(options.common.json, options.out))
    throw_bad_input("--json {} lies in the campaign's folder {}, whose files are its own: give a path outside of it",
                    options.common.json, options.out);
  require_python(options.python);
  const CampaignOptions campaign = campaign_options(options);
  if (!options.baseline.empty()) {
    std::error_code error;
    if (!std::filesystem::exists(options.baseline, error))
      throw_bad_input("--baseline {}: there is no such file; `flashcore gate --write-baseline` makes one",
                      options.baseline);
    (void)load_baseline(options.baseline);  // now, and not after all phases before the gate
  }
  if (options.resume) (void)earlier_state(options);
  // A call that is refused leaves nothing behind.
  check_output_folder("--out", options.out);
  const auto lock = lock_campaign_folder(options.out);
  std::optional<CampaignState> earlier = earlier_state(options);
  // The package runs the program beside it otherwise, and that may be another.
  setenv("FLASHCORE_BINARY", campaign.program.c_str(), 0);
  Console console(options.common.quiet, json_on_stdout(options.common));
  console.line("campaign on {} ({}): {}, budget {}, into {}; Ctrl-C ends it, --resume goes on", campaign.device.name,
               campaign.device.id, problems_of(campaign.problems, options.common), options.budget,
               campaign.folder.string());
  if (campaign.budget_seconds < kLeastBudgetSeconds)
    console.line(
        "a budget below {:.0f}m bounds the search and the number of trials alone: each phase has {:.0f} s at least, "
        "and each of its "
        "commands may take {:.0f} s",
        kLeastBudgetSeconds / 60, kLeastPhaseSeconds, kLeastLimitSeconds);
  const CampaignResult result = run_campaign(
      campaign, std::move(earlier),
      [&](const CampaignState&, const CampaignPhase& phase) {
        if (phase.status == PhaseStatus::kRunning) {
          const auto kept = std::count_if(phase.commands.begin(), phase.commands.end(),
                                          [](const CampaignCommand& c) { return c.kept; });
          // The line that follows has the reason.
          if (phase.commands.empty()) return console.line("{}: nothing to run", phase.name);
          console.line("{}: about {:.0f} s{}", phase.name, phase.budget_seconds,
                       kept == 0 ? "" : fmt::format(", {} of {} commands done before", kept, phase.commands.size()));
          return;
        }
        console.line("  {} in {:.1f} s{}{}", console.paint(to_string(phase.verdict), tone_of_phase(phase.verdict)),
                     phase.seconds, phase.reason.empty() ? "" : ": ", phase.reason);
      },
      interrupted);
  show_campaign(console, result);
  int passed = 0, failed = 0, unjudged = 0, left = 0;
  for (const CampaignPhase& phase : result.state.phases) {
    const bool done = phase.status == PhaseStatus::kDone;
    passed += done && phase.verdict == PhaseVerdict::kPassed ? 1 : 0;
    failed += done && phase.verdict == PhaseVerdict::kFailed ? 1 : 0;
    unjudged += done && phase.verdict == PhaseVerdict::kNotJudged ? 1 : 0;
    left += done ? 0 : 1;  // interrupted, or not reached
  }
  nlohmann::json document = state_json(result.state);
  document["criteria"] = criteria_json(result.criteria);
  document["findings"] = findings_of(campaign.folder, result.state);
  write_json(options.common, document);
  console.summary("{} passed, {} failed, {} could not judge{}; {}{}", plural(passed, "phase"), failed, unjudged,
                  left == 0 ? "" : fmt::format(", {} interrupted or not reached (--resume goes on)", left),
                  (campaign.folder / "summary.md").string(), result.state.interrupted ? stopped_by() : "");
  if (failed > 0) return kFailed;
  // What was interrupted has a phase left.
  return unjudged + left == 0 ? kDone : kNotJudged;
}

}  // namespace

Run add_campaign(CLI::App& app) {
  auto options = std::make_shared<CampaignArguments>();
  add_common(app, options->common, kDevice | kSuite | kProblem | kJson);
  tell_default_suite(app, "campaign on a GPU, smoke on a CPU, emulator on an emulated GPU");
  app.add_option("--out", options->out, "folder of all that it writes")
      ->type_name("DIR")
      ->check(not_empty())
      ->capture_default_str();
  app.add_option("--budget", options->budget,
                 "shared out over the phases that are still to do; below 2m it bounds the search and the number of "
                 "trials alone")
      ->type_name("TIME")
      ->capture_default_str();
  app.add_option("--patience", options->patience,
                 "the command in whose time a phase comes to so many times its share is ended; each has 30 s at least")
      ->type_name("FACTOR")
      ->check(CLI::Range(1.0, 100.0))
      ->capture_default_str();
  app.add_flag("--resume", options->resume,
               "go on with the campaign in --out: what is done is not run again, but for what was cut for want of "
               "time, lacked a program or a package, or could not judge on a busy machine");
  app.add_option("--baseline", options->baseline,
                 "of the regression gate, a file of `gate --write-baseline` (default: recorded before the evolution)")
      ->type_name("FILE");
  app.add_option("--python", options->python, "that imports flashcore and PyTorch, for peers and the cross-check")
      ->type_name("PROGRAM")
      ->check(not_empty())
      ->capture_default_str();
  app.add_option("--ledger", options->ledger, "experiments' verdicts to consult")
      ->type_name("DIR")
      ->capture_default_str();
  add_stop_loss(app, options->stop_loss);
  add_examples(
      app,
      {"campaign --device cpu --problem b1_h1_s64_d64_fp32 --budget 20s --out campaign  # exit 0 or 1 or 2",
       "campaign --device cpu --problem b1_h1_s64_d64_fp32 --budget 20s --out campaign --resume  # exit 0 or 1 or 2"});
  return [options, &app] {
    if (app.count("--ledger") > 0) require_ledger(options->ledger);
    watch_interrupts();
    return run_campaign_verb(*options);
  };
}

}  // namespace flashcore::cli
