#include "lab/campaign/run.h"

#include <algorithm>
#include <chrono>

#include "core/child_process.h"
#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/process_end.h"
#include "lab/campaign/fields.h"
#include "lab/campaign/summary.h"
#include "lab/gates/pair.h"
#include "lab/record/trial.h"

namespace flashcore {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// A phase gets at least so long before it is ended: starting a process and opening a GPU takes seconds.
constexpr double kLeastLimitSeconds = 30;
constexpr std::size_t kKeptLog = std::size_t{4} << 20;

double seconds_from(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string last_line_of(const std::string& text) {
  const std::size_t start = text.rfind('\n');
  return excerpt(start == std::string::npos ? text : text.substr(start + 1), 300);
}

// Of ab, whose exit code is 1 for a candidate that failed its gates and for an inert field, too.
bool is_slower(const json& document) {
  const json& results = lenient::list(document, "results");
  return !results.empty() && std::all_of(results.begin(), results.end(), [](const json& result) {
    return lenient::text(result, "ended") == to_string(PairEnded::kMeasured) &&
           lenient::text(result, "verdict") == to_string(SpeedVerdict::kSlower) &&
           lenient::list(result, "inert_fields").empty();
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
    for (const CampaignPhase& phase : state_.phases) spent_before_ += phase.seconds;
    for (CampaignPhase& phase : state_.phases) {
      if (phase.status == PhaseStatus::kDone) continue;
      if (stop_ && stop_()) break;
      run_phase(phase);
      if (phase.status != PhaseStatus::kDone) break;
    }
    state_.interrupted = stop_ && stop_();
    if (!state_.interrupted) state_.ended_at = now_iso8601();
    save_state(options_.folder, state_);
    return state_;
  }

 private:
  void run_phase(CampaignPhase& phase) {
    phase = {.name = phase.name, .status = PhaseStatus::kRunning, .started_at = now_iso8601()};
    const double left = options_.budget_seconds - spent_before_ - seconds_from(start_);
    phase.budget_seconds = seconds_for(state_, phase.name, left);
    save_state(options_.folder, state_);
    if (told_) told_(state_, phase);
    const auto start = Clock::now();
    if (phase_plan(phase.name).needs_time && options_.device.limits.emulated) {
      phase.reason = "an emulated GPU has no time";
    } else {
      phase.commands = commands_of(phase.name, options_, state_, phase.budget_seconds);
      if (phase.commands.empty()) phase.reason = nothing_to_run(phase.name);
      for (CampaignCommand& command : phase.commands) {
        const double limit =
            std::max(kLeastLimitSeconds, options_.hard_limit * phase.budget_seconds - seconds_from(start));
        if (!run_one(command, phase.name, limit)) {
          // Interrupted: the phase is in flight, and is run again by whoever goes on.
          phase.seconds = seconds_from(start);
          save_state(options_.folder, state_);
          return;
        }
        save_state(options_.folder, state_);
      }
    }
    phase.seconds = seconds_from(start);
    judge_phase(phase);
    phase.status = PhaseStatus::kDone;
    save_state(options_.folder, state_);
    if (told_) told_(state_, phase);
  }

  static std::string nothing_to_run(std::string_view phase) {
    return phase == "trials" ? "neither profile nor inversion ranked anything that a tile parameter answers"
                             : "no problem of the suite has a row to compute";
  }

  bool run_one(CampaignCommand& command, std::string_view phase, double limit) {
    command.started_at = now_iso8601();
    // What an earlier attempt left must not be read as this one's.
    std::error_code ignored;
    if (!command.json.empty()) std::filesystem::remove(options_.folder / command.json, ignored);
    const auto start = Clock::now();
    const CommandEnd end = run_(command.argv, options_.folder / command.log, limit, stop_);
    command.seconds = seconds_from(start);
    if (end.cancelled) return false;
    judge_command(command, end, phase, result_of(options_.folder, command));
    return true;
  }

  const CampaignOptions& options_;
  CampaignState state_;
  const std::function<void(const CampaignState&, const CampaignPhase&)>& told_;
  const std::function<bool()>& stop_;
  const RunCommand& run_;
  Clock::time_point start_ = Clock::now();
  double spent_before_ = 0;
};

CampaignState blank_state(const CampaignOptions& options) {
  CampaignState state;
  state.version = FLASHCORE_VERSION;
  state.device = options.device.id;
  state.device_key = options.device.key;
  state.suite = options.suite;
  for (const NamedProblem& named : options.problems.problems) state.problems.push_back(named.problem.id());
  state.budget_seconds = options.budget_seconds;
  state.started_at = now_iso8601();
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

CommandEnd run_command(const std::vector<std::string>& argv, const std::filesystem::path& log, double seconds,
                       const std::function<bool()>& stop) {
  CommandEnd end;
  std::vector<std::string> command = argv;
  if (!command.empty() && command.front().find('/') == std::string::npos) {
    command.front() = find_program(command.front());
    if (command.front().empty()) {
      end.how = fmt::format("{} is not on PATH", argv.front());
      return end;
    }
  }
  ChildProcess child(command);
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  std::string kept, line;
  auto talk = ChildProcess::Talk::kDone;
  while ((talk = child.read_line(line, deadline, stop)) == ChildProcess::Talk::kDone)
    if (kept.size() < kKeptLog) kept += line + "\n";
  if (talk == ChildProcess::Talk::kCancelled) {
    child.kill();
    end.cancelled = true;
    return end;
  }
  if (talk == ChildProcess::Talk::kClosed) {
    const std::string how = child.how_it_ended();
    if (how.starts_with("exited")) end.exit_code = child.exit_code();
    else end.how = how;
  } else {
    child.kill();
    end.how = talk == ChildProcess::Talk::kTimeout
                  ? fmt::format("was still running after {:.0f} s and was ended", seconds)
                  : "wrote a line without end and was ended";
  }
  const std::string errors = child.stderr_tail();
  // A verb that judged and failed says it in the last line of its summary.
  if (!kept.empty() && kept.back() == '\n') kept.pop_back();
  end.said = last_line_of(errors.empty() ? kept : errors);
  write_file_atomically(log, kept + (kept.empty() ? "" : "\n") + errors + (errors.empty() ? "" : "\n"));
  return end;
}

void judge_command(CampaignCommand& command, const CommandEnd& end, std::string_view phase, const json& document) {
  command.exit_code = end.exit_code;
  const std::string said = end.said.empty() ? "" : ": " + end.said;
  command.verdict = PhaseVerdict::kNotJudged;
  if (end.exit_code < 0) {
    command.reason = "the command " + end.how + said;
  } else if (end.exit_code == 0) {
    command.verdict = PhaseVerdict::kPassed;
  } else if (end.said.find("unknown verb") != std::string::npos) {
    command.reason = fmt::format("this flashcore has no verb '{}'", command.argv.size() > 1 ? command.argv[1] : "");
  } else if (phase == "trials" && end.exit_code == 1 && is_slower(document)) {
    command.verdict = PhaseVerdict::kPassed;  // that it is slower is an answer
  } else if (end.exit_code == 1) {
    command.verdict = PhaseVerdict::kFailed;
    command.reason = "it judged, and failed" + said;
  } else {
    command.reason = fmt::format("{}{}",
                                 end.exit_code == 2   ? "it could not judge"
                                 : end.exit_code == 3 ? "it was not accepted"
                                 : end.exit_code == 4 ? "the environment lacks something"
                                                      : fmt::format("it ended with {}", end.exit_code),
                                 said);
  }
}

void judge_phase(CampaignPhase& phase) {
  int passed = 0;
  std::string failed, unjudged;
  const auto add = [](std::string& all, const std::string& reason) { all += (all.empty() ? "" : "; ") + reason; };
  for (const CampaignCommand& command : phase.commands) {
    passed += command.verdict == PhaseVerdict::kPassed ? 1 : 0;
    if (command.verdict == PhaseVerdict::kFailed) add(failed, command.reason);
    if (command.verdict == PhaseVerdict::kNotJudged && unjudged.find(command.reason) == std::string::npos)
      add(unjudged, command.reason);
  }
  const auto count = static_cast<int>(phase.commands.size());
  // Of trials each is a question of its own.
  const bool enough = phase.name == "trials" ? passed > 0 : count > 0 && passed == count;
  phase.verdict = !failed.empty() ? PhaseVerdict::kFailed : enough ? PhaseVerdict::kPassed : PhaseVerdict::kNotJudged;
  if (!failed.empty()) phase.reason = failed + (unjudged.empty() ? "" : "; " + unjudged);
  else if (!unjudged.empty()) phase.reason = unjudged;
  if (phase.verdict == PhaseVerdict::kNotJudged) phase.reason += fmt::format("; lost: {}", phase_plan(phase.name).lost);
}

CampaignResult run_campaign(const CampaignOptions& options, std::optional<CampaignState> earlier,
                            const std::function<void(const CampaignState&, const CampaignPhase&)>& told,
                            const std::function<bool()>& stop, const RunCommand& run) {
  CampaignState state = blank_state(options);
  if (earlier) {
    require_same_campaign(*earlier, state, options.folder.string());
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
