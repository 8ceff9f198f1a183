#include "lab/campaign/run.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "kernels/source_hash.h"
#include "lab/campaign/summary.h"
#include "lab/record/trial.h"

namespace flashcore {
namespace {

using nlohmann::json;

// Without the amounts of time, which follow a phase's share.
std::vector<std::string> without_times(const std::vector<std::string>& argv) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < argv.size(); ++i) {
    words.push_back(argv[i]);
    if (argv[i] == "--budget" || argv[i] == "--seconds" || argv[i] == "--tool-time") ++i;
  }
  return words;
}

bool is_same_command(const CampaignCommand& then, const CampaignCommand& now) {
  return then.json == now.json && then.log == now.log && without_times(then.argv) == without_times(now.argv);
}

// The trials that the phase's share was too short to begin.
bool was_not_begun(const CampaignCommand& command) { return command.out_of_time && command.started_at.empty(); }

// Whether an earlier attempt's command need not run again: it judged, and all that it wrote is there.
bool still_holds(const std::filesystem::path& folder, const CampaignCommand& then, const CampaignCommand& now) {
  if (then.verdict == PhaseVerdict::kNotJudged || (then.exit_code != 0 && then.exit_code != 1)) return false;
  if (!is_same_command(then, now)) return false;
  std::error_code error;
  const auto is_there = [&](const std::filesystem::path& file) { return std::filesystem::exists(file, error); };
  if (!is_there(folder / then.log)) return false;
  if (!then.json.empty() && !result_of(folder, then).is_object()) return false;
  // Its store, its baseline, its page.
  return std::all_of(then.argv.begin() + 1, then.argv.end(), [&](const std::string& word) {
    const std::filesystem::path file(word);
    return file.parent_path() / "" != folder / "" || is_there(file);
  });
}

class Campaign {
 public:
  Campaign(const CampaignOptions& options, CampaignState state,
           const std::function<void(const CampaignState&, const CampaignPhase&)>& told,
           const std::function<bool()>& stop, const RunCommand& run)
      : options_(options), state_(std::move(state)), told_(told), stop_(stop), run_(run) {}

  CampaignState go() {
    state_.interrupted = false;
    state_.ended_at.clear();
    reopen_phases();
    for (CampaignPhase& phase : state_.phases) {
      if (phase.status == PhaseStatus::kDone) continue;
      if (stop_ && stop_()) break;
      if (const auto kept = readers_.find(phase.name); kept != readers_.end() && !reads_any_of(phase, changed_)) {
        phase = kept->second;
        continue;
      }
      const std::vector<CampaignCommand> before = phase.commands;
      run_phase(phase);
      if (phase.status != PhaseStatus::kDone) break;
      if (!still_lacks(phase, before)) changed_.push_back(phase.name);
    }
    // A signal that comes with the last command leaves nothing to go on with.
    state_.interrupted = stop_ && stop_() && !all_done();
    if (!state_.interrupted) state_.ended_at = now_iso8601();
    save_state(options_.folder, state_);
    return state_;
  }

 private:
  bool all_done() const {
    return std::all_of(state_.phases.begin(), state_.phases.end(),
                       [](const CampaignPhase& phase) { return phase.status == PhaseStatus::kDone; });
  }

  // Of an earlier attempt: what was cut for time, what lacked a program or a package, what a busy machine kept from
  // judging, what lost its files, and what would run otherwise now (another --python or --baseline). What read the
  // results of a phase that is tried again has read too little, and keeps nothing.
  void reopen_phases() {
    std::vector<std::string> again;
    for (CampaignPhase& phase : state_.phases) {
      if (phase.status != PhaseStatus::kDone) continue;
      const bool open = std::any_of(phase.commands.begin(), phase.commands.end(),
                                    [](const CampaignCommand& c) { return c.out_of_time || c.lacked || c.busy; });
      const bool stands = !open && still_stands(phase);
      const bool read_it = reads_any_of(phase, again);
      if (stands && !read_it) continue;
      if (stands) readers_[phase.name] = phase;
      again.push_back(phase.name);
      phase.status = PhaseStatus::kInterrupted;
      if (read_it) phase.commands.clear();
    }
  }

  static bool reads_any_of(const CampaignPhase& phase, const std::vector<std::string>& names) {
    const auto& reads = phase_plan(phase.name).reads;
    return std::find_first_of(reads.begin(), reads.end(), names.begin(), names.end()) != reads.end();
  }

