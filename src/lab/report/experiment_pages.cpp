// What an experiment leaves behind: JSON for the ledger, raw samples, a page in Markdown and one in HTML.

#include <cmath>

#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "core/visible_text.h"
#include "lab/experiment/ledger.h"
#include "lab/experiment/run.h"
#include "lab/record/json_io.h"
#include "lab/report/assets.h"
#include "lab/report/content_policy.h"
#include "lab/report/text.h"

namespace flashcore {
namespace {

using nlohmann::json;

bool timed(const ExperimentPair& pair) { return pair.result.ended == PairEnded::kMeasured || pair.result.same_code; }

std::string speedup_text(const ExperimentPair& pair) {
  const Comparison& c = pair.result.comparison;
  return timed(pair) ? fmt::format("{:.4f} [{:.4f}, {:.4f}]", c.speedup, c.ci95_low, c.ci95_high) : "not judged";
}

std::string gate_text(const Trial& trial) {
  std::string text;
  for (const Verdict& v : trial.gates) text += (text.empty() ? "" : ", ") + word_of(v.gate) + " " + word_of(v.status);
  return trial.ended == Ended::kPassed ? text : text + ": " + trial.message.substr(0, trial.message.find('\n'));
}

std::string occupancy_text(const ArmFacts& facts) {
  if (!facts.occupancy) return "–";
  const Occupancy& o = *facts.occupancy;
  return fmt::format("{} CTAs per SM ({}), {:.0f}% of the warps, {} CTAs in {:.2f} waves", o.ctas_per_sm, o.limited_by,
                     100 * o.warp_share, o.ctas, o.waves);
}

std::string registers_text(const ArmFacts& facts) {
  if (!facts.gates.artifact || facts.gates.device.limits.kind == DeviceKind::kCpu) return "–";
  const Artifact& a = *facts.gates.artifact;
  // The host's compiler, which makes an emulated kernel, knows no registers of a GPU.
  const std::string registers =
      facts.gates.device.limits.emulated ? "registers not known: emulated" : fmt::format("{} registers", a.registers);
  return fmt::format("{}, {} threads, {} bytes shared", registers, a.threads_per_block,
                     a.static_shared_bytes + a.dynamic_shared_bytes);
}

double median_time(const ExperimentPair& pair, bool candidate) {
  std::vector<double> times;
  for (const PairOutcome& p : pair.result.processes) {
    const auto& timing = candidate ? p.candidate.timing : p.baseline.timing;
    if (timing) times.push_back(timing->p50_us);
  }
  return times.empty() ? 0 : median(times);
}

// Interval and prediction on one axis around 1. Markup of ours: nothing but numbers goes in.
report::Html interval_svg(const ExperimentPair& pair, const Prediction& predicted) {
  if (!timed(pair)) return {};
  const Comparison& c = pair.result.comparison;
  // With too few blocks the interval is infinite: the line then reaches both edges.
  double reach = 0.1;
  for (const double end : {c.ci95_low, c.ci95_high, predicted.low, predicted.high}) {
    if (std::isfinite(end)) reach = std::max(reach, 1.1 * std::abs(end - 1));
  }
  const auto x = [&](double speedup) {
    return std::isnan(speedup) ? 150 : 150 + 140 * std::clamp((speedup - 1) / reach, -1.05, 1.05);
  };
  return {fmt::format(
      R"(<svg viewBox="0 0 300 26" width="300" height="26" role="img" aria-label="measured {0:.3f}, predicted {1:.2f} to {2:.2f}"><line x1="150" y1="0" x2="150" y2="26" stroke="currentColor" opacity=".4"/><rect x="{3:.1f}" y="3" width="{4:.1f}" height="20" fill="currentColor" opacity=".15"/><line x1="{5:.1f}" y1="13" x2="{6:.1f}" y2="13" stroke="currentColor" stroke-width="3"/><circle cx="{7:.1f}" cy="13" r="5" fill="currentColor"/></svg>)",
      c.speedup, predicted.low, predicted.high, x(predicted.low), std::max(1.0, x(predicted.high) - x(predicted.low)),
      x(c.ci95_low), x(c.ci95_high), x(c.speedup))};
}

using Row = std::vector<std::string>;

std::vector<Row> evidence_rows(const ExperimentResult& r) {
  std::vector<Row> rows;
  for (const ExperimentPair& pair : r.pairs) {
    const ExperimentArm& arm = r.experiment.candidates[pair.arm];
    rows.push_back({arm.name, pair.problem.name, word_of(pair.result.verdict), speedup_text(pair),
                    fmt::format("{:.2f} to {:.2f}", arm.predicted.low, arm.predicted.high),
                    timed(pair) ? fmt::format("{:+.1f}%", 100 * pair.prediction_error) : "–", word_of(pair.outcome),
                    timed(pair) ? fmt::format("{} against {}", report::time(median_time(pair, true)),
                                              report::time(median_time(pair, false)))
                                : "–",
                    std::isfinite(pair.result.comparison.detectable) && timed(pair)
                        ? report::percent(pair.result.comparison.detectable)
                        : "–"});
  }
  return rows;
}
const Row kEvidenceHead = {"candidate",        "problem", "verdict",     "speed-up [95%]", "predicted",
                           "prediction error", "outcome", "median time", "detectable"};

std::vector<Row> fact_rows(const ExperimentResult& r) {
  std::vector<Row> rows;
  for (const ArmFacts& f : r.facts)
    rows.push_back({f.arm, f.problem, occupancy_text(f), registers_text(f), gate_text(f.gates)});
  return rows;
}
const Row kFactHead = {"arm", "problem", "predicted occupancy", "compiled to", "gates"};

std::vector<Row> error_rows(const ExperimentResult& r) {
  std::vector<Row> rows;
  for (const ArmFacts& f : r.facts) {
    const auto ratio = error_ratio(r, f);
    if (!ratio) continue;
    const ErrorPrediction predicted = predicted_error_of(r.experiment, f.arm);
    rows.push_back({f.arm, f.problem, fmt::format("{:.3e}", ratio->error.o), ratio_words(ratio->o, predicted.o),
                    fmt::format("{:.3e}", ratio->error.lse), ratio_words(ratio->lse, predicted.lse)});
  }
  return rows;
}
const Row kErrorHead = {"arm", "problem", "error of o", "over the control's", "error of the LSE", "over the control's"};
constexpr const char* kErrorNote =
    "On normal data, against the fp64 reference: of o relative, of the LSE the root of the mean square. The gate of "
    "correctness judges both by bounds of its own.";

json range_json(const std::optional<Prediction>& range) { return range ? json{range->low, range->high} : json(); }

// Of what was raced; null where nothing was.
json source_hashes(const ExperimentPair& p) {
  if (p.result.processes.empty()) return nullptr;
  const PairOutcome& first = p.result.processes.front();
  return {{"candidate", first.candidate.source_hash}, {"control", first.baseline.source_hash}};
}

std::string markdown_table(const Row& head, const std::vector<Row>& rows) {
  std::string text = "|", rule = "\n|";
  for (const std::string& cell : head) text += " " + cell + " |", rule += " --- |";
  text += rule + "\n";
  for (const Row& row : rows) {
    text += "|";
    for (const std::string& cell : row) text += " " + report::escape_markdown(cell) + " |";
    text += "\n";
  }
  return text;
}

// Cells of a page: text is escaped as it becomes one.
using HtmlRow = std::vector<report::Html>;

std::vector<HtmlRow> as_html(const std::vector<Row>& rows) {
  std::vector<HtmlRow> out;
  for (const Row& row : rows) {
    out.emplace_back();
    for (const std::string& cell : row) out.back().push_back(report::Html::text(cell));
  }
  return out;
}

std::string html_table(const Row& head, const std::vector<HtmlRow>& rows) {
  // Each cell says what it is: on a narrow screen rows are cards (assets/report.css).
  std::string text = "<div class=\"scroll\"><table class=\"labelled\"><thead><tr>";
  for (const std::string& cell : head) text += "<th>" + escape_html(cell) + "</th>";
  text += "</tr></thead><tbody>";
  for (const HtmlRow& row : rows) {
    text += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i)
      text += fmt::format("<td data-label=\"{}\">{}</td>", escape_html(head[i]), row[i].markup);
    text += "</tr>";
  }
  return text + "</tbody></table></div>\n";
}

std::vector<Row> candidate_rows(const Experiment& e) {
  std::vector<Row> rows = {{e.control.name, "control", e.control.candidate}};
  for (const ExperimentArm& arm : e.candidates)
    rows.push_back({arm.name, arm.patch ? "patched: " + arm.patch->name : "candidate", arm.candidate});
  return rows;
}

std::string dump_json(const json& j, int indent) {
  return j.dump(indent, ' ', false, json::error_handler_t::replace) + "\n";
}

std::vector<std::string> write_pages(const ExperimentResult& r, const std::filesystem::path& target) {
  std::vector<std::string> not_written;
  const auto write_page = [&](const char* name, const auto& render) {
    try {
      write_file_atomically(target / name, render(r));
    } catch (const std::exception& e) {
      not_written.emplace_back(e.what());
    }
  };
  write_page("verdict.md", experiment_markdown);
  write_page("verdict.html", experiment_html);
  return not_written;
}

std::string conditions(const ExperimentResult& r) {
  const Experiment& e = r.experiment;
  int throttled = 0, samples = 0;
  const std::size_t ran = r.pairs.empty() ? 0 : r.pairs.front().result.processes.size();
  const std::string processes = fmt::format("{} process{}", ran, ran == 1 ? "" : "es");
  std::vector<MachineReading> readings;
  for (const ExperimentPair& p : r.pairs) {
    throttled += p.result.throttled, samples += p.result.samples;
    for (const PairOutcome& process : p.result.processes) readings.push_back(process.candidate.machine);
  }
  const std::string load = load_words(readings);
  return fmt::format(
      "{} ({}), {}, regime {}, condition {}, margin {:.1f}%, {}, {} of which {} were throttled; {}"
      "source {}; {}",
      r.device.name, r.device.key, r.device.driver.empty() ? "no driver" : r.device.driver, to_string(e.regime),
      to_string(e.condition), 100 * e.margin, processes, report::plural(samples, "sample"), throttled,
      load.empty() ? "" : load + "; ", r.source_hash, r.created_at);
}

}  // namespace

