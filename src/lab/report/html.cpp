// The page: sections in the order a reader asks. Who won, by how much, what was tried, why the rest fell, how to repeat
// it. Tables are written here and need no script; the charts are drawn by assets/report.js from the data block.

#include <fmt/format.h>

#include <algorithm>

#include "lab/report/assets.h"
#include "lab/report/charts.h"
#include "lab/report/content_policy.h"
#include "lab/report/model.h"
#include "lab/report/tables.h"
#include "lab/report/text.h"

namespace flashcore {
namespace {

using namespace report;

std::string text(std::string_view value) { return escape_html(value); }

// --- sections -------------------------------------------------------------------------------------------------------

std::string fact(std::string_view name, const std::string& value) {
  return value.empty() ? std::string() : fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", text(name), text(value));
}

std::string range(double low, double high) {
  const std::string first = fmt::format("{:.0f}", low), last = fmt::format("{:.0f}", high);
  return first == last ? first : first + "–" + last;
}

std::string device_facts(const DeviceSummary& device) {
  std::string out;
  if (!device.info.driver.empty()) out += fact("driver", device.info.driver);
  if (device.clock_high_mhz > 0) out += fact("clock seen", range(device.clock_low_mhz, device.clock_high_mhz) + " MHz");
  if (device.power_high_w > 0) out += fact("highest power", number(device.power_high_w) + " W");
  if (device.temperature_high_c > 0) out += fact("highest temperature", number(device.temperature_high_c) + " °C");
  if (!device.throttle_reasons.empty()) out += fact("throttling", join(device.throttle_reasons, ", "));
  if (device.ceilings) {
    const Ceilings& measured = *device.ceilings;
    if (measured.matmul_tflops_16bit > 0)
      out += fact("measured matmul ceiling", number(measured.matmul_tflops_16bit) + " TFLOP/s");
    if (measured.fma_tflops_fp32 > 0)
      out += fact("measured FMA ceiling", number(measured.fma_tflops_fp32 * 1e3) + " GFLOP/s");
    if (measured.read_gbps > 0) out += fact("measured read bandwidth", number(measured.read_gbps) + " GB/s");
  }
  for (const auto& [name, value] : machine_facts(device)) out += fact(name, value);
  return out;
}

// "2025-01-31 12:00–12:41 UTC", or both days if they differ.
std::string period(const std::string& first, const std::string& last) {
  if (first.size() < 16 || last.size() < 16) return first;
  const std::string from = first.substr(0, 10) + " " + first.substr(11, 5), to = last.substr(11, 5);
  if (first.substr(0, 10) != last.substr(0, 10)) return from + " to " + last.substr(0, 10) + " " + to + " UTC";
  return from == first.substr(0, 10) + " " + to ? from + " UTC" : from + "–" + to + " UTC";
}

std::string header_html(const Model& model) {
  std::string title;
  for (const DeviceSummary& device : model.devices) title += (title.empty() ? "" : " and ") + device.info.name;
  std::string out =
      fmt::format("<header><p class=brand>flashcore report</p><h1>Attention on {}</h1><dl class=facts>", text(title));
  out += fact("suite", join(model.suites, ", "));
  out += fact("measured", period(model.first_at, model.last_at));
  out += fact("regime, condition", join(model.conditions, "; "));
  for (const DeviceSummary& device : model.devices) out += device_facts(device);
  out += "</dl>";
  if (model.any_stale) {
    out +=
        "<p class=\"notice\" role=note><b>Stale results.</b> Rows marked stale were measured on other kernel source "
        "than the current one; "
        "measure them again before quoting them.</p>";
  }
  return out + "</header>\n";
}

std::string tile(const std::string& value, std::string_view name, std::string_view title) {
  return fmt::format("<div class=tile title=\"{}\"><b>{}</b><span>{}</span></div>", text(title), text(value),
                     text(name));
}

std::string summary_html(const Model& model) {
  const auto decided = std::count_if(model.rows.begin(), model.rows.end(), [](const ProblemRow& row) {
    return row.basis == Basis::kHoldout || row.basis == Basis::kBench;
  });
  std::string out = "<section id=summary aria-labelledby=summary-h><h2 id=summary-h>Who won</h2><div class=tiles>";
  out += tile(fmt::format("{} of {}", decided, model.rows.size()), "problems decided",
              "a winner re-measured on held-out data, or measured by bench");
  if (model.geomean_speedup)
    out += tile(ratio(*model.geomean_speedup), "over the default",
                "geometric mean over held-out winners; where the default remains it counts as 1");
  out += tile(count(model.candidates), "candidates tried", "distinct family and config, per problem and device");
  out += tile(count(model.stopped_by_gate), "stopped by a gate",
              "invalid, did not compile, failed the resource or correctness gate, crashed or hung");
  out += "</div><ul class=winners>";
  for (const ProblemRow& row : model.rows) {
    out += fmt::format("<li><b title=\"{}\">{}</b> {} <span>{}</span></li>", text(row.problem_id), text(row.label),
                       badge(row), text(sentence(row)));
  }
  return out + "</ul></section>\n";
}

std::string figure(std::string_view id, std::string_view title, std::string_view caption, bool choose_problem) {
  std::string out =
      fmt::format("<figure id=\"figure-{0}\"><div class=figure-head><h3 id=\"{0}-h\">{1}</h3>", id, text(title));
  if (choose_problem) out += fmt::format("<label>problem <select data-for=\"{}\"></select></label>", id);
  return out + fmt::format(
                   "</div><div class=chart id=\"chart-{0}\" role=img "
                   "aria-labelledby=\"{0}-h\"></div><figcaption>{1}</figcaption></figure>\n",
                   id, text(caption));
}

std::string charts_html(const Model& model) {
  std::string out =
      "<section aria-labelledby=charts-h><h2 id=charts-h>Charts</h2><noscript><p class=notice>Charts need JavaScript. "
      "Every number in them is also in a table.</p></noscript>"
      "<p class=notice id=charts-failed role=alert hidden></p>\n";
  out += figure(
      "speedup", "Speed-up per problem",
      "Winner over the default config, measured interleaved. Bars are 95% intervals; right of the line is faster.",
      false);
  out += figure("funnel", "Tuning funnel",
                "How many distinct candidates got how far: each stage keeps what the gate before it let through. "
                "Raced: timed against the best so far. Won: beat it.",
                true);
  out += figure("roofline", "Roofline",
                "FLOPs per byte that must move, against throughput. A bar over a point is that problem's floor: no "
                "honest time is above it. Lines, where known, are ceilings measured on this machine.",
                false);
  out += figure(
      "samples", "Samples over time",
      "Every sample in the order taken (thinned to 400 a series), and the floor where it is near. Where the clock is "
      "known it is on the right-hand axis: a time that follows the clock is the machine, not the kernel.",
      true);
  return out + "<details><summary>Funnel as a table</summary>\n" + funnel_table(model) + "</details></section>\n";
}

std::string section(std::string_view id, std::string_view title, const std::string& content) {
  if (content.empty()) return {};
  return fmt::format("<section aria-labelledby={0}-h><h2 id={0}-h>{1}</h2>\n{2}</section>\n", id, text(title), content);
}

// Of one session, or of all in their order.
std::string session_commands(const std::vector<std::string>& sessions) {
  if (std::all_of(sessions.begin(), sessions.end(), [](const std::string& line) { return line.empty(); }))
    return "<p>The campaign's state does not say its command line.";
  const std::string title = sessions.size() == 1
                                ? "The campaign that made this page:"
                                : fmt::format("The campaign that made this page, in {} sessions:", sessions.size());
  std::string all;
  for (const std::string& line : sessions)
    all += (all.empty() ? "" : "\n") + (line.empty() ? "# a session whose command line is not recorded" : text(line));
  return fmt::format("<p>{}</p><pre>{}</pre><p>", title, all);
}

std::string campaign_commands(const CampaignLines& lines) {
  std::string ran;
  for (const std::string& line : lines.ran) ran += text(line) + "\n";
  return session_commands(lines.sessions) + " It ran:</p><pre>" + ran + "</pre>";
}

std::string stored_commands(const std::vector<Trial>& trials) {
  std::string out = "<p>The same trials again, then this page:</p><pre>";
  for (const std::string& line : commands_to_repeat(trials)) out += text(line) + "\n";
  return out + "flashcore report --store trials.db --out report.html</pre>";
}

std::string reproduce_html(const std::string& commands, const std::string& winners) {
  return section("reproduce", "How to reproduce",
                 commands + (winners.empty() ? ""
                                             : fmt::format("<details><summary>Each winner on its own</summary><pre>{}"
                                                           "</pre></details>",
                                                           winners)));
}

std::string winner_commands(const Model& model) {
  std::string out;
  for (const ProblemRow& row : model.rows) {
    if (row.winner) out += text(bench_command(row)) + "\n";
  }
  return out;
}

// A page of a campaign has its profiles, and says why there is no more.
std::string page_without_trials(const Diagnoses& diagnoses, const std::string& why) {
  constexpr const char* kHead = "<header><p class=brand>flashcore report</p><h1>No trials yet</h1><p>{}</p></header>{}";
  if (!diagnoses.campaign)
    return fmt::format(kHead, "Nothing was timed. Time something with:",
                       "<pre>flashcore tune --suite quick\nflashcore report --out report.html</pre>") +
           why;
  std::string reasons;
  for (const std::string& reason : diagnoses.campaign->untimed) reasons += "<li>" + text(reason) + "</li>";
  return fmt::format(kHead, "This campaign left no trial.", reasons.empty() ? "" : "<ul>" + reasons + "</ul>") + why +
         reproduce_html(campaign_commands(*diagnoses.campaign), "");
}

// --- page -----------------------------------------------------------------------------------------------------------

// "</script>" inside the data would end the block early; in JSON a "<" may be written as an escape.
std::string json_for_script(const nlohmann::json& data) {
  std::string out;
  for (const char c : data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

std::string page(const std::string& title, const std::string& body, const std::string& scripts) {
  // The policy makes "self-contained" enforced by the browser: whatever is not in the page cannot load, and of what is
  // in it only our script and style sheet count.
  const std::string_view style = embedded_report_assets().at("report.css"),
                         script = embedded_report_assets().at("report.js");
  return fmt::format(
      "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n<title>{}</title>\n"
      "<meta http-equiv=Content-Security-Policy content=\"{}\">\n"
      "<meta name=viewport content=\"width=device-width, initial-scale=1\">\n<meta name=color-scheme content=\"light "
      "dark\">\n<link rel=icon href=\"data:,\">\n"
      "<style>{}</style>\n</head>\n<body>\n<main>\n{}</main>\n<footer>flashcore {}</footer>\n{}</body>\n</html>\n",
      text(title), content_security_policy({{style}, {script}, true}), style, body, FLASHCORE_VERSION, scripts);
}

std::string scripts_html(const Model& model) {
  return fmt::format(
      "<script type=\"application/json\" id=data>{}</script>\n<script type=\"application/gzip\" "
      "id=plotly>{}</script>\n<script>{}</script>\n",
      json_for_script(chart_data(model)), base64(embedded_plotly().at("plotly.min.js.gz")),
      embedded_report_assets().at("report.js"));
}

}  // namespace

std::string report_html(const std::vector<Trial>& trials, const IsCurrent& is_current, const Diagnoses& diagnoses,
                        std::optional<double> price) {
  const std::string beside_peers = section("speedups", "Beside PyTorch", speedup_section(diagnoses));
  const std::string why = section("profile", "Why it takes the time it takes", profile_section(diagnoses)) +
                          section("inversion", "What would help most", inversion_section(diagnoses)) +
                          section("timeline", "What each warp does, and when", timeline_section(diagnoses));
  if (trials.empty()) {
    return page("flashcore report", page_without_trials(diagnoses, beside_peers + why), "");
  }
  const Model model = make_model(trials, is_current);
  return page("flashcore report: " + join(model.suites, ", ") + " on " + model.devices.front().info.name,
              header_html(model) + summary_html(model) + section("results", "Results", results_table(model)) +
                  beside_peers + charts_html(model) + why +
                  section("rejected", "Rejected candidates", rejected_table(model)) +
                  section("resources", "Resources of the winners", resources_table(model)) +
                  section("cost", "What it cost", cost_table(model, price)) +
                  reproduce_html(diagnoses.campaign ? campaign_commands(*diagnoses.campaign) : stored_commands(trials),
                                 winner_commands(model)),
              scripts_html(model));
}

}  // namespace flashcore