  // Tried again for what was missing, and it is missing still: whoever read its results has read them all.
  static bool still_lacks(const CampaignPhase& phase, const std::vector<CampaignCommand>& before) {
    return !before.empty() && std::equal(phase.commands.begin(), phase.commands.end(), before.begin(), before.end(),
                                         [](const CampaignCommand& now, const CampaignCommand& then) {
                                           return now.kept || (now.lacked && then.lacked);
                                         });
  }

  bool still_stands(const CampaignPhase& phase) const {
    if (is_timeless(phase.name, options_.device)) return true;
    if (phase.name == "baselines" && lacks_baseline()) return false;
    const auto now = commands_of(phase.name, options_, state_, phase.budget_seconds);
    return now.size() == phase.commands.size() &&
           std::equal(now.begin(), now.end(), phase.commands.begin(),
                      [&](const CampaignCommand& command, const CampaignCommand& then) {
                        const bool judged = then.verdict != PhaseVerdict::kNotJudged;
                        return judged ? still_holds(options_.folder, then, command) : is_same_command(then, command);
                      });
  }

  void run_phase(CampaignPhase& phase) {
    const std::vector<CampaignCommand> earlier = std::move(phase.commands);
    const double earlier_seconds = phase.seconds;  // also of attempts of which nothing is kept: the machine was held
    phase = {
        .name = phase.name, .status = PhaseStatus::kRunning, .started_at = now_iso8601(), .seconds = earlier_seconds};
    phase.budget_seconds =
        seconds_for(state_, options_.device, phase.name, options_.budget_seconds - seconds_from(start_));
    const bool timeless = is_timeless(phase.name, options_.device);
    const bool table_is_lost = !timeless && phase_plan(phase.name).of_table_before && !keep_table_before();
    if (!timeless && !table_is_lost) phase.commands = commands_of(phase.name, options_, state_, phase.budget_seconds);
    keep_ended(phase, earlier);
    save_state(options_.folder, state_);
    if (told_) told_(state_, phase);
    const double start = options_.now_seconds();
    if (timeless) {
      phase.reason = "an emulated GPU has no time";
      if (phase.name == "evolution")
        phase.reason += fmt::format(
            ", and a search is for the fastest; `flashcore tune --device {}` searches by itself, and runs the gates of "
            "what it proposes",
            options_.device.id);
    } else if (table_is_lost) {
      phase.reason = fmt::format(
          "{} is gone or damaged, and the evolution may have changed what dispatch chooses: nothing tells what it "
          "chose "
          "before; begin anew in another folder",
          kTunedBefore);
    } else {
      if (phase.commands.empty()) phase.reason = nothing_to_run(phase.name);
      if (!run_commands(phase, start)) {
        // Interrupted: the phase is in flight, and whoever goes on runs what has not ended.
        phase.seconds = earlier_seconds + seconds_from(start);
        phase.status = PhaseStatus::kInterrupted;
        phase.reason = "interrupted; --resume goes on with it";
        save_state(options_.folder, state_);
        return;
      }
    }
    phase.seconds = earlier_seconds + seconds_from(start);
    judge_phase(phase);
    phase.status = PhaseStatus::kDone;
    save_state(options_.folder, state_);
    if (told_) told_(state_, phase);
  }

  // False: it was interrupted.
  bool run_commands(CampaignPhase& phase, double start) {
    bool one_ran = false;
    for (CampaignCommand& command : phase.commands) {
      if (command.kept) continue;
      // Each trial is a question of its own, and how long the gates of one take is known once it has run. So the share
      // bounds how many are begun; cut in the middle, the last of them would judge nothing.
      if (phase.name == "trials" && one_ran && seconds_from(start) >= phase.budget_seconds) {
        command.out_of_time = true;
        command.reason = fmt::format("not run: the phase's share of {:.0f} s was over", phase.budget_seconds);
        continue;
      }
      const double limit =
          std::max(kLeastLimitSeconds, options_.hard_limit * phase.budget_seconds - seconds_from(start));
      if (!run_one(command, phase.name, limit)) return false;
      one_ran = true;
      save_state(options_.folder, state_);
    }
    return true;
  }

  double seconds_from(double start) const { return options_.now_seconds() - start; }

  // What an earlier attempt at the phase has done already.
  void keep_ended(CampaignPhase& phase, const std::vector<CampaignCommand>& earlier) const {
    for (CampaignCommand& command : phase.commands) {
      const auto then = std::find_if(earlier.begin(), earlier.end(), [&](const CampaignCommand& c) {
        return still_holds(options_.folder, c, command);
      });
      if (then == earlier.end()) continue;
      command = *then;
      command.kept = true;
    }
  }

