// The tables of the page. Cells carry the value to sort by; assets/report.js sorts.

#include "lab/report/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "lab/report/html_table.h"
#include "lab/report/text.h"

namespace flashcore::report {
namespace {

std::string text(std::string_view value) { return escape_html(value); }

// "block_m=64,block_n=32": what differs from the default stands out.
std::string config_html(const ProblemRow& row) {
  const std::vector<std::string> changed = changed_parts(row);
  std::string out = fmt::format("<b class=family>{}</b> <span class=config>", text(row.winner->family));
  for (const std::string& part : config_parts(row.winner->config)) {
    const bool differs = std::find(changed.begin(), changed.end(), part) != changed.end();
    out += differs ? fmt::format("<mark title=\"differs from the default\">{}</mark> ", text(part)) : text(part) + " ";
  }
  return out + "</span>";
}

std::string result_row(const ProblemRow& row) {
  std::string out =
      fmt::format("<tr{}><th scope=row title=\"{}\">{}<small>{}</small></th>", row.stale ? " class=stale" : "",
                  text(row.problem_id), text(row.label), id_html(text(row.problem_id)));
  if (!row.winner) {
    out += fmt::format("<td class=muted>{}</td>", text(row.no_winner_reason));
    for (int i = 0; i < 4; ++i) out += empty_cell();
    return out + "<td>" + badge(row) + "</td></tr>\n";
  }
  const Timing& timing = *row.winner->timing;
  out += "<td>" + config_html(row) + "</td>";
  out += number_cell(timing.p50_us, time_range(timing.p50_us, timing.p10_us, timing.p90_us),
                     fmt::format("{} samples of {} launches; the median is known to ±{}", timing.samples.size(),
                                 timing.launches_per_sample, percent(noise(timing))));
  out +=
      number_cell(row.problem.is_decode() ? gbps(row.problem, timing.p50_us) : tflops(row.problem, timing.p50_us) * 1e3,
                  throughput(row.problem, timing.p50_us));
  const auto fraction = floor_fraction(timing);
  out += fraction ? number_cell(1 / *fraction, ratio(1 / *fraction), "floor " + time(timing.floor_us)) : empty_cell();
  if (row.default_won) {
    out += number_cell(1, "1 (default)");
  } else if (row.speedup) {
    out += number_cell(row.speedup->speedup,
                       fmt::format("{} [{}, {}]", ratio(row.speedup->speedup), number(row.speedup->ci95_low),
                                   number(row.speedup->ci95_high)),
                       fmt::format("against {}, {} interleaved blocks", row.speedup->against, row.speedup->blocks));
  } else {
    out += empty_cell();
  }
  return out + "<td>" + badge(row) +
         (row.ties > 0 ? fmt::format(" <small>{}</small>", text(plural(row.ties, "tie"))) : "") + "</td></tr>\n";
}

}  // namespace

std::string badge(const ProblemRow& row) {
  static constexpr const char* kKinds[] = {"neutral", "good", "warn", "bad"};
  return fmt::format("<span class=\"badge {}\">{}</span>", kKinds[static_cast<int>(tone_of(row))],
                     text(verdict_words(row)));
}

std::string results_table(const Model& model) {
  std::string out =
      table_open("results",
                 fmt::format("Winner of each problem. Config values that differ from the default are marked. Times are "
                             "device time per launch. {}",
                             kFloorNote),
                 {{"problem", "the suite's name and the id that every command takes"},
                  {"winner", "family and config"},
                  {"time p50 [p10, p90]", "median and spread over the samples", true},
                  {"throughput", "FLOPs over unmasked pairs; decode problems in bytes that must move", true},
                  {"× floor", kFloorNote, true},
                  {"speed-up [95%]", "against the default config, interleaved, with the 95% interval", true},
                  {"verdict", "FASTER, SLOWER, SAME or INCONCLUSIVE against a margin"}});
  for (const ProblemRow& row : model.rows) out += result_row(row);
  return out + std::string(kTableClose);
}

std::string funnel_table(const Model& model) {
  std::string out =
      table_open("funnel", "Distinct candidates per stage",
                 {{"problem", "problem"},
                  {"proposed", "by the search", true},
                  {"valid", "nothing against it in why_invalid", true},
                  {"compiled", "compiled and passed the resource gate", true},
                  {"correct", "passed the correctness gate", true},
                  {"raced", "timed against the incumbent", true},
                  {"led", "beat the incumbent of its moment; the winner is chosen on held-out data", true}});
  for (const ProblemRow& row : model.rows) {
    out += fmt::format("<tr><th scope=row>{}</th>", text(row.label));
    for (const int reached : counts(row.funnel)) out += number_cell(reached, count(reached));
    out += "</tr>\n";
  }
  return out + std::string(kTableClose);
}

std::string rejected_table(const Model& model) {
  if (model.rejected.empty()) return "<p>None: every candidate passed its gates.</p>\n";
  std::string out =
      table_open("rejected", "Grouped by gate and reason; the numbers in a reason are those of its example.",
                 {{"count", "trials that ended so", true},
                  {"gate", "the gate that stopped it"},
                  {"reason", "as the gate gave it"},
                  {"problems", "where it happened"},
                  {"for example", "one candidate"}});
  for (const RejectedGroup& group : model.rejected) {
    std::vector<std::string> shown(
        group.problems.begin(),
        group.problems.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(group.problems.size(), 4)));
    std::string problems = fmt::format("{}", fmt::join(shown, ", "));
    if (group.problems.size() > shown.size())
      problems += fmt::format(" and {} more", group.problems.size() - shown.size());
    out += "<tr>" + number_cell(group.count, count(group.count)) +
           fmt::format("<td>{}</td><td class=reason>{}</td><td>{}</td><td><span class=config>{}</span></td></tr>\n",
                       text(group.gate), text(group.reason), text(problems), text(group.example));
  }
  return out + std::string(kTableClose);
}

