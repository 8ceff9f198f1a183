// flashcore submit: a config or a patched kernel of somebody's, through every gate, with each gate's verdict.

#include <algorithm>
#include <exception>
#include <iostream>
#include <sstream>

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/json_text.h"
#include "lab/record/json_io.h"
#include "lab/tune/arms.h"
#include "lab/tune/submission.h"

namespace flashcore::cli {

namespace {

// A patch is some tens of kilobytes; a file of many of them some megabytes.
constexpr std::size_t kMaxSubmissionBytes = std::size_t{16} << 20;

struct SubmitArguments {
  Common common;
  std::string file, arch;
  std::uint64_t seed = 1;
  bool compile_only = false, trust_code = false;
};

std::string read_submissions(const std::string& file) {
  if (file != "-") return read_file(file, kMaxSubmissionBytes);
  std::string text(kMaxSubmissionBytes + 1, '\0');
  std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::cin.gcount()));
  if (text.size() > kMaxSubmissionBytes)
    throw_bad_input("standard input has more than {} bytes; submit fewer at a time", kMaxSubmissionBytes);
  return text;
}

// Empty: it is a JSON object. Else what it is, or where it breaks off.
std::string why_no_object(const std::string& text, const std::string& what) {
  try {
    const nlohmann::json json = parse_json(text, what);
    if (json.is_object()) return "";
    return fmt::format("{} is JSON of type {}, not an object", what, json.type_name());
  } catch (const Error& error) {
    return error.what();
  }
}

// One JSON object, or one in each line. Lines that are none are named by their judge, but a document over many lines
// that is none is one mistake.
std::vector<std::string> answers_in(const std::string& text, const std::string& file) {
  std::vector<std::string> answers;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.find_first_not_of(" \t\r") != std::string::npos) answers.push_back(line);
  if (answers.size() < 2) return answers;
  const std::string why = why_no_object(text, file);
  if (why.empty()) return {text};
  const auto is_object = [&](const std::string& line) { return why_no_object(line, file).empty(); };
  const bool is_list = answers.front().find_first_not_of(" \t") == answers.front().find('[');
  // A line that breaks off, and the next one goes on with it.
  const bool goes_on =
      why_no_object(answers[0], file).find("unexpected end of input") != std::string::npos && !is_object(answers[1]);
  if (is_list || goes_on || std::none_of(answers.begin(), answers.end(), is_object))
    throw_bad_input("{}; give one JSON object, or one in each line, as docs/agents.md has it", why);
  return answers;
}

std::string verdict_of(const Submission& s) {
  if (s.ended == Ended::kPassed) return "passed";
  return s.ended == Ended::kEnvironment || s.ended == Ended::kInconclusive ? "not_judged" : "failed";
}

nlohmann::json submission_json(const Submission& s, const SubmissionJudge& judge, const NamedProblem& problem) {
  nlohmann::json gates = nlohmann::json::array();
  for (const Verdict& v : s.gates)
    gates.push_back({{"gate", v.gate}, {"status", v.status}, {"reason", v.reason}, {"evidence", v.evidence}});
  nlohmann::json json = {{"answer", s.answer},
                         {"candidate", s.candidate},
                         {"problem", problem.problem.id()},
                         {"device", judge.device().id},
                         {"verdict", verdict_of(s)},
                         {"ended", s.ended},
                         {"message", s.message},
                         {"stopped_by", nullptr},
                         {"gates", gates},
                         {"notes", s.notes},
                         {"unpatched_code", nullptr}};
  if (s.is_unpatched_code) json["unpatched_code"] = *s.is_unpatched_code;
  if (const Verdict* stopped = stopping_verdict(s)) {
    json["stopped_by"] = {{"gate", stopped->gate}, {"check", nullptr}, {"reason", stopped->reason}};
    // Of the emulator's stage: the gate that tripped there.
    if (stopped->evidence.is_object())
      for (const char* key : {"check", "gate"})
        if (stopped->evidence.contains(key))
          json["stopped_by"][std::string(key) == "gate" ? "on_the_emulator" : key] = stopped->evidence[key];
  }
  if (s.trial) json["trial"] = trial_summary(*s.trial);
  return encode_nonfinite(std::move(json));
}

void show(Console& console, Table& table, const Submission& s) {
  const std::string verdict = verdict_of(s);
  const Verdict* stopped = stopping_verdict(s);
  table.add({s.candidate.empty() ? s.answer : s.candidate,
             {verdict, verdict == "passed" ? Tone::kGood : Tone::kBad},
             stopped ? word_of(stopped->gate) : "-"});
  if (verdict != "passed") table.add_detail(s.candidate.empty() ? s.answer : s.candidate, s.message, Tone::kBad);
  for (const std::string& note : s.notes) console.line("{}: {}", s.candidate, note);
}

