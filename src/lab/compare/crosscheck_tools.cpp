#include "lab/compare/crosscheck_tools.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "core/child_process.h"
#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/json_text.h"
#include "core/scratch_folder.h"
#include "core/visible_text.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr const char* kNcuMethod = "Nsight Compute's duration";
constexpr const char* kDuration = "gpu__time_duration.sum";
constexpr const char* kClock = "smsp__cycles_elapsed.avg.per_second";
constexpr int kNcuLaunches = 12;

std::vector<std::string> csv_cells(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"') cells.back() += line[i++];
      else quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      cells.emplace_back();
    } else if (line[i] != '\r') {
      cells.back() += line[i];
    }
  }
  return cells;
}

// "1,234.5": with separators of thousands, as the tool writes it.
std::optional<double> number_of(std::string text) {
  std::erase(text, ',');
  return parse_finite(text);
}

// Microseconds in a unit of time; none: no such unit.
std::optional<double> us_of_unit(const std::string& unit) {
  if (unit == "ns" || unit == "nsecond") return 1e-3;
  if (unit == "us" || unit == "usecond") return 1;
  if (unit == "ms" || unit == "msecond") return 1e3;
  if (unit == "s" || unit == "second") return 1e6;
  return std::nullopt;
}

double mhz_of_unit(const std::string& unit) {
  if (unit == "Ghz" || unit == "GHz" || unit == "cycle/nsecond") return 1e3;
  if (unit == "Mhz" || unit == "MHz" || unit == "cycle/usecond") return 1;
  if (unit == "hz" || unit == "Hz" || unit == "cycle/second") return 1e-6;
  return 0;
}

std::string first_line(const std::string& text) {
  const std::size_t end = text.find('\n');
  return excerpt(text.substr(0, end));
}

// The last line that says something: tools put the reason there.
std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  const std::size_t start = text.rfind('\n');
  return excerpt(start == std::string::npos ? text : text.substr(start + 1));
}

MethodReading lost(std::string method, std::string why) {
  return {.method = std::move(method), .why_not = std::move(why)};
}

}  // namespace

MethodReading read_ncu_csv(const std::string& text) {
  MethodReading reading{.method = kNcuMethod, .cold = true};
  std::istringstream lines(text);
  std::vector<std::string> header, units;
  std::vector<double> clocks;
  std::string error;
  const auto column = [&](const char* name) {
    return static_cast<std::size_t>(std::find(header.begin(), header.end(), name) - header.begin());
  };
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("==ERROR==")) error = excerpt(line);
    if (header.empty()) {
      if (line.starts_with("\"ID\"")) header = csv_cells(line);
      continue;
    }
    std::vector<std::string> cells = csv_cells(line);
    if (cells.size() != header.size()) continue;
    if (units.empty()) {
      units = std::move(cells);
      continue;
    }
    const std::size_t at = column(kDuration), clock = column(kClock);
    if (at == header.size()) break;
    const auto unit = us_of_unit(units[at]);
    const auto value = number_of(cells[at]);
    if (unit && value && *value > 0) reading.times_us.push_back(*value * *unit);
    if (clock < header.size())
      if (const auto mhz = number_of(cells[clock])) clocks.push_back(*mhz * mhz_of_unit(units[clock]));
  }
  if (!clocks.empty()) reading.clock_mhz = median(clocks);
  if (!reading.times_us.empty()) return reading;
  const bool forbidden = text.find("ERR_NVGPUCTRPERM") != std::string::npos;
  reading.why_not = forbidden        ? "the driver allows no performance counters to this user (ERR_NVGPUCTRPERM): an "
                                       "administrator sets NVreg_RestrictProfilingToAdminUsers=0"
                    : !error.empty() ? error
                                     : "it reported no " + std::string(kDuration) + ": " + first_line(text);
  return reading;
}

MethodReading time_by_ncu(const ToolQuestion& question, const CompiledCandidate& compiled) {
  if (!compiled.artifact.more_kernels.empty())
    return lost(kNcuMethod, "the candidate launches several kernels, and it times each by itself");
  std::string family = question.candidate, config;
  if (const std::size_t colon = family.find(':'); colon != std::string::npos) {
    config = family.substr(colon + 1);
    family.resize(colon);
  }
  std::vector<std::string> command = {
      "ncu", "--csv", "--page", "raw", "--metrics", fmt::format("{},{}", kDuration, kClock),
      // Clocks are observed, never set.
      "--clock-control", "none", "--cache-control", "all", "--target-processes", "all", "--kernel-name-base", "mangled",
      "-k", compiled.artifact.symbol, "--launch-count", std::to_string(kNcuLaunches), question.program, "check",
      "--quiet", "--device", question.device, "--problem", question.problem.id(), "--family", family};
  if (!config.empty()) command.insert(command.end(), {"--config", config});
  const ProgramResult ran = run_program(command, {.seconds = question.seconds});
  if (!ran.started) return lost(kNcuMethod, "ncu is not on PATH: it comes with the CUDA toolkit (nsight-compute)");
  if (!ran.stopped.empty()) return lost(kNcuMethod, "ncu " + ran.stopped);
  MethodReading reading = read_ncu_csv(ran.output);
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
                  {.seconds = question.seconds});
  const auto all_lost = [](const std::string& why) {
    ToolAnswers answers;
    for (const char* method : {"PyTorch's profiler", "torch.utils.benchmark", "Triton's do_bench", "nvbench"})
      answers.methods.push_back(lost(method, why));
    answers.matmuls.push_back({.what = "PyTorch's matmul", .why_not = why});
    return answers;
  };
  if (!ran.started) return all_lost(question.python + " is not on PATH");
  if (!ran.stopped.empty()) return all_lost(fmt::format("python -m flashcore.crosscheck {}", ran.stopped));
  if (ran.exit_code != 0)
    return all_lost(
        fmt::format("python -m flashcore.crosscheck ended with {}: {}", ran.exit_code, last_line(ran.output)));
  try {
    return read_tool_answers(parse_json(read_file(file), file), "what python -m flashcore.crosscheck wrote");
  } catch (const Error& e) {
    return all_lost(e.what());
  }
}

}  // namespace flashcore
