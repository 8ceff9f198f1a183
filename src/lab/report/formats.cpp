// Markdown, CSV and JSON. The page is in html.cpp.

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "lab/report/model.h"
#include "lab/report/text.h"

namespace flashcore {
namespace {

using namespace report;
using nlohmann::json;

json finite_or_null(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }
json positive_or_null(double value) { return value > 0 ? finite_or_null(value) : json(nullptr); }

// --- Markdown -------------------------------------------------------------------------------------------------------

std::string markdown_row(std::initializer_list<std::string> cells) {
  std::string out = "|";
  for (const std::string& cell : cells) out += " " + escape_markdown(cell) + " |";
  return out + "\n";
}

std::string markdown_result(const ProblemRow& row) {
  if (!row.winner) return markdown_row({row.label, "–", "–", "–", "–", "–", "no result"});
  if (row.stale) return markdown_row({row.label, row.winner->family, "stale", "–", "–", "–", "stale"});
  const Timing& timing = *row.winner->timing;
  const auto fraction = floor_fraction(timing);
  const std::string over = fraction ? ratio(1 / *fraction) : "–";
  const std::string gain = row.speedup ? fmt::format("{} [{}, {}]", ratio(row.speedup->speedup),
                                                     ratio(row.speedup->ci95_low), ratio(row.speedup->ci95_high))
                                       : "–";
  return markdown_row({row.label, row.winner->candidate(), time_range(timing.p50_us, timing.p10_us, timing.p90_us),
                       throughput(row.problem, timing.p50_us), over, gain, verdict_words(row)});
}

std::string markdown_funnel(const Model& model) {
  std::string out =
      "\n## Tuning funnel\n\n| problem | proposed | valid | compiled | correct | raced | led |\n| --- | ---: | ---: | "
      "---: | ---: | ---: | ---: |\n";
  for (const ProblemRow& row : model.rows) {
    out += "| " + escape_markdown(row.label) + " | " + fmt::format("{}", fmt::join(counts(row.funnel), " | ")) + " |\n";
  }
  return out;
}

std::string markdown_rejected(const Model& model) {
  if (model.rejected.empty()) return {};
  std::string out = "\n## Rejected candidates\n\n| count | gate | reason | for example |\n| ---: | --- | --- | --- |\n";
  for (const RejectedGroup& group : model.rejected) {
    out += markdown_row({std::to_string(group.count), group.gate, group.reason, group.example});
  }
  return out;
}

std::string markdown_cost(const Model& model, std::optional<double> price) {
  std::string out;
  const auto add = [&](std::string_view kind, std::string_view what, const Cost& cost) {
    out += fmt::format("| {} | {} | {} | {:.2f} | {:.2f} |", kind, escape_markdown(std::string(what)), cost.trials,
                       cost.device_minutes(), cost.host_minutes());
    out += (price ? fmt::format(" {:.4g} |", cost.money(*price)) : "") + "\n";
  };
  for (const Account& account : model.accounts) {
    if (account.total.unknown == account.total.trials) continue;
    out += fmt::format(
        "\n## What it cost on {}\n\n| of | which | trials | device minutes | host minutes |{}\n"
        "| --- | --- | ---: | ---: | ---: |{}\n",
        escape_markdown(account.device_name), price ? fmt::format(" money, at {:.4g} an hour |", *price) : "",
        price ? " ---: |" : "");
    for (const auto& [phase, cost] : account.by_phase) add("phase", to_string(phase), cost);
    for (const auto& [ended, cost] : account.by_end) add("verdict", to_string(ended), cost);
    add("total", "all", account.total);
    out += "\n" + escape_markdown(cost_sentence(account, price)) + "\n";
  }
  return out;
}

// --- CSV ------------------------------------------------------------------------------------------------------------

// A cell of ours is a number; what came from outside is text and is escaped.
struct CsvCell {
  std::string written;
  CsvCell(const std::string& text) : written(escape_csv(text)) {}  // NOLINT: text is what cells mostly are
  CsvCell(std::string_view text) : written(escape_csv(text)) {}    // NOLINT
  CsvCell(const char* text) : written(escape_csv(text)) {}         // NOLINT
  explicit CsvCell(std::int64_t number) : written(std::to_string(number)) {}
  static CsvCell number(double value) {
    CsvCell cell("");
    if (std::isfinite(value)) cell.written = fmt::format("{:.6g}", value);
    return cell;
  }
  static CsvCell positive(double value) { return value > 0 ? number(value) : CsvCell(""); }
};

std::string csv_row(const Trial& trial) {
  const Timing none;
  const Timing& timing = trial.timing ? *trial.timing : none;
  const Comparison* raced = trial.comparison ? &*trial.comparison : nullptr;
  const Artifact* built = trial.artifact ? &*trial.artifact : nullptr;
  const bool timed = trial.timing && timing.p50_us > 0;
  const CsvCell none_known("");
  const std::vector<CsvCell> cells = {
      CsvCell(trial.id),
      trial.run,
      trial.created_at,
      to_string(trial.phase),
      trial.device.key,
      trial.suite,
      trial.problem_name,
      trial.problem.id(),
      trial.family,
      trial.config,
      to_string(trial.ended),
      timed ? to_string(timing.regime) : "",
      timed ? to_string(timing.condition) : "",
      CsvCell::positive(timing.p50_us),
      CsvCell::positive(timing.p10_us),
      CsvCell::positive(timing.p90_us),
      CsvCell::positive(timing.floor_us),
      timed ? CsvCell::positive(tflops(trial.problem, timing.p50_us)) : none_known,
      timed ? CsvCell::positive(gbps(trial.problem, timing.p50_us)) : none_known,
      raced ? raced->against : "",
      raced ? CsvCell::positive(raced->speedup) : none_known,
      raced ? CsvCell::positive(raced->ci95_low) : none_known,
      raced ? CsvCell::positive(raced->ci95_high) : none_known,
      raced ? to_string(raced->verdict) : "",
      trial.error ? CsvCell::number(trial.error->rel) : none_known,
      trial.bound ? CsvCell::number(trial.bound->rel) : none_known,
      built ? CsvCell(std::int64_t{built->registers}) : none_known,
      built ? CsvCell(std::int64_t{built->spill_store_bytes + built->spill_load_bytes}) : none_known,
      built ? CsvCell(std::int64_t{built->static_shared_bytes + built->dynamic_shared_bytes}) : none_known,
      built ? CsvCell::positive(built->compile_ms) : none_known,
      trial.source_hash,
      trial.message};
  std::string out;
  for (const CsvCell& each : cells) out += (&each == &cells.front() ? "" : ",") + each.written;
  return out + "\r\n";
}

// --- JSON -----------------------------------------------------------------------------------------------------------

json json_of(const Timing& timing) {
  return {{"p10_us", finite_or_null(timing.p10_us)},     {"p50_us", finite_or_null(timing.p50_us)},
          {"p90_us", finite_or_null(timing.p90_us)},     {"floor_us", positive_or_null(timing.floor_us)},
          {"kcycles", positive_or_null(timing.kcycles)}, {"regime", to_string(timing.regime)},
          {"condition", to_string(timing.condition)}};
}

json json_of(const ProblemRow& row) {
  json out = {{"device", row.device_key},
              {"problem", row.problem_id},
              {"name", row.name},
              {"suite", row.suite},
              {"basis", words(row.basis)},
              {"stale", row.stale},
              {"verdict", verdict_words(row)},
              {"summary", sentence(row)},
              {"ties", row.ties},
              {"winner", nullptr},
              {"speedup", nullptr}};
  const std::vector<int> funnel = counts(row.funnel);
  for (std::size_t i = 0; i < funnel.size(); ++i) out["funnel"][kFunnelStages[i]] = funnel[i];
  if (row.winner) {
    const Timing& timing = *row.winner->timing;
    const auto fraction = floor_fraction(timing);
    out["winner"] = {{"family", row.winner->family},
                     {"config", row.winner->config},
                     {"source_hash", row.winner->source_hash},
                     {"time", json_of(timing)},
                     {"tflops", finite_or_null(tflops(row.problem, timing.p50_us))},
                     {"gbps", finite_or_null(gbps(row.problem, timing.p50_us))},
                     {"floor_fraction", fraction ? finite_or_null(*fraction) : json(nullptr)}};
  }
  if (row.speedup) {
    out["speedup"] = {{"against", row.speedup->against},
                      {"value", finite_or_null(row.speedup->speedup)},
                      {"ci95", {finite_or_null(row.speedup->ci95_low), finite_or_null(row.speedup->ci95_high)}},
                      {"verdict", row.speedup->verdict},
                      {"blocks", row.speedup->blocks}};
  }
  return out;
}

}  // namespace

std::string report_markdown(const std::vector<Trial>& trials, const IsCurrent& is_current,
                            std::optional<double> price) {
  const Model model = make_model(trials, is_current);
  std::string out = "# flashcore report\n\n";
  if (trials.empty()) return out + "No trials yet. `flashcore tune --suite quick` makes some.\n";
  for (const DeviceSummary& device : model.devices)
    out += fmt::format("- device: {} ({})\n", escape_markdown(device.info.name), markdown_code(device.info.key));
  out +=
      fmt::format("- measured: {} to {}\n- {}; {}\n", escape_markdown(model.first_at), escape_markdown(model.last_at),
                  plural(model.trials, "trial"), escape_markdown(join(model.conditions, "; ")));
  for (const DeviceSummary& device : model.devices) {
    for (const auto& [name, value] : machine_facts(device)) out += fmt::format("- {}: {}\n", name, value);
  }
  out += "\n";
  out +=
      "| problem | winner | time p50 [p10, p90] | throughput | × floor | speed-up [95%] | verdict |\n| --- | --- | "
      "---: | ---: | ---: | ---: | --- |\n";
  for (const ProblemRow& row : model.rows) out += markdown_result(row);
  if (!model.rows.empty()) out += fmt::format("\n{}\n", kFloorNote);
  return out + markdown_funnel(model) + markdown_rejected(model) + markdown_cost(model, price);
}

std::string report_csv(const std::vector<Trial>& trials) {
  std::string out =
      "id,run,created_at,phase,device,suite,name,problem,family,config,ended,regime,condition,p50_us,p10_us,p90_us,"
      "floor_us,tflops,gbps,against,"
      "speedup,ci95_low,ci95_high,verdict,rel_error,rel_bound,registers,spill_bytes,shared_bytes,compile_ms,source_"
      "hash,message\r\n";
  for (const Trial& trial : trials) out += csv_row(trial);
  return out;
}

json report_json(const std::vector<Trial>& trials, const IsCurrent& is_current, std::optional<double> price) {
  const Model model = make_model(trials, is_current);
  json out = {
      {"schema", "flashcore.report/1"},
      {"stale", model.any_stale},
      {"trials", model.trials},
      {"candidates", model.candidates},
      {"first_at", model.first_at},
      {"last_at", model.last_at},
      {"geomean_speedup_over_default", model.geomean_speedup ? finite_or_null(*model.geomean_speedup) : json(nullptr)},
      {"devices", json::array()},
      {"problems", json::array()},
      {"rejected", json::array()},
      {"price_per_hour", price ? json(*price) : json()},
      {"economics", json::array()}};
  for (const Account& account : model.accounts) out["economics"].push_back(account_json(account, price));
  for (const DeviceSummary& device : model.devices) {
    out["devices"].push_back(
        {{"key", device.info.key},
         {"name", device.info.name},
         {"driver", device.info.driver},
         {"clock_sm_mhz", {positive_or_null(device.clock_low_mhz), positive_or_null(device.clock_high_mhz)}},
         {"power_w_max", positive_or_null(device.power_high_w)},
         {"temperature_c_max", positive_or_null(device.temperature_high_c)}});
  }
  for (const ProblemRow& row : model.rows) out["problems"].push_back(json_of(row));
  for (const RejectedGroup& group : model.rejected) {
    out["rejected"].push_back({{"gate", group.gate},
                               {"reason", group.reason},
                               {"count", group.count},
                               {"problems", group.problems},
                               {"example", group.example}});
  }
  return out;
}

}  // namespace flashcore
