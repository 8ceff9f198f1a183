#include "lab/compare/crosscheck_tools.h"

#include <algorithm>
#include <filesystem>

#include "core/child_process.h"
#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/json_text.h"
#include "core/scratch_folder.h"
#include "lab/gates/request.h"
#include "lab/measure/ncu_csv.h"
#include "lab/process/python_package.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr const char* kNcuMethod = "Nsight Compute's duration";
constexpr const char* kDuration = "gpu__time_duration.sum";
constexpr const char* kClock = "smsp__cycles_elapsed.avg.per_second";
constexpr int kNcuLaunches = 12;

// The last line that says something: tools put the reason there.
std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  const std::size_t start = text.rfind('\n');
  return excerpt(start == std::string::npos ? text : text.substr(start + 1));
}

MethodReading lost(std::string method, std::string why, bool missing = false) {
  return {.method = std::move(method), .why_not = std::move(why), .missing = missing};
}

std::string why_stopped(const char* program, const ProgramResult& ran) {
  return fmt::format("{} {}{}", program, ran.stopped, ran.out_of_time ? " (--tool-time gives it longer)" : "");
}

}  // namespace

MethodReading read_ncu_durations(const std::string& text, const std::string& kernel, const std::string& symbol) {
  MethodReading reading{.method = kNcuMethod, .cold = true, .why_not = why_counters_are_refused(text)};
  if (!reading.why_not.empty()) return reading;
  std::vector<double> clocks;
  std::size_t launches = 0;
  try {
    for (const ProfiledKernel& launch : parse_ncu_csv(text)) {
      ++launches;
      if (launch.name != symbol && !is_kernel_of(launch.name, kernel)) continue;
      const auto duration = launch.counters.find(kDuration), clock = launch.counters.find(kClock);
      if (duration == launch.counters.end() || duration->second <= 0) continue;
      reading.times_us.push_back(duration->second / 1e3);
      if (clock != launch.counters.end()) clocks.push_back(clock->second / 1e6);
    }
  } catch (const Error& e) {
    const std::vector<std::string> errors = ncu_errors(text);
    reading.why_not = errors.empty() ? fmt::format("its table cannot be read: {}", e.what()) : errors.front();
    return reading;
  }
  if (!clocks.empty()) reading.clock_mhz = median(clocks);
  if (reading.times_us.empty())
    reading.why_not = fmt::format("of the {} launches that it saw none of {} has a {}", launches,
                                  kernel.substr(0, kernel.find('<')), kDuration);
  return reading;
}

MethodReading time_by_ncu(const ToolQuestion& question, const CompiledCandidate& compiled) {
  if (!compiled.artifact.more_kernels.empty())
    return lost(kNcuMethod, "the candidate launches several kernels, and it times each by itself");
  EvaluateRequest request;
  request.problem = question.problem;
  request.problem_name = question.problem.id();
  request.candidate = question.candidate;
  request.phase = Phase::kCheck;
  const ScratchFolder folder;
  const auto file = folder.write("request.json", json(request).dump());
  const std::vector<std::string> command = {
      "ncu", "--csv", "--page", "raw", "--metrics", fmt::format("{},{}", kDuration, kClock),
      // Clocks are observed, never set.
      "--clock-control", "none", "--cache-control", "all", "--target-processes", "all", "--kernel-name-base", "mangled",
      "-k", compiled.artifact.symbol, question.program, "launch-candidate", "--device", question.device, "--launches",
      std::to_string(kNcuLaunches), "--request", file.string()};
  const ProgramResult ran = run_program(command, {.seconds = question.seconds, .cancelled = question.stop});
  if (!ran.started)
    return lost(kNcuMethod, "ncu is not on PATH: it comes with the CUDA toolkit (nsight-compute)", true);
  if (!ran.stopped.empty()) {
    MethodReading ended = lost(kNcuMethod, why_stopped("ncu", ran));
    ended.out_of_time = ran.out_of_time;
    return ended;
  }
  MethodReading reading = read_ncu_durations(ran.output, question.kernel, compiled.artifact.symbol);
  if (!reading.why_not.empty() && ran.exit_code != 0)
    reading.why_not += fmt::format(" (ncu ended with {})", ran.exit_code);
  return reading;
}

ToolAnswers read_tool_answers(const json& document, const std::string& origin) {
  ToolAnswers answers;
  try {
    if (document.at("schema") != "flashcore.crosscheck_tools/1")
      throw_bad_input("{} has the schema {}, not flashcore.crosscheck_tools/1", origin, document.at("schema").dump());
    for (const json& m : document.at("methods")) {
      MethodReading reading{.method = m.at("method").get<std::string>(),
                            .version = m.value("version", ""),
                            .times_us = m.value("times_us", std::vector<double>()),
                            .cold = m.value("cold", false),
                            .host_launch = m.value("host_launch", false),
                            .host_us = m.value("host_us", 0.0),
                            .empty_us = m.value("empty_us", 0.0),
                            .why_not = m.value("why_not", "")};
      const bool sane = std::all_of(reading.times_us.begin(), reading.times_us.end(), [](double t) { return t > 0; });
      if (!sane) throw_bad_input("{}: {} has a time that is not positive", origin, reading.method);
      if (reading.times_us.empty() && reading.why_not.empty()) reading.why_not = "it gave no times";
      answers.methods.push_back(std::move(reading));
    }
    for (const json& m : document.at("matmuls"))
      answers.matmuls.push_back({.what = m.at("what").get<std::string>(),
                                 .tflops = m.value("tflops", 0.0),
                                 .large = m.value("large", true),
                                 .is_16bit = m.value("is_16bit", false),
                                 .why_not = m.value("why_not", "")});
  } catch (const json::exception& e) {
    throw_bad_input("{} is no answer of flashcore.crosscheck: {}", origin, e.what());
  }
  return answers;
}

ToolAnswers ask_python(const ToolQuestion& question) {
  const ScratchFolder folder;
  const std::string file = (folder.path() / "tools.json").string();
  const ProgramResult ran =
      run_program({question.python, "-m", "flashcore.crosscheck", "--problem", question.problem.id(), "--device",
                   question.device, "--candidate", question.candidate, "--json", file},
                  {.seconds = question.seconds, .cancelled = question.stop});
  const auto all_lost = [&ran](const std::string& why) {
    ToolAnswers answers;
    for (const char* method : {"PyTorch's profiler", "torch.utils.benchmark", "Triton's do_bench", "nvbench"}) {
      answers.methods.push_back(lost(method, why, !ran.started));
      answers.methods.back().out_of_time = ran.out_of_time;
    }
    answers.matmuls.push_back({.what = "PyTorch's matmul", .why_not = why});
    return answers;
  };
  if (!ran.started) return all_lost(question.python + " is not on PATH");
  if (!ran.stopped.empty()) return all_lost(why_stopped("python -m flashcore.crosscheck", ran));
  if (const std::string package = missing_package(ran.output); ran.exit_code != 0 && !package.empty())
    return all_lost(missing_package_words(package, question.python));
  if (ran.exit_code != 0)
    return all_lost(
        fmt::format("python -m flashcore.crosscheck ended with {}: {}", ran.exit_code, last_line(ran.output)));
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    return all_lost(
        fmt::format("{} -m flashcore.crosscheck ended well and wrote nothing; --python names a Python that "
                    "imports flashcore",
                    question.python));
  try {
    return read_tool_answers(parse_json(read_file(file), file), "what python -m flashcore.crosscheck wrote");
  } catch (const Error& e) {
    return all_lost(e.what());
  }
}

}  // namespace flashcore