  bool lacks_baseline() const {
    std::error_code error;
    return options_.baseline.empty() && !std::filesystem::exists(recorded_baseline(options_), error);
  }

  // Keeps a copy of the tuned table as it was before the evolution. False: the evolution has begun, and no copy was
  // kept.
  bool keep_table_before() {
    if (kept_tuned_table(options_.folder)) return true;
    const CampaignPhase* evolution = state_.find("evolution");
    if (evolution && !evolution->started_at.empty()) return false;
    keep_tuned_table(options_.folder);
    return true;
  }

  std::string nothing_to_run(std::string_view phase) const {
    if (phase == "gate") {
      const CampaignPhase* baselines = state_.find("baselines");
      std::string why = "it said nothing of why";
      for (const CampaignCommand& command : baselines->commands)
        if (command.argv.size() > 1 && command.argv[1] == "gate" && !command.reason.empty()) why = command.reason;
      return fmt::format("there is no baseline: the baselines phase recorded none ({}); {}", why, kTriedAgain);
    }
    return phase == "trials" ? "neither profile nor inversion ranked anything that a tile parameter answers"
                             : "no problem of the suite has a row to compute";
  }

  bool run_one(CampaignCommand& command, std::string_view phase, double limit) {
    command.started_at = now_iso8601();
    // What an earlier attempt left must not be read as this one's.
    std::error_code ignored;
    if (!command.json.empty()) std::filesystem::remove(options_.folder / command.json, ignored);
    const double start = options_.now_seconds();
    const CommandEnd end = run_(command.argv, command.variables, options_.folder / command.log, limit, stop_);
    command.seconds = seconds_from(start);
    if (end.cancelled) {
      command.exit_code = end.exit_code;
      command.reason = "it was interrupted" + (end.how.empty() ? "" : ", and " + end.how);
      return false;
    }
    const json document = result_of(options_.folder, command);
    judge_command(command, end, phase, document);
    if (phase == "gate" && command.verdict == PhaseVerdict::kPassed) command.reason = untimed_in(document);
    command.out_of_time = end.out_of_time;
    return true;
  }

  const CampaignOptions& options_;
  CampaignState state_;
  const std::function<void(const CampaignState&, const CampaignPhase&)>& told_;
  const std::function<bool()>& stop_;
  const RunCommand& run_;
  const double start_ = options_.now_seconds();
  std::map<std::string, CampaignPhase> readers_;  // reopened for what they read alone, as they were
  std::vector<std::string> changed_;              // phases that this attempt ran, and that came to something new
};

CampaignState blank_state(const CampaignOptions& options) {
  CampaignState state;
  state.version = FLASHCORE_VERSION;
  state.source_hash = source_hash();
  state.device = options.device.id;
  state.device_key = options.device.key;
  state.suite = options.suite;
  for (const NamedProblem& named : options.problems.problems) {
    state.problems.push_back(named.problem.id());
    state.names.push_back(named.name);
  }
  state.budget_seconds = options.budget_seconds;
  state.price_per_hour = parse_finite(options.price);
  state.started_at = now_iso8601();
  state.sessions = {{options.argv, state.started_at}};
  for (const PhasePlan& plan : campaign_phases()) state.phases.emplace_back().name = plan.name;
  return state;
}

// What was measured on another machine, or of other problems, is not gone on with.
void require_same_campaign(const CampaignState& earlier, const CampaignState& now, const std::string& folder) {
  const auto differs = [&](const char* what, const std::string& was, const std::string& is) {
    if (was != is)
      throw_bad_input(
          "--resume: the campaign in '{}' has the {} '{}', and '{}' was asked for: ask for the same, or give --out "
          "another folder",
          folder, what, excerpt(was), excerpt(is));
  };
  differs("version", earlier.version, now.version);
  if (earlier.source_hash != now.source_hash)
    throw_bad_input(
        "--resume: the campaign in '{}' is of other kernels (source hash {}, here {}), and results of two sources are "
        "no campaign: go back to that source, or give --out another folder",
        folder, earlier.source_hash.empty() ? "not recorded" : excerpt(earlier.source_hash), now.source_hash);
  differs("device", earlier.device_key, now.device_key);
  differs("suite", earlier.suite, now.suite);
  differs("problems", fmt::format("{}", fmt::join(earlier.problems, ",")),
          fmt::format("{}", fmt::join(now.problems, ",")));
  const auto names = [](const CampaignState& s) {
    std::string all;
    for (const CampaignPhase& p : s.phases) all += p.name + " ";
    return all;
  };
  differs("phases", names(earlier), names(now));
}

}  // namespace

