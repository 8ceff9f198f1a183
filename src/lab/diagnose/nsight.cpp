#include "lab/diagnose/nsight.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <optional>
#include <regex>

#include "core/child_process.h"
#include "core/error.h"
#include "core/foreign_text.h"
#include "core/process_end.h"

namespace flashcore {
namespace {

namespace fs = std::filesystem;

// The first launch warms the caches, the second counts.
constexpr std::ptrdiff_t kLaunches = 2;

// The fields of one line of CSV: quoted, a quote inside doubled. None if a quote is left open.
std::optional<std::vector<std::string>> csv_fields(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += c;
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  if (quoted) return std::nullopt;
  return fields;
}

std::vector<std::string_view> lines_of_text(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    at = end + 1;
  }
  return lines;
}

// "1,234.5": Nsight Compute groups digits in some locales. "1.234,5" and "12,5", of locales whose comma is the point,
// throw: without it they would be other numbers.
std::optional<double> counter_number(std::string text, std::ptrdiff_t line) {
  static const std::regex grouped("[0-9]{1,3}(,[0-9]{3})*([.][0-9]*)?");
  if (text.find(',') != std::string::npos && text.find_first_not_of("0123456789.,") == std::string::npos &&
      !std::regex_match(text, grouped))
    throw_bad_input("line {}: '{}' has no decimal point; write the table with LC_ALL=C", line, text);
  text.erase(std::remove(text.begin(), text.end(), ','), text.end());
  return parse_finite(text);
}

// To ns; other units stay.
double unit_factor(const std::string& unit) {
  if (unit == "us" || unit == "usecond") return 1e3;
  if (unit == "ms" || unit == "msecond") return 1e6;
  if (unit == "s" || unit == "second") return 1e9;
  return 1;
}

std::vector<std::string> error_lines(std::string_view output) {
  std::vector<std::string> errors;
  for (const std::string_view line : lines_of_text(output))
    if (line.find("==ERROR==") != std::string_view::npos) errors.push_back(excerpt(line, 300));
  return errors;
}

// The name that "==ERROR== Failed to find metric regex:^sm__no_such\.avg(\.|$)" is about.
std::string refused_name(std::string_view line) {
  constexpr std::string_view kBefore = "Failed to find metric ";
  const std::size_t at = line.find(kBefore);
  if (at == std::string_view::npos) return "";
  std::string_view rest = line.substr(at + kBefore.size());
  if (rest.starts_with("regex:^")) rest.remove_prefix(7);
  std::string name;
  for (const char c : rest) {
    if (c == '\\' || c == '\'') continue;
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.') break;
    name += c;
  }
  while (name.ends_with('.')) name.pop_back();
  return name;
}

// Those of `asked` that it refuses, by their whole name or by what comes before the first point.
std::vector<std::string> unknown_metrics(std::string_view output, const std::vector<std::string>& asked) {
  std::vector<std::string> unknown;
  for (const std::string& line : error_lines(output)) {
    const std::string refused = refused_name(line);
    if (refused.empty()) continue;
    for (const std::string& name : asked)
      if (name == refused || name.starts_with(refused + ".")) unknown.push_back(name);
  }
  return unknown;
}

// Why a run gave nothing, or nothing to trust, from what Nsight Compute printed.
std::string why_no_counters(const ProgramResult& result) {
  const auto has = [&](const char* word) { return result.output.find(word) != std::string::npos; };
  if (!result.started || result.exit_code == 127)
    return "Nsight Compute could not be started; give its path with --ncu";
  if (!result.stopped.empty()) return "Nsight Compute " + result.stopped;
  if (has("ERR_NVGPUCTRPERM"))
    return "the driver does not let this user read counters (ERR_NVGPUCTRPERM); an administrator allows it with the "
           "module option NVreg_RestrictProfilingToAdminUsers=0, in a container with the capability SYS_ADMIN";
  const std::vector<std::string> errors = error_lines(result.output);
  if (!errors.empty()) return fmt::format("Nsight Compute reports: {}", errors.front());
  if (has("No kernels were profiled"))
    return "Nsight Compute saw no kernel: it could not attach, or the launch failed before it; `flashcore check` says "
           "whether the candidate runs here";
  return fmt::format("Nsight Compute ended with code {} and printed {}", result.exit_code,
                     has("\"ID\",") ? "a table all the same; the program that it ran has failed" : "no table");
}

}  // namespace

std::vector<ProfiledKernel> parse_ncu_csv(std::string_view text) {
  const std::vector<std::string_view> lines = lines_of_text(text);
  const auto header_at =
      std::find_if(lines.begin(), lines.end(), [](std::string_view line) { return line.starts_with("\"ID\","); });
  if (header_at == lines.end())
    throw_bad_input(
        "there is no table of Nsight Compute in it: no line begins with \"ID\"; write it with "
        "`ncu --csv --page raw`");
  const auto number_of = [&](auto line) { return line - lines.begin() + 1; };
  const auto fields_at = [&](auto line) {
    const auto fields = csv_fields(*line);
    if (!fields) throw_bad_input("line {}: a quote is left open; the file is cut short", number_of(line));
    return *fields;
  };
  const std::vector<std::string> names = fields_at(header_at);
  const auto kernel_column = std::find(names.begin(), names.end(), "Kernel Name") - names.begin();
  if (kernel_column == static_cast<std::ptrdiff_t>(names.size()))
    throw_bad_input("line {}: no column \"Kernel Name\"; write the table with `ncu --csv --page raw`",
                    number_of(header_at));
  std::vector<std::string> units;
  std::vector<ProfiledKernel> kernels;
  for (auto line = header_at + 1; line != lines.end(); ++line) {
    if (!line->starts_with('"')) continue;  // what the child prints, and Nsight Compute's own words
    const std::vector<std::string> fields = fields_at(line);
    if (fields.size() != names.size())
      throw_bad_input("line {}: {} fields, where the names of line {} are {}", number_of(line), fields.size(),
                      number_of(header_at), names.size());
    if (units.empty()) {
      units = fields;
      continue;
    }
    ProfiledKernel kernel;
    kernel.name = fields[static_cast<std::size_t>(kernel_column)];
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (names[i].find("__") == std::string::npos) continue;
      if (const auto value = counter_number(fields[i], number_of(line)))
        kernel.counters[names[i]] = *value * unit_factor(units[i]);
    }
    kernels.push_back(std::move(kernel));
  }
  if (kernels.empty()) throw_bad_input("the table of Nsight Compute has no row: it saw no launch");
  return kernels;
}

