#include "lab/campaign/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/instrumented.h"
#include "lab/campaign/ranking.h"
#include "lab/diagnose/gather.h"

namespace flashcore {
namespace {

// Problems that are looked into: a profile and an inversion of each take minutes of a GPU.
constexpr std::size_t kDeepProblems = 2;
constexpr std::size_t kTargetedTrials = 6;
// The least that a published speed-up rests on (`ab` says so of fewer).
constexpr int kTrialProcesses = 3;
// Of a trial's part of the phase: every process passes the gates of both candidates first, and those take the rest.
constexpr double kTimedShareOfTrial = 1.0 / 3;
// The engine's own rounds, Nsight Compute, and what Python imports: each may take its part of the phase.
constexpr double kCrosscheckParts = 3;

class Commands {
 public:
  Commands(std::string_view phase, const CampaignOptions& options) : phase_(phase), options_(options) {}

  std::string path(const std::string& file) const { return (options_.folder / file).string(); }

  // A verb of the program, with --json unless it takes none.
  void verb(std::vector<std::string> words, const std::string& problem = {}, bool writes_json = true) {
    CampaignCommand command;
    const std::string stem = next_stem();
    command.problem = problem;
    command.log = stem + ".log";
    words.insert(words.begin(), options_.program);
    if (writes_json) {
      command.json = stem + ".json";
      words.insert(words.end(), {"--json", path(command.json)});
    }
    words.emplace_back("--quiet");
    command.argv = std::move(words);
    made_.push_back(std::move(command));
  }

  void python(std::vector<std::string> words) {
    verb(std::move(words));
    made_.back().argv.front() = options_.python;
    made_.back().argv.pop_back();  // the program behind it takes it, too, but says less then
  }

  std::vector<std::string> suite() const {
    std::vector<std::string> words = {"--suite", options_.suite};
    if (options_.suite.empty()) words.clear();
    if (!options_.problem.empty()) words.insert(words.end(), {"--problem", options_.problem});
    return words;
  }
  std::vector<std::string> device() const { return {"--device", options_.device.id}; }
  std::vector<std::string> store() const { return {"--store", path(kCampaignStore)}; }

  // tune refuses one that was given and is not there.
  std::vector<std::string> ledger() const {
    std::error_code error;
    if (!std::filesystem::is_directory(options_.ledger, error)) return {};
    return {"--ledger", options_.ledger};
  }

  void note_cause(const TargetedTrial& trial) {
    made_.back().cause = trial.cause;
    made_.back().field = trial.field;
  }

  std::vector<CampaignCommand> take() { return std::move(made_); }

 private:
  std::string next_stem() const {
    const auto& phases = campaign_phases();
    const auto at = std::find_if(phases.begin(), phases.end(), [&](const PhasePlan& p) { return p.name == phase_; });
    return fmt::format("{:02}_{}{}", at - phases.begin() + 1, phase_,
                       made_.empty() ? "" : fmt::format("_{}", made_.size() + 1));
  }