// "6 trials: 1 faster, 4 inconclusive, 1 failed; details in ledger.json": of each a sentence is too much for a line.
std::string count_trials(const CampaignPhase& phase) {
  int failed = 0, silent = 0, busy = 0, not_run = 0;
  std::map<std::string, int> answers = {{std::string(to_string(SpeedVerdict::kFaster)), 0}};
  for (const CampaignCommand& command : phase.commands) {
    busy += command.busy ? 1 : 0;
    if (was_not_begun(command)) ++not_run;
    else if (command.verdict == PhaseVerdict::kFailed) ++failed;
    else if (command.answer.empty()) ++silent;
    else ++answers[command.answer];
  }
  std::string counts;
  const auto add = [&](int count, const std::string& what) {
    counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", count, what);
  };
  for (const auto& [answer, count] : answers) {
    std::string word = answer;
    std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::tolower(c); });
    add(count, word);
  }
  if (silent > 0) add(silent, "without an answer");
  if (failed > 0) add(failed, "failed");
  if (not_run > 0)
    counts += fmt::format(", {} not run, for the phase's share was over ({}; a larger --budget begins more)", not_run,
                          kTriedAgain);
  return fmt::format("{} trial{}: {}{}; details in ledger.json", phase.commands.size(),
                     phase.commands.size() == 1 ? "" : "s", counts,
                     busy == 0 ? "" : fmt::format("; the machine was busy during {} of them ({})", busy, kTriedAgain));
}

void judge_phase(CampaignPhase& phase) {
  int passed = 0;
  std::string failed, first_failed, unjudged, remarks;
  const auto add = [](std::string& all, const std::string& reason) { all += (all.empty() ? "" : "; ") + reason; };
  for (const CampaignCommand& command : phase.commands) {
    passed += command.verdict == PhaseVerdict::kPassed ? 1 : 0;
    if (command.verdict == PhaseVerdict::kPassed && !command.reason.empty()) add(remarks, command.reason);
    if (command.verdict == PhaseVerdict::kFailed) add(failed, command.reason);
    if (first_failed.empty()) first_failed = failed;
    if (command.verdict == PhaseVerdict::kNotJudged && unjudged.find(command.reason) == std::string::npos)
      add(unjudged, command.reason);
  }
  const auto count = static_cast<int>(phase.commands.size());
  // Of trials each is a question of its own.
  const bool enough = phase.name == "trials" ? passed > 0 : count > 0 && passed == count;
  phase.verdict = !failed.empty() ? PhaseVerdict::kFailed : enough ? PhaseVerdict::kPassed : PhaseVerdict::kNotJudged;
  if (phase.name == "trials" && count > 0)
    phase.reason = count_trials(phase) + (failed.empty() ? "" : "; of those that failed the first: " + first_failed);
  else if (!failed.empty()) phase.reason = failed + (unjudged.empty() ? "" : "; " + unjudged);
  else if (!unjudged.empty()) phase.reason = unjudged;
  else if (count > 0) phase.reason = remarks;
  if (phase.verdict == PhaseVerdict::kNotJudged) phase.reason += fmt::format("; lost: {}", phase_plan(phase.name).lost);
}

CampaignResult run_campaign(const CampaignOptions& options, std::optional<CampaignState> earlier,
                            const std::function<void(const CampaignState&, const CampaignPhase&)>& told,
                            const std::function<bool()>& stop, const RunCommand& run) {
  CampaignState state = blank_state(options);
  if (earlier) {
    require_same_campaign(*earlier, state, options.folder.string());
    earlier->sessions.push_back(state.sessions.front());
    earlier->price_per_hour = state.price_per_hour;
    state = std::move(*earlier);
    state.budget_seconds = options.budget_seconds;
  } else {
    keep_tuned_table(options.folder);
  }
  CampaignResult result;
  result.state = Campaign(options, std::move(state), told, stop, run).go();
  result.criteria = judge_criteria(options.folder, result.state);
  const auto write = [&](const char* name, const nlohmann::json& document) {
    write_file_atomically(options.folder / name,
                          document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  };
  // First of all, for it is what a person reads.
  write_file_atomically(options.folder / "summary.md", campaign_summary(options.folder, result.state, result.criteria));
  write("criteria.json", {{"schema", "flashcore.campaign_criteria/1"}, {"criteria", criteria_json(result.criteria)}});
  write("ledger.json", campaign_ledger(options.folder, result.state));
  write("tuned_diff.json", tuned_table_diff(options.folder));
  return result;
}

}  // namespace flashcore