const ProfiledKernel& main_kernel(const std::vector<ProfiledKernel>& kernels) {
  FC_CHECK(!kernels.empty());
  const auto time = [](const ProfiledKernel& k) { return value_of(k.counters, Metric::kDuration).value_or(0); };
  const auto longest =
      std::max_element(kernels.begin(), kernels.end(), [&](const auto& a, const auto& b) { return time(a) < time(b); });
  const auto last =
      std::find_if(kernels.rbegin(), kernels.rend(), [&](const ProfiledKernel& k) { return k.name == longest->name; });
  return *last;
}

bool is_kernel_of(std::string_view csv_name, std::string_view name_expression) {
  // Up to template arguments and parameters, after the type of the result.
  const auto path_of = [](std::string_view name) {
    name = name.substr(0, name.find_first_of("<("));
    const std::size_t space = name.rfind(' ');
    return space == std::string_view::npos ? name : name.substr(space + 1);
  };
  const std::string_view seen = path_of(csv_name), path = path_of(name_expression);
  return seen == path || (!seen.empty() && path.ends_with(fmt::format("::{}", seen)));
}

std::string find_ncu(const std::string& asked) {
  if (!asked.empty()) {
    if (asked.find('/') == std::string::npos) return find_program(asked);
    std::error_code ignored;
    return fs::is_regular_file(asked, ignored) ? fs::absolute(asked, ignored).string() : "";
  }
  if (const std::string found = find_program("ncu"); !found.empty()) return found;
  std::vector<fs::path> places = {"/usr/local/cuda/bin/ncu"};
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/opt/nvidia/nsight-compute", ignored))
    places.push_back(entry.path() / "ncu");
  for (const fs::path& place : places)
    if (fs::is_regular_file(place, ignored)) return place.string();
  return "";
}

CollectedCounters collect_counters(const NsightOptions& options, const std::vector<std::string>& launcher) {
  CollectedCounters collected;
  std::vector<std::string> metrics = options.metrics;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  // Some versions name one unknown metric per run. Each round leaves out one at least.
  while (!metrics.empty()) {
    const double left = options.timeout_seconds - std::chrono::duration<double>(Clock::now() - start).count();
    if (left <= 0) {
      collected.why_none = fmt::format(
          "Nsight Compute refused {} of {} metrics, in one run after the other, and the {:g} s "
          "for it are over",
          collected.unknown.size(), options.metrics.size(), options.timeout_seconds);
      return collected;
    }
    const ProgramLimits limits{.seconds = left};
    // Clocks and caches stay as they are: a profile is of what a user gets.
    std::vector<std::string> argv = {
        options.ncu,       "--csv", "--page",          "raw",
        "--print-units",   "base",  "--clock-control", "none",
        "--cache-control", "none",  "--metrics",       fmt::format("{}", fmt::join(metrics, ","))};
    argv.insert(argv.end(), launcher.begin(), launcher.end());
    ProgramResult result;
    try {
      result = run_program(argv, limits);
    } catch (const std::exception& e) {
      collected.why_none = fmt::format("Nsight Compute could not be run: {}", e.what());
      return collected;
    }
    const std::vector<std::string> unknown = unknown_metrics(result.output, metrics);
    if (!unknown.empty()) {
      collected.unknown.insert(collected.unknown.end(), unknown.begin(), unknown.end());
      std::erase_if(metrics, [&](const std::string& name) {
        return std::find(unknown.begin(), unknown.end(), name) != unknown.end();
      });
      collected.why_none = "Nsight Compute knows none of the metrics";
      continue;
    }
    if (!result.stopped.empty() || result.exit_code != 0 || result.output.find("\"ID\",") == std::string::npos) {
      collected.why_none = why_no_counters(result);
      return collected;
    }
    try {
      const std::vector<ProfiledKernel> kernels = parse_ncu_csv(result.output);
      const ProfiledKernel& kernel = main_kernel(kernels);
      const auto launches =
          std::count_if(kernels.begin(), kernels.end(), [&](const ProfiledKernel& k) { return k.name == kernel.name; });
      if (launches < kLaunches) {
        collected.why_none = fmt::format("Nsight Compute saw {} launch of {}, where the first of {} warms the caches",
                                         launches, kernel.name, kLaunches);
        return collected;
      }
      collected.counters = kernel.counters;
      collected.kernel = kernel.name;
      for (const ProfiledKernel& other : kernels)
        if (other.name != kernel.name &&
            std::find(collected.others.begin(), collected.others.end(), other.name) == collected.others.end())
          collected.others.push_back(other.name);
      collected.why_none = collected.counters.empty() ? "Nsight Compute gave no number for any metric (n/a)" : "";
    } catch (const Error& e) {
      collected.why_none = fmt::format("the output of Nsight Compute cannot be read: {}", e.what());
    }
    return collected;
  }
  return collected;
}

}  // namespace flashcore