  std::string phase_;
  const CampaignOptions& options_;
  std::vector<CampaignCommand> made_;
};

template <class... Lists>
std::vector<std::string> words(std::vector<std::string> first, const Lists&... more) {
  (first.insert(first.end(), more.begin(), more.end()), ...);
  return first;
}

std::vector<NamedProblem> deep_problems(const CampaignOptions& options) {
  std::vector<NamedProblem> chosen;
  for (const NamedProblem& named : options.problems.problems)
    if (named.problem.seqlen_q > 0 && chosen.size() < kDeepProblems) chosen.push_back(named);
  return chosen;
}

// A timeline of the first problem whose kernel has marks. The emulator takes minutes for what a GPU does in
// milliseconds: there the problem is a small one of its kind, as the profile's.
void add_timeline(Commands& commands, const CampaignOptions& options) {
  for (const NamedProblem& named : deep_problems(options)) {
    try {
      const Candidate candidate = dispatch(named.problem, options.device).candidate;
      if (why_no_marks(*candidate.family)) continue;
      const PlacedProblem recorded = options.device.limits.emulated
                                         ? counted_problem(named.problem, candidate.print(), options.device.limits)
                                         : named.problem;
      commands.verb(
          words({"timeline", "--problem", recorded.id(), "--html", commands.path("timeline.html")}, commands.device()),
          named.problem.id());
      return;
    } catch (const Error&) {
      continue;  // no family runs it here
    }
  }
}

void add_trials(Commands& commands, const CampaignOptions& options, const CampaignState& state, double seconds) {
  const std::vector<TargetedTrial> trials =
      targeted_trials(options.folder, state, options.device, deep_problems(options), kTargetedTrials);
  const double of_trial = seconds / std::max<double>(1, static_cast<double>(trials.size()));
  const double timed = std::clamp(kTimedShareOfTrial * of_trial, 0.3, 9.0);
  for (const TargetedTrial& t : trials) {
    commands.verb(words({"ab", t.current, t.candidate, "--problem", t.problem_id, "--processes",
                         std::to_string(kTrialProcesses), "--seconds", fmt::format("{:.1f}", timed)},
                        commands.device(), commands.store()),
                  t.problem_id);
    commands.note_cause(t);
  }
}

}  // namespace

const std::vector<PhasePlan>& campaign_phases() {
  static const std::vector<PhasePlan> phases = {
      {"environment", 0.04, "what the machine can do: ceilings and noise", true},
      {"correctness", 0.14, "whether the kernels are right on this machine", false, {}, true},
      {"baselines", 0.18, "the times of other attentions, and speed-ups over them", true, {}, true},
      {"evolution", 0.32, "what is faster than dispatch's choice", true},
      {"profile", 0.06, "what the bottlenecks are, and when each warp waits", false, {"evolution"}},
      {"inversion", 0.07, "what would help most", false, {"evolution"}},
      {"trials", 0.06, "whether what the ranking points to is faster", true, {"evolution", "profile", "inversion"}},
      {"crosscheck", 0.05, "whether another tool measures the same", true, {"evolution"}},
      {"gate", 0.07, "whether anything is slower than it was", true, {"baselines", "evolution"}},
      {"artefacts",
       0.01,
       "the page and the account",
       false,
       {"environment", "correctness", "baselines", "evolution", "profile", "inversion", "trials", "crosscheck",
        "gate"}},
  };
  return phases;
}

const PhasePlan* find_phase_plan(std::string_view name) {
  for (const PhasePlan& phase : campaign_phases())
    if (phase.name == name) return &phase;
  return nullptr;
}

const PhasePlan& phase_plan(std::string_view name) {
  if (const PhasePlan* phase = find_phase_plan(name)) return *phase;
  throw_internal("no phase is named '{}'", name);
}

bool is_timeless(std::string_view phase, const DeviceInfo& device) {
  return device.limits.emulated && phase_plan(phase).needs_time;
}

std::filesystem::path recorded_baseline(const CampaignOptions& options) { return options.folder / "baseline.json"; }

std::vector<CampaignCommand> commands_of(std::string_view phase, const CampaignOptions& options,
                                         const CampaignState& state, double seconds) {
  Commands commands(phase, options);
  const auto device = commands.device(), suite = commands.suite(), store = commands.store();
  if (phase == "environment") {
    commands.verb(words({"doctor"}, device));
  } else if (phase == "correctness") {
    commands.verb(words({"check"}, suite, device));
  } else if (phase == "baselines") {
    commands.verb(words({"bench"}, suite, device, store));
    if (options.baseline.empty())
      commands.verb(words({"gate", "--write-baseline", recorded_baseline(options).string()}, suite, device, store), {},
                    false);
    commands.python(words({"-m", "flashcore.peers"}, suite, device, store));
  } else if (phase == "evolution") {
    commands.verb(words({"tune", "--budget", fmt::format("{:.0f}s", std::max(1.0, std::floor(seconds)))}, suite, device,
                        store, commands.ledger(), options.stop_loss));
  } else if (phase == "profile" || phase == "inversion") {
    for (const NamedProblem& named : deep_problems(options))
      commands.verb(words({phase == "profile" ? "profile" : "invert", "--problem", named.problem.id()}, device),
                    named.problem.id());
    if (phase == "profile") add_timeline(commands, options);
  } else if (phase == "trials") {
    add_trials(commands, options, state, seconds);
  } else if (phase == "crosscheck") {
    const auto deep = deep_problems(options);
    if (!deep.empty())
      commands.verb(words({"crosscheck", "--problem", deep.front().problem.id(), "--python", options.python,
                           "--tool-time", fmt::format("{:.0f}s", std::max(10.0, seconds / kCrosscheckParts))},
                          device),
                    deep.front().problem.id());
  } else if (phase == "gate") {
    const std::string baseline = options.baseline.empty() ? recorded_baseline(options).string() : options.baseline;
    // Without one there is nothing to hold times against.
    if (std::error_code error; std::filesystem::exists(baseline, error))
      commands.verb(words({"gate", "--baseline", baseline}, suite, device, store));
  } else if (phase == "artefacts") {
    const std::vector<std::string> price =
        options.price.empty() ? std::vector<std::string>() : std::vector<std::string>{"--price", options.price};
    commands.verb(
        words({"report", "--out", commands.path("report.html"), "--campaign", options.folder.string()}, price), {},
        false);
    // An emulated GPU times nothing, and leaves no trial to account for.
    if (std::error_code error; std::filesystem::exists(options.folder / kCampaignStore, error))
      commands.verb(words({"economics"}, price, store));
  } else {
    // Without commands it would be told that no problem has a row to compute.
    throw_internal("the phase '{}' has no commands", phase);
  }
  auto made = commands.take();
  if (phase_plan(phase).of_table_before)
    for (CampaignCommand& command : made) command.variables["FLASHCORE_TUNED"] = commands.path(kTunedBefore);
  return made;
}

double seconds_for(const CampaignState& state, const DeviceInfo& device, std::string_view phase, double seconds_left) {
  if (is_timeless(phase, device)) return 0;
  double to_come = 0;
  for (const CampaignPhase& p : state.phases)
    if (p.status != PhaseStatus::kDone && !is_timeless(p.name, device)) to_come += phase_plan(p.name).share;
  const double share = phase_plan(phase).share;
  return std::max(kLeastPhaseSeconds, seconds_left * share / std::max(share, to_come));
}

}  // namespace flashcore
