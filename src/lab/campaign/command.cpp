#include "lab/campaign/command.h"

#include <algorithm>
#include <chrono>

#include "core/child_process.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/process_end.h"
#include "lab/campaign/fields.h"
#include "lab/gates/pair.h"
#include "lab/process/python_package.h"
#include "lab/record/machine.h"
#include "lab/record/outcome.h"

namespace flashcore {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// From SIGINT to the kill: a verb ends within seconds and keeps the results that it has.
constexpr std::chrono::seconds kInterruptGrace{5};
// Exit codes: the verb's own for an environment that lacks something, and of a program that could not be executed.
constexpr int kLacksSomething = 4, kNotStarted = 127;
// Of each end of a log. A program that writes more is chatty or broken; its verdict is in the last line all the same.
constexpr std::size_t kKeptLog = std::size_t{2} << 20;

// The head and the tail of an output, and in between what was cut.
class KeptLog {
 public:
  void add(std::string_view text) {
    const std::string_view first = text.substr(0, kKeptLog - head_.size());
    head_ += first;
    tail_ += text.substr(first.size());
    // Twice as much is kept meanwhile: to cut at each line would move 2 MiB for each.
    if (tail_.size() > 2 * kKeptLog) cut_tail();
  }
  std::string text() {
    if (tail_.size() > kKeptLog) cut_tail();
    return head_ + (cut_ > 0 ? fmt::format("\n[{} bytes cut]\n", cut_) : "") + tail_;
  }