std::string cost_table(const Model& model, std::optional<double> price) {
  std::string rows, notes;
  const auto add = [&](const Account& account, std::string_view kind, std::string_view what, const Cost& cost) {
    rows += fmt::format("<tr><th scope=row>{}</th><td>{}</td><td>{}</td>", text(account.device_name), text(kind),
                        text(what)) +
            number_cell(cost.trials, count(cost.trials)) +
            number_cell(cost.seconds.device, fmt::format("{:.2f}", cost.device_minutes())) +
            number_cell(cost.seconds.host, fmt::format("{:.2f}", cost.host_minutes()));
    if (price) rows += number_cell(cost.money(*price), fmt::format("{:.4g}", cost.money(*price)));
    rows += "</tr>\n";
  };
  for (const Account& account : model.accounts) {
    if (account.total.unknown == account.total.trials) continue;
    for (const auto& [phase, cost] : account.by_phase) add(account, "phase", to_string(phase), cost);
    for (const auto& [ended, cost] : account.by_end) add(account, "verdict", to_string(ended), cost);
    add(account, "total", "all", account.total);
    notes += "<p>" + text(cost_sentence(account, price)) + "</p>\n";
  }
  if (rows.empty()) return {};
  std::vector<Column> columns = {{"device", "where the trials ran"},
                                 {"of", "a phase, or how trials ended"},
                                 {"which", "its name"},
                                 {"trials", "in the store", true},
                                 {"device minutes", "correctness and performance", true},
                                 {"host minutes", "validity, compilation, resources", true}};
  if (price) columns.push_back({"money", "of device and host minutes together", true});
  const std::string of_an_hour = price ? fmt::format(" An hour of the machine costs {:.4g}.", *price) : "";
  return table_open("cost",
                    "Seconds of the gates that use the device, and of those before them (the compiler's)." + of_an_hour,
                    columns) +
         rows + std::string(kTableClose) + notes;
}

std::string resources_table(const Model& model) {
  const auto compiled = [](const ProblemRow& row) {
    return row.winner && row.winner->artifact && row.winner->artifact->arch != "cpu";
  };
  if (std::none_of(model.rows.begin(), model.rows.end(), compiled)) return {};
  std::string out = table_open("resources", "As the compiler reports them.",
                               {{"problem", "problem"},
                                {"kernel", "family and architecture"},
                                {"registers", "per thread", true},
                                {"spills", "bytes stored and loaded", true},
                                {"stack", "bytes; an array indexed at run time shows here", true},
                                {"shared memory", "static and dynamic, per block", true},
                                {"threads", "per block", true},
                                {"compile", "time of the cold compilation", true},
                                {"code", "hash of the machine code"}});
  for (const ProblemRow& row : model.rows) {
    if (!compiled(row)) continue;
    const Artifact& artifact = *row.winner->artifact;
    const int spills = artifact.spill_store_bytes + artifact.spill_load_bytes,
              shared = artifact.static_shared_bytes + artifact.dynamic_shared_bytes;
    out += fmt::format("<tr><th scope=row>{}</th><td>{} <small>{}</small></td>", text(row.label),
                       text(row.winner->family), text(artifact.arch)) +
           number_cell(artifact.registers, count(artifact.registers)) + number_cell(spills, count(spills)) +
           number_cell(artifact.stack_bytes, count(artifact.stack_bytes)) + number_cell(shared, bytes(shared)) +
           number_cell(artifact.threads_per_block, count(artifact.threads_per_block)) +
           number_cell(artifact.compile_ms, time(artifact.compile_ms * 1e3)) +
           fmt::format("<td><code>{}</code></td></tr>\n", text(artifact.code_hash.substr(0, 12)));
  }
  return out + std::string(kTableClose);
}

}  // namespace flashcore::report