json experiment_json(const ExperimentResult& r) {
  const Experiment& e = r.experiment;
  json pairs = json::array(), facts = json::array(), candidates = json::array();
  for (const ExperimentPair& p : r.pairs) {
    const ExperimentArm& arm = e.candidates[p.arm];
    const Comparison& c = p.result.comparison;
    pairs.push_back({{"arm", arm.name},
                     {"candidate", arm.candidate},
                     {"control", e.control.candidate},
                     {"problem", p.problem.problem.id()},
                     {"source_hash", source_hashes(p)},
                     {"verdict", p.result.verdict},
                     {"outcome", p.outcome},
                     {"predicted", {arm.predicted.low, arm.predicted.high}},
                     {"prediction_error", p.prediction_error},
                     {"speedup", timed(p) ? json(c.speedup) : json()},
                     {"ci95", timed(p) ? json{c.ci95_low, c.ci95_high} : json()},
                     {"p_value", c.p_value},
                     {"tost_p", p.result.tost_p},
                     {"blocks", c.blocks},
                     {"detectable", c.detectable},
                     {"between_process", p.result.between_process},
                     {"candidate_us", median_time(p, true)},
                     {"control_us", median_time(p, false)},
                     {"sentence", p.result.sentence}});
  }
  for (const ArmFacts& f : r.facts)
    facts.push_back(
        {{"arm", f.arm},
         {"problem", f.problem},
         {"ended", f.gates.ended},
         {"message", f.gates.message},
         {"gates", f.gates.gates},
         {"predicted_error",
          {{"o", range_json(predicted_error_of(e, f.arm).o)}, {"lse", range_json(predicted_error_of(e, f.arm).lse)}}},
         {"artifact", f.gates.artifact ? json(*f.gates.artifact) : json()},
         {"occupancy", f.occupancy ? json(*f.occupancy) : json()}});
  return encode_nonfinite({{"schema", kExperimentSchema},
                           {"name", e.name},
                           {"verdict", r.verdict},
                           {"summary", r.summary},
                           {"hypothesis", e.hypothesis},
                           {"mechanism", e.mechanism},
                           {"refuted_by", e.refuted_by},
                           {"known", e.known},
                           {"confirmed_when", e.every ? "every" : "most"},
                           {"processes", r.processes},
                           {"device", r.device},
                           {"created_at", r.created_at},
                           {"source_hash", r.source_hash},
                           {"regime", to_string(e.regime)},
                           {"condition", to_string(e.condition)},
                           {"margin", e.margin},
                           {"patches", e.patches()},
                           {"earlier", r.earlier},
                           {"pairs", pairs},
                           {"facts", facts}});
}