int run_submit(const SubmitArguments& options) {
  require_distinct({{"--json", options.common.json}}, {{"FILE", options.file == "-" ? "" : options.file}});
  check_json_target(options.common);
  if (options.common.problem.empty()) throw_bad_input("no problem was given; give --problem ID");
  if (!options.compile_only && !options.arch.empty())
    throw_bad_input("--arch was given without --compile-only: what a device runs is compiled for that device");
  SubmissionOptions submission;
  submission.problem = find_problem(load_suite("canonical"), options.common.problem);
  submission.problem.problem.validate();
  submission.compile_only = options.compile_only;
  submission.arch = options.arch.empty() ? "sm_90" : options.arch;
  submission.seed = options.seed;
  const std::string file = options.file == "-" ? "standard input" : excerpt(options.file);
  const std::vector<std::string> answers = answers_in(read_submissions(options.file), file);
  if (answers.empty()) throw_bad_input("{} holds no answer; docs/agents.md has the form", file);
  if (!options.compile_only) submission.device = describe_device(options.common.device).id;
  SubmissionJudge judge(submission, interrupted);
  Console console(options.common.quiet, json_on_stdout(options.common));
  Table table({"candidate", "verdict", "stopped by"});
  nlohmann::json results = nlohmann::json::array();
  int passed = 0, failed = 0, lacking = 0, of_other_device = 0;
  // What ended the machine's work is told after what was judged until then.
  std::exception_ptr broken;
  for (const std::string& answer : answers) {
    if (interrupted()) break;
    try {
      const Submission judged = judge.judge(answer);
      const std::string verdict = verdict_of(judged);
      passed += verdict == "passed";
      failed += verdict == "failed";
      lacking += judged.ended == Ended::kEnvironment;
      of_other_device += judged.is_of_other_device;
      show(console, table, judged);
      results.push_back(submission_json(judged, judge, submission.problem));
      console.progress(static_cast<std::int64_t>(results.size()), static_cast<std::int64_t>(answers.size()),
                       judged.candidate);
    } catch (const Cancelled&) {
      break;
    } catch (const std::exception&) {
      broken = std::current_exception();
      break;
    }
  }
  console.end_progress();
  console.table(table);
  write_json(options.common, {{"schema", "flashcore.submit/1"},
                              {"passed", passed},
                              {"failed", failed},
                              {"lacking", lacking},
                              {"results", results}});
  const auto total = static_cast<std::int64_t>(answers.size());
  const int unjudged = static_cast<int>(results.size()) - passed - failed - lacking;
  const std::string elsewhere =
      of_other_device > 0 ? fmt::format(", {} of GPUs not tried, since {} is none", of_other_device, judge.device().id)
                          : "";
  console.summary("{}: {} passed, {} failed{}{}{}{}", plural(total, "submission"), passed, failed,
                  unjudged > 0 ? fmt::format(", {} not judged", unjudged) : "", elsewhere,
                  lacking_words(lacking - of_other_device), stopped_by());
  if (broken) std::rethrow_exception(broken);
  if (failed > 0) return kFailed;
  if (lacking > 0) return kNoEnvironment;
  return unless_interrupted(passed == total ? kDone : kNotJudged);
}

}  // namespace

Run add_submit(CLI::App& app) {
  auto options = std::make_shared<SubmitArguments>();
  app.add_option("FILE", options->file,
                 "answers as a proposer gives them: one JSON document, or one a line; '-': stdin")
      ->required();
  add_common(app, options->common, kDevice | kProblem | kJson);
  app.add_flag("--compile-only", options->compile_only,
               "only the check of the source, the compiler and the resource gate: no device");
  app.add_option("--arch", options->arch, "with --compile-only: for this architecture (default: sm_90)")
      ->type_name("sm_90");
  app.add_option("--seed", options->seed, "of the data")->check(seed_number())->capture_default_str();
  add_trust_code(app, options->trust_code);
  add_examples(app, {"submit config.json --device cpu --problem b1_h2_s64_d64_fp32  # exit 0 or 1 or 2",
                     "submit patch.json --device emulator --problem b1_h2_s64_d64_fp16",
                     "submit patch.json --compile-only --arch sm_90 --problem b1_h2_s64_d64_fp16 --json verdict.json"});
  return [options, &app] {
    if (options->compile_only)
      refuse_flags(app, {"--device", "--seed"}, "--compile-only ends before anything runs (--arch says what for)");
    if (options->trust_code) trust_code();
    watch_interrupts();
    return run_submit(*options);
  };
}

}  // namespace flashcore::cli
