// flashcore bench --device emulator: what a launch did instead of how long it took.

#include "cli/bench_counters.h"

#include <algorithm>

namespace flashcore::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxSites = 8;

// Units a site moved beyond the fewest possible, per launch.
double excess(const json& site) {
  const bool global = site.contains("sectors_per_request");
  const double taken = site.at(global ? "sectors_per_request" : "passes_per_request").get<double>();
  const double least = site.at(global ? "least_sectors_per_request" : "least_passes_per_request").get<double>();
  return (taken - least) * site.at("requests").get<double>();
}

std::string of(const json& counters, const char* kind, const char* unit) {
  const json& c = counters.at(kind);
  return fmt::format("{:.2f} ({:.2f}x)", c.at(std::string(unit) + "_per_request").get<double>(),
                     c.at("excess").get<double>());
}

void add_row(Table& table, const Trial& trial, const json& c) {
  const double pairs =
      trial.problem.flops() / (2.0 * static_cast<double>(trial.problem.head_dim + trial.problem.head_dim_v));
  const auto count = [&](const char* name) { return c.at(name).get<double>(); };
  table.add(
      {trial.problem_name, trial.family,
       fmt::format("{:.2f}x", count("mma_flops") / std::max(trial.problem.flops(), 1.0)),
       fmt::format("{:.2f}x", count("ex2") / std::max(pairs, 1.0)),
       fmt::format("{:.0f}", (c.at("global_load").at("bytes").get<double>() + count("tma_bytes")) / 1024),
       fmt::format("{:.0f}", (c.at("global_store").at("bytes").get<double>() + count("tma_stored_bytes")) / 1024),
       fmt::format("{:.0f}", count("cluster_bytes") / 1024), of(c, "global_load", "sectors"),
       of(c, "global_store", "sectors"), fmt::format("{:.0f}", count("bank_conflicts")),
       fmt::format("{:.0f}% ({:.1f})", 100 * count("mma_with_copies_in_flight"), count("copies_in_flight_per_mma")),
       fmt::format("{:.0f}", count("barrier_waits"))});
}

void print_sites(Console& console, const Trial& trial, const json& counters) {
  std::vector<json> sites(counters.at("sites").begin(), counters.at("sites").end());
  std::erase_if(sites, [](const json& site) { return excess(site) <= 0; });
  if (sites.empty()) return;
  std::sort(sites.begin(), sites.end(), [](const json& a, const json& b) { return excess(a) > excess(b); });
  if (sites.size() > kMaxSites) sites.resize(kMaxSites);
  Table table({"access", "where (" + trial.problem_name + ")", "requests", "per request", "least"});
  for (const json& site : sites) {
    const bool global = site.contains("sectors_per_request");
    const char* unit = global ? "sectors" : "passes";
    const auto caller = site.at("caller").get<std::string>();
    table.add({site.at("kind").get<std::string>(),
               site.at("where").get<std::string>() + (caller.empty() ? "" : ", called at " + caller),
               std::to_string(site.at("requests").get<std::int64_t>()),
               fmt::format("{:.2f} {}", site.at(std::string(unit) + "_per_request").get<double>(), unit),
               fmt::format("{:.2f}", site.at(fmt::format("least_{}_per_request", unit)).get<double>())});
  }
  console.table(table);
}

}  // namespace

void print_counters(Console& console, const std::vector<Trial>& trials) {
  Table table({"problem", "family", "MMA done/needed", "ex2 done/needed", "read KB", "written KB", "cluster KB",
               "sectors/load", "sectors/store", "bank conflicts", "MMA under copies", "barrier waits"});
  for (const Trial& trial : trials) {
    const Verdict* verdict = find_gate(trial, Gate::kCounters);
    if (!verdict) {
      const Tone tone = trial.ended == Ended::kInvalid ? Tone::kWarn : Tone::kBad;
      table.add({trial.problem_name,
                 trial.family,
                 "-",
                 "-",
                 "-",
                 "-",
                 "-",
                 "-",
                 "-",
                 "-",
                 "-",
                 {word_of(trial.ended), tone}});
      table.add_detail(fmt::format("{} {}: {}", trial.problem_name, trial.candidate(), trial.ended), trial.message,
                       tone);
      continue;
    }
    add_row(table, trial, verdict->evidence);
  }
  console.table(table);
  for (const Trial& trial : trials) {
    if (const Verdict* verdict = find_gate(trial, Gate::kCounters)) print_sites(console, trial, verdict->evidence);
  }
}

}  // namespace flashcore::cli