 private:
  void cut_tail() {
    const std::size_t more = tail_.size() - kKeptLog;
    tail_.erase(0, more);
    cut_ += more;
  }
  std::string head_, tail_;
  std::size_t cut_ = 0;
};

// The last line that is no warning: a verb's verdict comes before those.
std::string said_in(const std::string& errors, const std::string& output) {
  std::string last;
  for (const std::string* text : {&errors, &output}) {
    std::string_view rest = *text;
    while (!rest.empty()) {
      const std::size_t start = rest.rfind('\n');
      const std::string_view line = start == std::string_view::npos ? rest : rest.substr(start + 1);
      const std::size_t word = line.find_first_not_of(' ');
      const bool warns = word == std::string_view::npos || line.substr(word).starts_with("warning: ") ||
                         line.starts_with("flashcore: warning: ");
      if (!warns) return excerpt(std::string(line.substr(word)), 300);
      if (last.empty() && word != std::string_view::npos) last = excerpt(std::string(line.substr(word)), 300);
      rest = start == std::string_view::npos ? std::string_view() : rest.substr(0, start);
    }
  }
  return last;
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

// Of crosscheck, which could not judge: no tool that is another than this program gave a time. Without PyTorch none
// does.
bool lacks_tools(const json& document) {
  const json& results = lenient::list(document, "results");
  return !results.empty() && std::all_of(results.begin(), results.end(), [](const json& result) {
    const json& methods = lenient::list(result, "methods");
    return !methods.empty() && std::all_of(methods.begin(), methods.end(), [](const json& method) {
      return lenient::flag(method, "in_process").value_or(false) || !lenient::field(method, "time_us").is_object();
    });
  });
}

// Of crosscheck: a tool was ended at --tool-time, which a campaign makes of its budget.
bool cut_a_tool(const json& document) {
  for (const json& result : lenient::list(document, "results"))
    for (const json& method : lenient::list(result, "methods"))
      if (lenient::flag(method, "out_of_time").value_or(false)) return true;
  return false;
}

// Cores that other programs kept busy meanwhile, the most that a document tells anywhere in it; below 0: it tells none.
double most_others_busy(const json& j) {
  double most = j.is_object() ? lenient::number(j, "others_busy").value_or(-1) : -1;
  if (j.is_structured())
    for (const json& value : j) most = std::max(most, most_others_busy(value));
  return most;
}

// A gate names its device by the key alone.
bool is_of_cpu(const json& result) {
  const json& device = lenient::field(result, "device");
  const std::string name = device.is_string() ? lenient::text(result, "device") : lenient::text(device, "id");
  return name.starts_with("cpu");
}

// Of a gate's row, which has the verdicts of ab: a busy machine did not keep it from judging.
bool has_judged(const json& result) {
  const std::string verdict = lenient::text(result, "verdict");
  return verdict == to_string(SpeedVerdict::kFaster) || verdict == to_string(SpeedVerdict::kSame) ||
         verdict == to_string(SpeedVerdict::kSlower) || verdict == to_string(SpeedVerdict::kWrong);
}

// Of crosscheck, ab and gate, which could not judge: the cores that others kept busy, where that accounts for it. A
// GPU's clock does not see what a host's other programs do.
double busy_cores_of(std::string_view phase, const json& document) {
  if (phase != "crosscheck" && phase != "trials" && phase != "gate") return 0;
  double most = 0;
  for (const json& result : lenient::list(document, "results"))
    if (is_of_cpu(result) && !has_judged(result)) most = std::max(most, most_others_busy(result));
  return most >= kBusyCores ? most : 0;
}

// A verb says that Ctrl-C stopped it, whoever sent SIGINT. Of a command whose time was over it was the campaign.
std::string without_ctrl_c(std::string said) {
  const std::size_t at = said.find(kStoppedByCtrlC);
  if (at != std::string::npos) said.erase(at, std::string_view(kStoppedByCtrlC).size());
  return said;
}

}  // namespace

CommandEnd run_command(const std::vector<std::string>& argv, const Variables& variables,
                       const std::filesystem::path& log, double seconds, const std::function<bool()>& stop) {
  CommandEnd end;
  std::vector<std::string> command = argv;
  if (!command.empty() && command.front().find('/') == std::string::npos) {
    command.front() = find_program(command.front());
    if (command.front().empty()) {
      end.how = fmt::format("{} is not on PATH", argv.front());
      end.no_program = true;
      return end;
    }
  }
  // By env, which becomes the program: this process's own environment stays as it is.
  if (!variables.empty()) {
    std::vector<std::string> prefix = {find_program("env")};
    for (const auto& [name, value] : variables) prefix.push_back(name + "=" + value);
    command.insert(command.begin(), prefix.begin(), prefix.end());
  }
  ChildProcess child(command);
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  KeptLog log_kept;
  std::string line;
  const auto read_until = [&](Clock::time_point until, const std::function<bool()>& cancelled) {
    auto talk = ChildProcess::Talk::kDone;
    while ((talk = child.read_line(line, until, cancelled)) == ChildProcess::Talk::kDone) log_kept.add(line + "\n");
    return talk;
  };
  const auto take_end = [&] {
    const std::string how = child.how_it_ended();
    if (how.starts_with("exited")) end.exit_code = child.exit_code();
    else end.how = how;
  };
  const auto talk = read_until(deadline, stop);
  if (talk == ChildProcess::Talk::kClosed) {
    take_end();
  } else {
    end.cancelled = talk == ChildProcess::Talk::kCancelled;
    child.interrupt();
    const bool ended = read_until(Clock::now() + kInterruptGrace, {}) == ChildProcess::Talk::kClosed;
    if (!ended) child.kill();
    if (end.cancelled && ended) take_end();
    else if (end.cancelled) end.how = fmt::format("was killed {} s later", kInterruptGrace.count());
    else if (talk == ChildProcess::Talk::kTimeout) {
      end.how = fmt::format("was still running after {:.0f} s and was ended by the campaign", seconds);
      end.out_of_time = true;
    } else end.how = "wrote a line without end and was ended";
  }
  log_kept.add(child.take_unfinished_line());
  std::string kept = log_kept.text();
  const std::string errors = child.stderr_tail();
  // A verb that judged and failed says it in the last line of its summary.
  if (!kept.empty() && kept.back() == '\n') kept.pop_back();
  end.said = said_in(errors, kept);
  write_file_atomically(log, kept + (kept.empty() ? "" : "\n") + errors + (errors.empty() ? "" : "\n"));
  return end;
}

void judge_command(CampaignCommand& command, const CommandEnd& end, std::string_view phase, const json& document) {
  command.exit_code = end.exit_code;
  const std::string said = end.said.empty() ? "" : ": " + (end.out_of_time ? without_ctrl_c(end.said) : end.said);
  command.verdict = PhaseVerdict::kNotJudged;
  command.lacked = end.no_program || end.exit_code == kLacksSomething || end.exit_code == kNotStarted;
  const bool is_python = command.argv.size() > 1 && command.argv[1] == "-m";
  if (const std::string package = missing_package(end.said); is_python && end.exit_code > 0 && !package.empty()) {
    command.reason = "skipped: " + missing_package_words(package, command.argv.front());
    command.lacked = true;
  } else if (end.exit_code < 0) {
    command.reason =
        "the command " + end.how +
        (end.out_of_time ? fmt::format(" ({}; a larger --budget or --patience gives it longer)", kTriedAgain) : "") +
        said;
  } else if (end.exit_code == 0) {
    command.verdict = PhaseVerdict::kPassed;
  } else if (end.said.find("unknown verb") != std::string::npos) {
    command.reason = fmt::format("this flashcore has no verb '{}'", command.argv.size() > 1 ? command.argv[1] : "");
  } else if (phase == "trials" && end.exit_code == 1 && is_slower(document)) {
    command.verdict = PhaseVerdict::kPassed;  // that it is slower is an answer
  } else if (end.exit_code == 1 && is_python && !document.is_object()) {
    command.lacked = true;  // a program that ends so before its work lacks what it imports
    command.reason = fmt::format("{} ended with 1 before it judged anything{}", command.argv.front(), said);
  } else if (end.exit_code == 1) {
    command.verdict = PhaseVerdict::kFailed;
    command.reason = "it judged, and failed" + said;
  } else {
    command.lacked = command.lacked || (end.exit_code == 2 && phase == "crosscheck" && lacks_tools(document));
    const std::string what = end.exit_code == 3                 ? "it was not accepted"
                             : end.exit_code == kLacksSomething ? "the environment lacks something"
                                                                : fmt::format("it ended with {}", end.exit_code);
    // That 2 could not judge is the verdict, which stands before the reason.
    command.reason = end.exit_code == 2 && !end.said.empty() ? end.said : what + said;
  }
  const double others = end.exit_code == 2 ? busy_cores_of(phase, document) : 0;
  command.busy = others > 0;
  if (command.busy)
    command.reason += fmt::format("; the machine was busy: other programs kept up to {:.1f} cores busy", others);
  if (command.lacked || command.busy) command.reason += fmt::format("; {}", kTriedAgain);
  if (command.lacked && phase == "crosscheck" && cut_a_tool(document))
    command.reason += ", and a larger --budget gives it longer (--tool-time is a third of the phase's share)";
  if (phase == "trials" && (end.exit_code == 0 || end.exit_code == 1 || end.exit_code == 2))
    if (const json& results = lenient::list(document, "results"); !results.empty())
      command.answer = lenient::text(results.front(), "verdict");
}

}  // namespace flashcore