json experiment_samples_json(const ExperimentResult& r) {
  json pairs = json::array();
  for (const ExperimentPair& p : r.pairs) {
    json processes = json::array();
    for (const PairOutcome& o : p.result.processes)
      processes.push_back({{"ended", o.ended},
                           {"message", o.message},
                           {"log_ratios", o.log_ratios},
                           {"candidate_outside", o.candidate_outside},
                           {"candidate", o.candidate.timing ? json(*o.candidate.timing) : json()},
                           {"control", o.baseline.timing ? json(*o.baseline.timing) : json()},
                           {"machine", o.candidate.machine},
                           {"environment", o.candidate.environment}});
    pairs.push_back(
        {{"arm", r.experiment.candidates[p.arm].name}, {"problem", p.problem.problem.id()}, {"processes", processes}});
  }
  return encode_nonfinite({{"schema", "flashcore.experiment-samples/1"},
                           {"name", r.experiment.name},
                           {"device", r.device.key},
                           {"created_at", r.created_at},
                           {"pairs", pairs}});
}

std::string experiment_markdown(const ExperimentResult& r) {
  const Experiment& e = r.experiment;
  const auto escape = [](std::string_view some) { return report::escape_markdown(some); };
  std::string text = fmt::format("# {}: {}\n\n", escape(e.name), escape(word_of(r.verdict)));
  for (const std::string& line : r.summary) text += "- " + escape(line) + "\n";
  text += fmt::format("\n**Mechanism.** {}\n\n**Refuted by.** {}\n\n", escape(e.mechanism), escape(e.refuted_by));
  if (!e.known.empty()) text += fmt::format("**Known before.** {}\n\n", escape(e.known));
  text += "## Candidates\n\n" + markdown_table({"arm", "role", "candidate"}, candidate_rows(e));
  text += "\n## Before the run: occupancy and gates\n\n" + markdown_table(kFactHead, fact_rows(r));
  text += fmt::format("\n## Errors\n\n{}\n{}\n", markdown_table(kErrorHead, error_rows(r)), kErrorNote);
  text += "\n## Evidence\n\n" + markdown_table(kEvidenceHead, evidence_rows(r));
  text +=
      "\nSpeed-up is the control's time over the candidate's: above 1 is faster. Intervals are a hierarchical "
      "bootstrap over "
      "processes and ABBA blocks; every sample is in `samples.json`.\n\n" +
      escape(conditions(r)) + "\n";
  for (const std::string& earlier : r.earlier) text += "\nEarlier: " + escape(earlier) + "\n";
  return text;
}

