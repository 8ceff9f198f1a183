#include "lab/diagnose/nsight.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>

#include "core/child_process.h"
#include "core/error.h"
#include "core/process_end.h"

namespace flashcore {
namespace {

namespace fs = std::filesystem;

// The first launch warms the caches, the second counts.
constexpr std::ptrdiff_t kLaunches = 2;

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
  for (const std::string& line : ncu_errors(output)) {
    const std::string refused = refused_name(line);
    if (refused.empty()) continue;
    for (const std::string& name : asked)
      if (name == refused || name.starts_with(refused + ".")) unknown.push_back(name);
  }
  return unknown;
}

// Why a run gave nothing, or nothing to trust, from what Nsight Compute printed.
std::string why_no_counters(const ProgramResult& result) {
  if (!result.started || result.exit_code == 127)
    return "Nsight Compute could not be started; give its path with --ncu";
  if (!result.stopped.empty()) return "Nsight Compute " + result.stopped;
  if (std::string refused = why_counters_are_refused(result.output); !refused.empty()) return refused;
  const std::vector<std::string> errors = ncu_errors(result.output);
  if (!errors.empty()) return fmt::format("Nsight Compute reports: {}", errors.front());
  if (result.output.find("No kernels were profiled") != std::string::npos)
    return "Nsight Compute saw no kernel: it could not attach, or the launch failed before it; `flashcore check` says "
           "whether the candidate runs here";
  return fmt::format(
      "Nsight Compute ended with code {} and printed {}", result.exit_code,
      has_ncu_table(result.output) ? "a table all the same; the program that it ran has failed" : "no table");
}

}  // namespace

const ProfiledKernel& main_kernel(const std::vector<ProfiledKernel>& kernels) {
  FC_CHECK(!kernels.empty());
  const auto time = [](const ProfiledKernel& k) { return value_of(k.counters, Metric::kDuration).value_or(0); };
  const auto longest =
      std::max_element(kernels.begin(), kernels.end(), [&](const auto& a, const auto& b) { return time(a) < time(b); });
  const auto last =
      std::find_if(kernels.rbegin(), kernels.rend(), [&](const ProfiledKernel& k) { return k.name == longest->name; });
  return *last;
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
    const ProgramLimits limits{.seconds = left, .cancelled = options.stop};
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
    if (!result.stopped.empty() || result.exit_code != 0 || !has_ncu_table(result.output)) {
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
