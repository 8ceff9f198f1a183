// The page's sections of a campaign's speed-ups, a profile, an inversion and a timeline. They are tables, lists and
// small drawings without a script, so that a page without trials, which has no charts, shows them too.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/campaign/fields.h"
#include "lab/diagnose/profile.h"
#include "lab/report/diagnoses.h"
#include "lab/report/html_table.h"
#include "lab/report/text.h"

namespace flashcore::report {
namespace {

using nlohmann::json;

std::string text(std::string_view value) { return escape_html(value); }

std::string badge_of(std::string_view kind, std::string_view words) {
  return fmt::format("<span class=\"badge {}\">{}</span>", kind, text(words));
}

std::string notice(const std::string& words) { return "<p class=notice role=note>" + text(words) + "</p>\n"; }

// What one result is of.
std::string heading(const json& result) {
  std::string of = lenient::text(result, "candidate");
  const std::string device = lenient::text(lenient::field(result, "device"), "name");
  if (!device.empty()) of += (of.empty() ? "on " : " on ") + device;
  const std::string when = lenient::text(result, "measured_at");
  return fmt::format("<h3 class=of>{} <small class=config>{}{}</small></h3>\n",
                     id_html(text(lenient::text(result, "problem", "a problem without a name"))), text(of),
                     text(when.empty() ? "" : ", " + when));
}

// Why something is not here follows what is: the reader knows then what it would have been.
template <class Show>
std::string all_of(const DiagnosisList& list, std::string_view what, std::string_view verb, const Show& show) {
  if (list.results.empty() && list.missing.empty())
    return fmt::format(
        "<p class=muted>No {0}: none was given to this page. <code>flashcore {1} --problem ID --json {1}.json</code> "
        "makes one, and <code>flashcore report --with {1}.json</code> shows it.</p>\n",
        what, verb);
  std::string out;
  for (std::size_t i = 0; i < list.results.size(); ++i) out += heading(list.results[i]) + show(list.results[i], i + 1);
  for (const std::string& why : list.missing) out += "<p class=muted>" + text(why) + "</p>\n";
  return out;
}

// --- speed-ups ------------------------------------------------------------------------------------------------------

std::string speedup_rows(const SpeedupTable& table) {
  std::string out;
  for (const SpeedupRow& row : table.rows) {
    const PeerLine& line = row.line;
    out += fmt::format("<tr><th scope=row>{}</th><td>{}</td>", id_html(text(line.name)), text(row.peer)) +
           number_cell(line.peer_p50_us > 0 ? line.peer_p50_us : -1, row.peer_times) +
           number_cell(line.ours_p50_us, row.our_times) +
           (line.speedup > 0 ? number_cell(line.speedup, row.speedup) : empty_cell()) +
           fmt::format("<td>{}</td></tr>\n", line.doubt.empty() ? "–" : text(line.doubt));
  }
  return out;
}

// --- profile --------------------------------------------------------------------------------------------------------

std::string bottleneck_item(const json& b, int rank) {
  const bool limit = lenient::text(b, "kind") == "limit";
  const double share = lenient::number(b, "share").value_or(0);
  std::string kind = limit ? "limit" : "fault";
  const std::string of = lenient::text(b, "share_of");
  if (share > 0)
    kind += fmt::format(", {}{}{}", percent(share), of.empty() ? "" : " of " + of, limit ? "" : ", estimated");
  std::string out = fmt::format("<li><b>{}. {}</b> {} <span>{}", rank, text(lenient::text(b, "name")),
                                badge_of(limit ? "neutral" : "warn", kind), text(lenient::text(b, "sentence")));
  for (const json& evidence : lenient::list(b, "evidence"))
    if (evidence.is_string()) out += "<small>" + text(evidence.get<std::string>()) + "</small>";
  return out + "</span></li>";
}

std::string met_cell(const json& row) {
  const auto met = lenient::flag(row, "met");
  return "<td>" + (!met ? std::string("–") : *met ? badge_of("good", "met") : badge_of("bad", "not met")) + "</td>";
}

std::string targets_in_words(const json& rows) {
  std::string missed;
  int meets = 0;
  for (const json& row : rows) {
    const auto judged = lenient::flag(row, "met");
    if (judged && *judged) ++meets;
    if (judged && !*judged) missed += (missed.empty() ? "" : ", ") + lenient::text(row, "name");
  }
  return fmt::format("{} and their targets: {} met; not met: {}",
                     plural(static_cast<std::int64_t>(rows.size()), "metric"), meets, missed.empty() ? "none" : missed);
}

std::string indicator_table(const json& rows, std::size_t number_of_profile) {
  if (rows.empty()) return {};
  std::string out = table_open(fmt::format("indicators-{}", number_of_profile),
                               "Where there is no value, the last column says which source would give it.",
                               {{"metric", "what was looked at"},
                                {"value", "as the source gives it", true},
                                {"target", "what a good kernel has", true},
                                {"target met", "met, not met, or – without a value or a target"},
                                {"from", "the source of the value, or the one that is missing"}});
  for (const json& row : rows) {
    const auto value = lenient::number(row, "value");
    const std::string unit = lenient::text(row, "unit"), target = lenient::text(row, "target");
    const bool close = unit.empty() || unit == "%" || unit == "x";
    out += fmt::format("<tr><th scope=row>{}</th>", text(lenient::text(row, "name"))) +
           (value ? number_cell(*value, number(*value) + (close ? "" : " ") + unit) : empty_cell()) +
           fmt::format("<td class=num>{}</td>{}<td>{}</td></tr>\n", text(target.empty() ? "–" : target), met_cell(row),
                       text(lenient::text(row, "source")));
  }
  return out + std::string(kTableClose);
}

std::string profile_html(const json& result, std::size_t number_of_profile) {
  std::string out;
  if (const std::string failure = lenient::text(result, "failure"); !failure.empty())
    out += notice("The candidate did not pass its gates: " + failure);
  const std::string counted = lenient::text(lenient::field(result, "counted"), "problem");
  if (!counted.empty() && counted != lenient::text(result, "problem"))
    out += fmt::format("<p class=muted>Counted on {}, since the emulator would take minutes for the problem.</p>\n",
                       text(counted));
  std::string items;
  int rank = 0;
  for (const json& b : lenient::list(result, "bottlenecks")) items += bottleneck_item(b, ++rank);
  out += items.empty() ? "<p>No source names a bottleneck.</p>\n" : "<ol class=winners>" + items + "</ol>\n";
  if (const std::string other = lenient::text(result, "counters_of_another"); !other.empty())
    out += notice("The counters are of another kernel, " + other + ", and so is all that is made of them.");
  for (const json& lost : lenient::list(result, "lost")) {
    const std::string source = lenient::text(lost, "source");
    const bool partly = source == kCountersSource && !lenient::field(result, "hardware_counters").empty();
    out += fmt::format("<p class=muted>{} {}: {}</p>\n", partly ? "Of" : "Without", text(source),
                       text(lenient::text(lost, "why")));
  }
  const std::string table = indicator_table(lenient::list(result, "indicators"), number_of_profile);
  if (table.empty()) return out;
  return out +
         fmt::format("<details><summary>{}</summary>\n", text(targets_in_words(lenient::list(result, "indicators")))) +
         table + "</details>\n";
}

// --- inversion ------------------------------------------------------------------------------------------------------

struct RatioInterval {
  double ratio = 1, low = 1, high = 1;
};

// None: it was counted and not timed. An end that is not known is infinite.
std::optional<RatioInterval> interval_of(const json& row) {
  const auto ratio = lenient::number(row, "time_ratio");
  const json& ends = lenient::list(row, "ci95");
  if (!ratio || *ratio <= 0 || ends.size() != 2) return {};
  return RatioInterval{*ratio, ends[0].is_number() ? ends[0].get<double>() : 0,
                       ends[1].is_number() ? ends[1].get<double>() : HUGE_VAL};
}

// The distance from 1 that the bars of one ranking reach: they share a scale, on which half and twice are equally far.
double reach_of(const json& ranking) {
  double reach = std::log(1.1);
  for (const json& row : ranking)
    if (const auto at = interval_of(row))
      for (const double end : {at->ratio, at->low, at->high})
        if (std::isfinite(end) && end > 0) reach = std::max(reach, std::abs(std::log(end)));
  return reach;
}

// Left of the middle is faster than the plain kernel. Nothing but numbers goes into the markup.
std::string bar_svg(const RatioInterval& at, double reach, bool wrong) {
  const auto x = [&](double ratio) {
    return 110 + 100 * std::clamp((ratio > 0 ? std::log(ratio) : -HUGE_VAL) / reach, -1.05, 1.05);
  };
  const double from = std::min(x(at.ratio), 110.0), to = std::max(x(at.ratio), 110.0);
  return fmt::format(
      "<svg class=\"bar{0}\" viewBox=\"0 0 220 18\" role=img aria-label=\"{1:.3g} of the time, {2:.3g} to "
      "{3:.3g}\"><line "
      "x1=110 y1=0 x2=110 y2=18 stroke=currentColor opacity=.5 /><rect x={4:.1f} y=4 width={5:.1f} height=10 "
      "fill=currentColor {6}/><line x1={7:.1f} y1=9 x2={8:.1f} y2=9 stroke=currentColor stroke-width=2 /></svg>",
      wrong ? " wrong" : "", at.ratio, at.low, at.high, from, std::max(to - from, 1.0),
      wrong ? "fill-opacity=.15 stroke=currentColor stroke-dasharray=\"3 2\" " : "fill-opacity=.45 ", x(at.low),
      x(at.high));
}

std::string variant_row(const json& row, double reach) {
  const bool wrong = lenient::flag(row, "wrong_on_purpose").value_or(false);
  std::string out = fmt::format("<tr><th scope=row>{}{}</th><td>{}</td>", text(lenient::text(row, "variant")),
                                wrong ? "<br>" + badge_of("warn", "wrong on purpose") : "",
                                text(lenient::text(row, "kind") == "pathology" ? "made worse" : "left out"));
  if (const auto at = interval_of(row)) {
    out += fmt::format("<td data-sort=\"{:.6g}\">{}</td>", at->ratio, bar_svg(*at, reach, wrong)) +
           number_cell(at->ratio, fmt::format("{} [{}, {}]", number(at->ratio), number(at->low), number(at->high)));
  } else {
    out += empty_cell() + empty_cell();
  }
  return out + fmt::format("<td>{}</td></tr>\n", text(lenient::text(row, "sentence")));
}

std::string inversion_html(const json& result, std::size_t number_of_inversion) {
  std::string out;
  if (const std::string failed = lenient::text(result, "failed"); !failed.empty())
    return notice("Nothing was judged: " + failed);
  if (const std::string answer = lenient::text(result, "answer"); !answer.empty())
    out += "<p>" + text(answer) + "</p>\n";
  if (const std::string busy = lenient::text(result, "busy"); !busy.empty()) out += notice(busy);
  const json& ranking = lenient::list(result, "ranking");
  const bool counts = lenient::text(result, "unit") == "count";
  if (!ranking.empty()) {
    out +=
        table_open(fmt::format("sensitivities-{}", number_of_inversion),
                   counts ? "Counted on the emulator, which has no time: each variant is shown by its own counter, and "
                            "the order says nothing."
                          : "The variant's time over the plain kernel's, interleaved. Bars share a scale on which half "
                            "and twice the time are equally far; lines are 95% intervals. What is wrong on purpose "
                            "(dashed) only bounds what can be saved, and is no candidate.",
                   {{"variant", "what was changed"},
                    {"kind", "one thing left out, or one thing made worse"},
                    {"faster | slower", "left of the middle is faster than the plain kernel"},
                    {"of the time [95%]", "the variant's time over the plain kernel's", true},
                    {"in words", "what follows"}});
    for (const json& row : ranking) out += variant_row(row, reach_of(ranking));
    out += kTableClose;
  }
  std::string open;
  for (const json& row : lenient::list(result, "not_judged"))
    open += fmt::format("<li>{}: {}</li>", text(lenient::text(row, "variant")), text(lenient::text(row, "why_not")));
  if (open.empty()) return out;
  return out + "<details><summary>Variants that could not be judged</summary><ul>" + open + "</ul></details>\n";
}

// --- timeline -------------------------------------------------------------------------------------------------------

std::string sum_row(const json& sum) {
  const double share = lenient::number(sum, "share").value_or(0), times = lenient::number(sum, "count").value_or(0),
               median = lenient::number(sum, "median").value_or(0);
  const bool waits = lenient::flag(sum, "is_wait").value_or(false);
  return fmt::format("<tr><th scope=row>{}</th><td>{}{}</td>", text(lenient::text(sum, "role")),
                     text(lenient::text(sum, "activity")), waits ? " " + badge_of("neutral", "wait") : "") +
         number_cell(share, percent(share)) + number_cell(times, number(times)) + number_cell(median, number(median)) +
         "</tr>\n";
}

std::string timeline_html_of(const json& result, std::size_t number_of_timeline) {
  std::string out;
  for (const json& fault : lenient::list(result, "faults"))
    if (fault.is_string()) out += notice("Not to be believed: " + fault.get<std::string>());
  if (lenient::number(result, "dropped").value_or(0) > 0)
    out += notice("Not the whole launch: some records found no place, and shares are of the beginning.");
  const std::string unit = lenient::text(result, "unit", "ticks");
  if (const auto share = lenient::number(result, "multiplying_share"))
    out +=
        fmt::format("<p>Some warp of a CTA is in Q·K or P·V for {} of the CTA's time. {}</p>\n", percent(*share),
                    text("What the marks cost: " +
                         lenient::text(lenient::field(result, "distortion"), "sentence", "it was not measured") + "."));
  const json& sums = lenient::list(result, "sums");
  if (sums.empty()) return out;
  out += table_open(fmt::format("activities-{}", number_of_timeline), "Shares are of a role's whole time.",
                    {{"role", "of a warp"},
                     {"activity", "what it did"},
                     {"share", "of the role's time", true},
                     {"times", "how often", true},
                     {unit == "steps" ? "median steps" : "median cycles", "of one time", true}});
  for (const json& sum : sums) out += sum_row(sum);
  return out + std::string(kTableClose);
}

}  // namespace

std::string speedup_section(const Diagnoses& diagnoses) {
  const SpeedupTable& table = diagnoses.speedups;
  if (!diagnoses.campaign) return {};
  if (table.rows.empty()) return "<p class=muted>No time beside a peer: " + text(table.why_none) + ".</p>\n";
  return table_open("peers", table.words,
                    {{"problem", "of the campaign"},
                     {"peer", "the fastest of PyTorch's backends"},
                     {"peer's p50 / p90", "microseconds", true},
                     {"ours", "p50 / p90 in microseconds", true},
                     {"speed-up [95%]", "the peer's time over ours", true},
                     {"decides nothing", "why the times decide no success criterion; – where they do"}}) +
         speedup_rows(table) + std::string(kTableClose);
}

std::string profile_section(const Diagnoses& diagnoses) {
  return all_of(diagnoses.profiles, "profile", "profile", profile_html);
}

std::string inversion_section(const Diagnoses& diagnoses) {
  return all_of(diagnoses.inversions, "inversion", "invert", inversion_html);
}

std::string timeline_section(const Diagnoses& diagnoses) {
  std::string out = all_of(diagnoses.timelines, "timeline", "timeline", timeline_html_of);
  if (!diagnoses.timeline_page.empty())
    out += fmt::format("<p><a href=\"{}\">The lanes: what each warp did, with zoom</a></p>\n",
                       text(diagnoses.timeline_page));
  return out;
}

}  // namespace flashcore::report