std::string experiment_html(const ExperimentResult& r) {
  const Experiment& e = r.experiment;
  const auto escape = [](const std::string& text) { return escape_html(text); };
  std::vector<HtmlRow> rows = as_html(evidence_rows(r));
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i].insert(rows[i].begin() + 3, interval_svg(r.pairs[i], e.candidates[r.pairs[i].arm].predicted));
  Row head = kEvidenceHead;
  head.insert(head.begin() + 3, "measured (line) and predicted (band)");
  std::string summary;
  for (const std::string& line : r.summary) summary += "<p>" + escape(line) + "</p>\n";
  std::string earlier;
  for (const std::string& line : r.earlier) earlier += "<p class=\"muted\">Earlier: " + escape(line) + "</p>\n";
  const std::string style(embedded_report_assets().at("report.css"));
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta "
      "http-equiv=\"Content-Security-Policy\" content=\"{11}\"><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\"><link "
      "rel=\"icon\" href=\"data:,\"><title>{0}: {1}</title><style>{2}</style></head><body><main>"
      "<p class=\"brand\">flashcore experiment</p><h1>{0}: {1}</h1>\n{3}"
      "<h2>Mechanism</h2><p>{4}</p><h2>What would refute it</h2><p>{5}</p>{12}"
      "<h2>Candidates</h2>{6}<h2>Before the run: occupancy and gates</h2>{7}<h2>Errors</h2>{13}<p "
      "class=\"muted\">{14}</p>"
      "<h2>Evidence</h2>{8}"
      "<p class=\"muted\">Speed-up is the control's time over the candidate's: above 1 is faster. Every sample is in "
      "samples.json.</p>{9}<p class=\"muted\">{10}</p></main></body></html>\n",
      escape(e.name), escape(word_of(r.verdict)), style, summary, escape(e.mechanism), escape(e.refuted_by),
      html_table({"arm", "role", "candidate"}, as_html(candidate_rows(e))),
      html_table(kFactHead, as_html(fact_rows(r))), html_table(head, rows), earlier, escape(conditions(r)),
      content_security_policy({.styles = {style}, .scripts = {}}),
      e.known.empty() ? "" : "<h2>What was known before</h2><p>" + escape(e.known) + "</p>",
      html_table(kErrorHead, as_html(error_rows(r))), kErrorNote);
}

std::vector<std::string> write_experiment(const ExperimentResult& r, const std::filesystem::path& target) {
  std::error_code error;
  std::filesystem::create_directories(target, error);
  if (error) throw_environment("cannot create the folder {}: {}", target.string(), error.message());
  // What was measured comes first. The ledger reads verdict.json: a run that is cut short leaves no verdict without its
  // samples.
  write_file_atomically(target / "samples.json", dump_json(experiment_samples_json(r), -1));
  write_file_atomically(target / "verdict.json", dump_json(experiment_json(r), 1));
  return write_pages(r, target);
}

std::vector<std::string> write_rejudged(const ExperimentResult& r, const std::filesystem::path& target) {
  const std::filesystem::path file = target / "verdict.json";
  json document = parse_json(read_file(file), file.string());
  document["verdict"] = r.verdict;
  document["summary"] = r.summary;
  for (std::size_t i = 0; i < r.pairs.size(); ++i) {
    document["pairs"][i]["outcome"] = r.pairs[i].outcome;
    document["pairs"][i]["prediction_error"] = encode_nonfinite(r.pairs[i].prediction_error);
  }
  write_file_atomically(file, dump_json(document, 1));
  return write_pages(r, target);
}

}  // namespace flashcore
